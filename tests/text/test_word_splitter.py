"""OpenNMT's tokenizer before a vocabulary of tokens: the same tokens as the package's own."""

import pickle

import pytest

import kformer
from kformer.interop.toolkits.files import make_tokenizer

pyonmttok = pytest.importorskip("pyonmttok")
pytestmark = pytest.mark.any_backend

TEXTS = ["Hello, World! It's 1,234 x\u2581y.", "", " a\u00a0b  c ", "na\u00efve 你好 \U0001f600"]
CODES = b"#version: 0.2\nl l\nh e\no r\nl o</w>\n"
SETTINGS = {
    "aggressive": {"mode": "aggressive", "joiner_annotate": True},
    "case": {"mode": "conservative", "joiner_annotate": True, "case_markup": True},
    "spacer": {"mode": "aggressive", "spacer_annotate": True, "segment_numbers": True},
    "codes": {"mode": "space", "joiner_annotate": True, "joiner": "@@"},
}


def peer(name, tmp_path):
    path = tmp_path / "codes"
    path.write_bytes(CODES)
    codes = {"bpe_model_path": str(path)} if name == "codes" else {}
    return pyonmttok.Tokenizer(**SETTINGS[name], **codes)


def tokenizer_of(name, words):
    splitter = SETTINGS[name], CODES if name == "codes" else None
    tokens = ["<pad>", "<unk>", "<s>", "</s>", *dict.fromkeys(words)]
    special_ids = {"pad": 0, "unknown": 1, "start": 2, "end": 3}
    affixes = {"source": (), "target": ()}
    return make_tokenizer(
        (splitter, splitter),
        (tokens, tokens),
        special_ids,
        ((0, 2, 3), (0, 2, 3)),
        prefixes=affixes,
        suffixes={**affixes, "target": (3,)},
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_texts_are_those_of_the_package(name, tmp_path):
    reference = peer(name, tmp_path)
    rows = [reference.tokenize(text)[0] for text in TEXTS]
    tokenizer = tokenizer_of(name, [token for row in rows[:3] for token in row])
    pieces = tokenizer.vocabulary().pieces
    tokenizer.save(tmp_path / "tokenizer")
    for each in (
        tokenizer,
        pickle.loads(pickle.dumps(tokenizer)),
        kformer.Tokenizer.load(tmp_path / "tokenizer"),
    ):
        ids = each.tokenize(TEXTS)
        assert ids == [[pieces.index(t) if t in pieces else 1 for t in row] for row in rows]
        assert each.writes_like(tokenizer)
        assert each.detokenize(ids[:3]) == [reference.detokenize(row) for row in rows[:3]]
    assert not tokenizer.writes_like(tokenizer_of("aggressive", []))


def test_a_graph_is_refused_by_name():
    pytest.importorskip("tensorflow_text")
    from kformer.export.saved_model.tokenizer import GraphTokenizer

    with pytest.raises(ValueError, match="OpenNMT's tokenizer does: import .* with pretokenized"):
        GraphTokenizer(tokenizer_of("aggressive", ["a"]))


@pytest.mark.parametrize(
    ("settings", "codes", "sentence"),
    [
        ({"mode": "aggresive"}, None, "cannot take its settings or codes .*aggresive"),
        ({"case_feature": True}, None, "the setting 'case_feature': True, which kformer does not"),
        ({"mode": 3}, None, "the setting 'mode': 3, which kformer does not follow"),
    ],
)
def test_settings_that_cannot_be_followed(settings, codes, sentence):
    from kformer.text.word_splitter import WordSplitter

    with pytest.raises(ValueError, match=sentence):
        WordSplitter(settings, codes)
