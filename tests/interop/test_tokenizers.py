"""Published tokenizers against the sentencepiece package, the graph, and Hugging Face's own."""

import base64
import json
import random

import pytest

from kformer.export.checks import write_sentencepiece
from kformer.interop.sentencepiece_proto import convert_tokenizer_json, sentencepiece_model
from kformer.interop.tokenizers import LANGUAGES, read_tokenizer
from kformer.text import Tokenizer
from kformer.text.normalization import valid_text
from tests.interop.tokenizer_folders import (
    SPECIAL,
    charsmap_of,
    fairseq,
    m2m100,
    marian,
    mbart,
    mbart50,
    nllb,
    own_pieces,
    processor,
    t5,
    tokenizer_json,
    trained,
    trained_models,
    write,
)
from tests.text_samples import corpus, tricky_texts

pytestmark = pytest.mark.any_backend

ODD = [
    "",
    " ",
    "  the   dog ",
    "the\u00a0dog",
    "</s>",
    "a </s> b",
    "eng_Latn",
    "__en__ the dog",
    "en_XX",
    "<mask>",
    "<unk>",
    "<pad><s>",
]
TAGGED = [
    ">>fra<< the dog",
    ">>fra<<the dog",
    ">>fra<<",
    ">>cmn_Hans<<  a \u00a0man ",
    ">>xxx<< the dog",
    ">><<a",
    ">>fra< the dog",
    " >>fra<< the dog",
    "the >>fra<< dog",
    ">>fra<<>>deu<< a",
    ">>a>>fra<< b<<",
    ">>a\nb<< the dog",
    ">>\u4eba\U0001f600<< a",
    ">>fra<< </s>",
]


@pytest.fixture(scope="module")
def models():
    return trained_models()


@pytest.fixture(scope="module")
def texts():
    return tricky_texts(1000 - len(ODD + TAGGED)) + [text.encode() for text in ODD + TAGGED]


@pytest.fixture(scope="module")
def sentences():
    """Ordinary sentences, and those of the tricky ones where the libraries have no reason to
    differ.
    """
    stripped = [" ".join(text.decode().split()) for text in tricky_texts(1000, bad_bytes=False)]
    unlike = [*SPECIAL, "<mask>", "\u2581", "\u0301"]  # see docs/importing.md
    return corpus(200, seed=8), [
        text for text in stripped if not any(sign in text for sign in unlike)
    ]


FAMILIES = {
    "marian": marian,
    "m2m100": m2m100,
    "nllb": nllb,
    "mbart50": mbart50,
    "mbart": mbart,
    "t5": t5,
}


@pytest.fixture(scope="module")
def published(models, tmp_path_factory):
    """By family: folder, configuration, tokenizer."""
    found = {}
    for name, lay in FAMILIES.items():
        folder = tmp_path_factory.mktemp(name)
        config = lay(folder, models)
        found[name] = folder, config, read_tokenizer(folder, config)
    return found


# ---- ids: SentencePiece and the published rule ----


def expected_rows(name, models, texts, side):
    """By the rules as published, written down once more and naively."""
    marians = {"source": "unigram", "target": "other"}[side]
    own = processor(
        models[
            {"marian": marians, "mbart50": "unigram", "mbart": "unigram", "t5": "t5"}.get(
                name, "bpe"
            )
        ]
    )
    rows = []
    for text in texts:
        text = valid_text(text)
        if name == "marian":
            vocabulary = json.loads((models["folder"] / "vocab.json").read_text(encoding="utf-8"))
            tag = []
            if side == "source" and text.startswith(">>") and "<<" in text:
                end = text.find("<<") + 2
                tag, text = [vocabulary.get(text[:end], 1)], text[end:]
            rows.append(
                [*tag, *(vocabulary.get(piece, 1) for piece in own.encode(text, out_type=str)), 0]
            )
            continue
        if name == "t5":
            rows.append([*own.encode(text), 1])
            continue
        ids = [3 if i == 0 else i + 1 for i in own.encode(text)]
        first = len(own) + 1
        # Ids counted by hand in the published lists.
        language = (
            first
            + {
                ("m2m100", "source"): 18,
                ("m2m100", "target"): 24,
                ("nllb", "source"): 46,
                ("nllb", "target"): 56,
                ("mbart50", "source"): 3,
                ("mbart50", "target"): 7,
                ("mbart", "source"): 3,
                ("mbart", "target"): 19,
            }[name, side]
        )
        rows.append([*ids, 2, language] if name == "mbart" else [language, *ids, 2])
    return rows


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_are_those_of_sentencepiece_and_the_published_rule(
    name, side, published, models, texts
):
    folder, _, tokenizer = published[name]
    rows = tokenizer.tokenize(texts, side=side, special_tokens=True)
    assert len(rows) == 1000
    expected = expected_rows(name, {**models, "folder": folder}, texts, side)
    # An exact tie ("a" + "aa" or "aa" + "a") is segmented by the exact sums and not by a float's
    # rounding.
    ties = [n for n in range(1000) if rows[n] != expected[n]]
    assert len(ties) <= 3
    assert [sorted(rows[n]) for n in ties] == [sorted(expected[n]) for n in ties]
    # Nothing but the affixes (and Marian's tags) is a control id.
    controls = set(tokenizer.vocabulary(side).control_ids)
    plain = tokenizer.tokenize([text for text in texts if not text.startswith(b">>")], side=side)
    assert not controls & {i for row in plain for i in row}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_gives_the_same_ids_and_text(name, published, texts):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from kformer.export.saved_model.tokenizer import GraphTokenizer

    tokenizer = published[name][2]
    if name == "marian":
        tokenizer = tokenizer.for_languages(target="deu")
    graph = GraphTokenizer(tokenizer)
    for side in ("source", "target"):
        rows = tokenizer.tokenize(texts, side=side, special_tokens=True)
        found = tf.function(graph.tokenize)(tf.constant(texts), side=side)
        assert found.to_list() == rows
        assert [
            text.decode() for text in graph.detokenize(found, side=side).numpy()
        ] == tokenizer.detokenize(rows, side=side)
    plain = graph.tokenize(tf.constant(texts), special_tokens=False)
    assert plain.to_list() == tokenizer.tokenize(texts)


def test_literal_control_pieces_of_a_sentencepiece_model_stay_text(models, tmp_path):
    # A model that was trained to know the language codes as pieces: they become unknown, never the
    # language.
    model = trained("unigram", user_defined_symbols=["eng_Latn", "<pad>"])
    config = fairseq(
        tmp_path,
        model,
        LANGUAGES["nllb"],
        "m2m_100",
        tokenizer_class="NllbTokenizer",
        src_lang="eng_Latn",
        tgt_lang="fra_Latn",
    )
    with pytest.raises(ValueError, match="piece '<pad>' twice"):
        read_tokenizer(tmp_path, config)
    pieces = own_pieces(model)
    ids = {piece: i for i, piece in enumerate(pieces)}
    each = Tokenizer.from_sentencepiece(
        model,
        pad_id=ids["<pad>"],
        control_ids=[ids["eng_Latn"]],
        languages={"eng_Latn": ids["eng_Latn"]},
    )
    rows = each.tokenize(["a eng_Latn b <pad> c", "</s>"])
    assert not {ids["eng_Latn"], ids["<pad>"], each.end_id} & {i for row in rows for i in row}
    assert rows[0].count(each.unknown_id) == 2


# ---- Hugging Face ----


def transformers_tokenizer(name, folder):
    transformers = pytest.importorskip("transformers")
    classes = {
        "marian": "MarianTokenizer",
        "m2m100": "M2M100Tokenizer",
        "nllb": "NllbTokenizer",
        "mbart50": "MBart50Tokenizer",
        "mbart": "MBartTokenizer",
        "t5": "T5Tokenizer",
    }
    return getattr(transformers, classes[name]).from_pretrained(folder)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("name", ["marian", "m2m100", "nllb", "mbart50", "t5"])
def test_ids_and_text_equal_hugging_faces(name, published, models, sentences, tmp_path):
    folder, config, tokenizer = published[name]
    if (
        name == "nllb"
    ):  # transformers 5 reads no languages without the file that the hub has beside the model
        nllb(tmp_path, models)
        folder = write(
            tmp_path, tokenizer__json=tokenizer_json(models["bpe"], "BPE", LANGUAGES["nllb"])
        )
        tokenizer = read_tokenizer(folder, config)
    other = transformers_tokenizer(name, folder)
    ordinary, stripped = sentences
    assert tokenizer.tokenize(ordinary, special_tokens=True) == other(ordinary)["input_ids"]
    labels = tokenizer.tokenize(ordinary, side="target", special_tokens=True)
    assert labels == other(text_target=ordinary)["input_ids"]
    if name in ("marian", "m2m100"):
        assert tokenizer.tokenize(stripped, special_tokens=True) == other(stripped)["input_ids"]
        tagged = [text for text in TAGGED if "</s>" not in text]
        assert tokenizer.tokenize(tagged, special_tokens=True) == other(tagged)["input_ids"]
    # Hypotheses: no unknown token, which transformers leaves out of the text.
    rows = [row for row in labels if tokenizer.unknown_id not in row]
    assert len(rows) > 50
    hidden = [[i for i in row if i not in tokenizer.languages.values()] for row in rows]
    start = [tokenizer.start_id]
    assert tokenizer.detokenize([start + row for row in rows]) == other.batch_decode(
        [start + row for row in hidden], skip_special_tokens=True
    )


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("name", FAMILIES)
def test_folders_that_transformers_saved(name, published, models, sentences, tmp_path):
    folder, config, tokenizer = published[name]
    if name == "nllb":
        nllb(tmp_path, models)
        folder = write(
            tmp_path, tokenizer__json=tokenizer_json(models["bpe"], "BPE", LANGUAGES["nllb"])
        )
    transformers_tokenizer(name, folder).save_pretrained(tmp_path / "saved")
    again = read_tokenizer(tmp_path / "saved", config)
    assert again.languages == tokenizer.languages
    for side in ("source", "target"):
        expected = tokenizer.tokenize(sentences[0], side=side, special_tokens=True)
        assert again.tokenize(sentences[0], side=side, special_tokens=True) == expected


def test_mbart_with_25_languages_equals_hugging_face(published, sentences):
    _, _, tokenizer = published["mbart"]
    other = transformers_tokenizer("mbart", published["mbart"][0])
    assert tokenizer.tokenize(sentences[0], special_tokens=True) == other(sentences[0])["input_ids"]
    labels = other(text_target=sentences[0])["input_ids"]
    assert tokenizer.tokenize(sentences[0], side="target", special_tokens=True) == labels
    assert (
        tokenizer.start_id == labels[0][-1] == tokenizer.languages["ro_RO"]
    )  # where shift_tokens_right begins


# ---- words that a user added ----

# Behind the tokens that transformers counts, which are fewer than the rows of embeddings.
PADDING = {"nllb": 2, "t5": 28}
ADDED = {
    "covid": {"normalized": True},
    "covid19": {},
    "<ORG>": {"special": True},
    "<L>": {"lstrip": True},
    "<R>": {"rstrip": True, "normalized": True},
    "new york": {"normalized": True},
    "\u4eba{": {"lstrip": True, "rstrip": True},
}


def folder_with_words(name, models, folder, has_options):
    """A folder whose user added words: with their options, or as older files have them."""
    config = FAMILIES[name](folder, models)
    first = config["vocab_size"] - PADDING.get(name, 0)
    if name in ("nllb", "mbart"):  # transformers 5 reads no languages without this file
        kind, model = ("BPE", "bpe") if name == "nllb" else ("Unigram", "unigram")
        write(folder, tokenizer__json=tokenizer_json(models[model], kind, LANGUAGES[name]))
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    if has_options:
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        settings["added_tokens_decoder"] = {
            str(first + i): {"content": word, **usual, **options}
            for i, (word, options) in enumerate(ADDED.items())
        }
        write(folder, tokenizer_config__json=settings)
    else:
        write(folder, added_tokens__json={word: first + i for i, word in enumerate(ADDED)})
    return {**config, "vocab_size": config["vocab_size"] + len(ADDED)}, first


def texts_with_words(count=1000):
    chooser, texts = random.Random(0), []
    for text in corpus(count, seed=4):
        parts = text.split()
        for _ in range(chooser.randrange(4)):
            word = chooser.choice([*ADDED, "covi", "covid1", "new  york", "<ORG"])
            parts.insert(chooser.randrange(len(parts) + 1), word)
        joints = [chooser.choice((" ", " ", " ", "  ", "", "\u00a0")) for _ in parts]
        text = "".join(part + joint for part, joint in zip(parts, joints, strict=True))
        texts.append(text.strip())
    return texts


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("has_options", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_added_words_are_read_as_transformers_reads_them(name, has_options, models, tmp_path):
    config, first = folder_with_words(name, models, tmp_path / "model", has_options)
    tokenizer, texts = read_tokenizer(tmp_path / "model", config), texts_with_words()
    # transformers 5 does not normalize mBART's texts, and joins no spaces in T5's and mBART's.
    if name in ("mbart", "t5"):
        texts = [text for text in texts if "new  york" not in text]
    if name == "mbart":
        texts = [text.replace("\u00a0", " ") for text in texts]
    assert len(texts) >= 500
    rows = tokenizer.tokenize(texts, special_tokens=True)
    assert {i for row in rows for i in row} >= {*range(first, first + len(ADDED))}
    other = transformers_tokenizer(name, tmp_path / "model")
    theirs = other(texts)["input_ids"]
    different = [i for i, row in enumerate(rows) if row != theirs[i]]
    assert not different, (texts[different[0]], rows[different[0]], theirs[different[0]])
    tokenizer.save(tmp_path / "tokenizer")
    assert Tokenizer.load(tmp_path / "tokenizer").tokenize(texts, special_tokens=True) == rows


@pytest.mark.heavy
@pytest.mark.parametrize("has_options", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_added_words_in_the_graph(name, has_options, models, tmp_path):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_text")
    from kformer.export.saved_model.tokenizer import GraphTokenizer

    tokenizer = read_tokenizer(tmp_path, folder_with_words(name, models, tmp_path, has_options)[0])
    texts = texts_with_words() + [text.decode("utf-8", "replace") for text in tricky_texts(200)]
    texts += ["", " ", "covid", " covid ", "\ufeffcovid\ufe0f", "\uff43ovid", "\u2581covid\u2581"]
    rows = tokenizer.tokenize(texts, special_tokens=True)
    graph = GraphTokenizer(tokenizer)
    ids = tf.function(graph.tokenize)(tf.constant(texts)).to_list()
    different = [i for i, row in enumerate(rows) if row != ids[i]]
    assert not different, (texts[different[0]], rows[different[0]], ids[different[0]])
    assert graph.tokenize(tf.constant([], tf.string)).shape[0] == 0
    assert [
        text.decode() for text in graph.detokenize(tf.ragged.constant(ids)).numpy()
    ] == tokenizer.detokenize(rows)


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("normalized", ["covid19"], "found in normalized text, and pieces that are bytes hide"),
        pytest.param(
            "raw",
            [str(i) * 10_000 for i in range(100, 200)],
            "more than a graph can look for",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_added_words_that_a_graph_cannot_hold_are_named(kind, words, reason):
    pytest.importorskip("tensorflow_text")
    from kformer.export.saved_model.tokenizer import GraphTokenizer

    model = Tokenizer.load("tests/frozen_run/tokenizer").sentencepiece_model("source")
    added = {name: [] for name in ("raw", "normalized", "lstrip", "rstrip")}
    tokenizer = Tokenizer.from_sentencepiece(
        model,
        vocabulary=own_pieces(model) + words,
        **{"pad_id": 0, "unknown_id": 1, "start_id": 2, "end_id": 3},
        added_words={**added, kind: words, "keeps_spaces": False},
    )
    assert tokenizer.tokenize(f"{words[0]} noon")[0] == len(own_pieces(model))
    message = f"A SavedModel cannot read the tokenizer's added words .*: they are {reason}"
    with pytest.raises(ValueError, match=message):
        GraphTokenizer(tokenizer)


def test_added_words_that_cannot_be_read_are_named(models, tmp_path):
    config = t5(tmp_path, models)
    token = {"content": "covid", "single_word": True}

    def added(number=628, **options):
        decoder = {str(number): {**token, "single_word": False, **options}}
        write(tmp_path, tokenizer_config__json={"added_tokens_decoder": decoder})
        return read_tokenizer(tmp_path, {**config, "vocab_size": 629})

    assert added().tokenize("covid") == [628]
    with pytest.raises(ValueError, match="'covid' is read where it stands alone .single_word"):
        added(single_word=True)
    with pytest.raises(ValueError, match=r"'\\n' is to be found in normalized text, which has ' '"):
        added(content="\n", normalized=True)
    with pytest.raises(ValueError, match="ids go up to 700, but the model has 629 embeddings"):
        added(700)
    tokenizer = added(content="\n", normalized=False)
    assert tokenizer.tokenize("\n") == [628]
    # Formats whose users segment texts by SentencePiece alone.
    with pytest.raises(ValueError, match=r"reads the added words \['\\n'\], which SentencePiece"):
        write_sentencepiece(tokenizer, tmp_path)


def test_words_with_a_tokenizer_json_alone(models, tmp_path):
    for kind, model in (("BPE", "bpe"), ("Unigram", "unigram")):
        data = tokenizer_json(models[model], kind, LANGUAGES["nllb"])
        first = len(data["model"]["vocab"])
        usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
        data["added_tokens"] += [
            {"id": first + i, "content": word, **usual, **options}
            for i, (word, options) in enumerate(ADDED.items())
        ]
        write(tmp_path, tokenizer__json=data)
        settings = {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}
        write(tmp_path, tokenizer_config__json=settings)
        config = {"model_type": "m2m_100", "vocab_size": first + len(ADDED)}
        alone = read_tokenizer(tmp_path, config)
        texts = texts_with_words()
        theirs = [found.ids for found in tokenizers_library(data).encode_batch(texts)]
        assert alone.tokenize(texts) == theirs
        data["pre_tokenizer"]["prepend_scheme"] = "first"
        write(tmp_path, tokenizer__json=data)
        with pytest.raises(
            ValueError, match="After the added word 'covid' this tokenizer.json put"
        ):
            read_tokenizer(tmp_path, config)


def test_other_added_tokens_leave_the_published_languages(models, tmp_path):
    for name, code in (("nllb", "tyv_Cyrl"), ("mbart", "tt_RU"), ("mbart50", "tt_RU")):
        folder = tmp_path / name
        config = FAMILIES[name](folder, models)
        plain = read_tokenizer(folder, config)
        for extra in (code, "covid"):
            write(folder, added_tokens__json={extra: config["vocab_size"]})
            each = read_tokenizer(folder, {**config, "vocab_size": config["vocab_size"] + 1})
            assert plain.languages.items() <= each.languages.items()
            assert (each.languages.get(code) == config["vocab_size"]) == (extra == code)
            assert each.special_ids == plain.special_ids


# ---- tokenizer.json alone ----


def tokenizers_library(data):
    return pytest.importorskip("tokenizers").Tokenizer.from_str(json.dumps(data))


@pytest.mark.parametrize(("kind", "model"), [("BPE", "bpe"), ("Unigram", "unigram")])
def test_tokenizer_json_alone_equals_the_model_and_the_library(
    kind, model, models, texts, sentences, tmp_path
):
    data = tokenizer_json(models[model], kind, LANGUAGES["nllb"])
    config = fairseq(
        tmp_path,
        models[model],
        LANGUAGES["nllb"],
        "m2m_100",
        src_lang="eng_Latn",
        tgt_lang="fra_Latn",
    )
    with_model = read_tokenizer(tmp_path, config)
    write(tmp_path, tokenizer__json=data)
    (tmp_path / "sentencepiece.bpe.model").unlink()
    alone = read_tokenizer(tmp_path, config)
    assert (
        alone.languages == with_model.languages
        and alone.vocabulary().pieces == with_model.vocabulary().pieces
    )
    assert alone.tokenize(texts, special_tokens=True) == with_model.tokenize(
        texts, special_tokens=True
    )
    library = tokenizers_library(data)
    ordinary, stripped = sentences
    assert alone.tokenize(ordinary) == [found.ids for found in library.encode_batch(ordinary)]
    # The library normalises a letter and its marks together, does not trim a space that its
    # normalisation makes, and resolves exact ties of a unigram model in another way.
    own = processor(models[model])
    same = [
        text
        for text in stripped
        if library.normalizer.normalize_str(text) == own.normalize(text).replace("\u2581", " ")[1:]
    ]
    same = [text for text in same if "\u4eba\u4eba\u4eba" not in text]
    assert len(same) > 500
    assert alone.tokenize(same) == [found.ids for found in library.encode_batch(same)]


def add_bytes(data, count):
    vocabulary = data["model"]["vocab"]
    for byte in range(count):
        if isinstance(vocabulary, dict):
            vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
        else:
            vocabulary.append([f"<0x{byte:02X}>", -9.0])


def test_some_bytes_are_not_enough(models):
    data = tokenizer_json(models["unigram"], "Unigram", [], byte_fallback=True)
    add_bytes(data, 100)
    with pytest.raises(ValueError, match="byte_fallback with 100 of the 256 bytes"):
        convert_tokenizer_json(data)


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "model"), [("BPE", "bpe"), ("Unigram", "unigram")])
def test_other_normalizers_with_a_counterpart(kind, model, models, sentences):
    charsmap = base64.b64encode(charsmap_of(models[model])).decode()
    strip = [
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
    ]
    metaspace = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": True,
    }
    whitespace = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    spaces = ["  the\tdog\u3000runs ", "a\u2009b\n\nc", "\u00a0a man", ""]
    for changes, chosen in (
        ({"normalizers": strip}, sentences[0]),
        ({"normalizers": [], "pre_tokenizer": whitespace}, sentences[0] + spaces),
        ({"normalizers": [], "pre_tokenizer": metaspace}, sentences[0]),
        ({"pre_tokenizer": {**metaspace, "prepend_scheme": "never"}}, sentences[0]),
        ({"byte_fallback": True}, sentences[0]),
        (
            {"byte_fallback": True, "bytes": 256, "fuse_unk": False},
            sentences[0] + ["\U0001f600 \u00fc"],
        ),
    ):
        data = tokenizer_json(models[model], kind, [], **changes)
        add_bytes(data, changes.get("bytes", 0))
        converted = convert_tokenizer_json(data)
        each = Tokenizer.from_sentencepiece(
            converted.model,
            vocabulary=[converted.pieces[i] for i in range(len(converted.pieces))],
            pad_id=1,
            unknown_id=3,
            start_id=0,
            end_id=2,
        )
        assert each.tokenize(chosen) == [
            found.ids for found in tokenizers_library(data).encode_batch(chosen)
        ], changes


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            "BPE",
            {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}},
            "the pre-tokenizer ByteLevel, .*byte-level BPE",
        ),
        (
            "BPE",
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}]}},
            "the pre-tokenizer Split",
        ),
        ("BPE", {"normalizers": [{"type": "Lowercase"}]}, "the normalizer Lowercase"),
        (
            "BPE",
            {"normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "b"}]},
            "the normalizer Replace.*'a'",
        ),
        ("BPE", {"dropout": 0.1}, "dropout=0.1"),
        ("BPE", {"end_of_word_suffix": "</w>"}, "end_of_word_suffix='</w>'"),
        ("BPE", {"fuse_unk": False}, "fuse_unk=false"),
        ("BPE", {"merges": []}, "does not merge"),
        ("Unigram", {"unk_id": None}, "no unknown token"),
        ("Unigram", {"type": "WordPiece"}, "the model 'WordPiece'"),
        ("Unigram", {"vocab": [["a"]]}, "not as the tokenizers library writes it"),
    ],
)
def test_what_sentencepiece_cannot_express_is_named(kind, changes, message, models):
    data = tokenizer_json(models["bpe" if kind == "BPE" else "unigram"], kind, [], **changes)
    if (
        "merges" in changes
    ):  # one merge is missing, as in a model that the tokenizers library trained itself
        merges = tokenizer_json(models["bpe"], kind, [])["model"]["merges"]
        made = [merge.replace(" ", "") for merge in merges]
        several = next(i for i, piece in enumerate(made) if piece in made[:i])
        data["model"]["merges"] = merges[:several] + merges[several + 1 :]
    with pytest.raises(ValueError, match=message):
        convert_tokenizer_json(data)


def test_written_protobuf_is_read_as_it_was_meant():
    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("\u2581a", -1.5, 1),
        ("b" * 300, -2.0, 1),
        ("\u2581", -3.0, 1),
    ]
    model = sentencepiece_model(
        pieces,
        model_type=1,
        charsmap=None,
        adds_space=True,
        joins_spaces=False,
        byte_fallback=False,
    )
    own = processor(model)
    assert [own.id_to_piece(i) for i in range(len(own))] == [piece for piece, _, _ in pieces]
    assert [own.get_score(i) for i in range(len(own))] == [score for _, score, _ in pieces]
    assert (own.unk_id(), own.bos_id(), own.eos_id(), own.pad_id()) == (0, 1, 2, -1)
    assert own.encode("a  a", out_type=str) == ["\u2581a", "\u2581", "\u2581a"]


# ---- languages ----


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("m2m100", "de", "zh"),
        ("nllb", "zho_Hant", "deu_Latn"),
        ("mbart50", "zh_CN", "sl_SI"),
        ("mbart", "de_DE", "zh_CN"),
    ],
)
def test_for_languages_changes_ids_where_the_model_has_them(
    name, source, target, published, tmp_path
):
    folder, config, tokenizer = published[name]
    changed = tokenizer.for_languages(source, target)
    assert changed.vocabulary("source") is tokenizer.vocabulary("source")
    old = [
        tokenizer.languages[code] for code in (tokenizer.source_language, tokenizer.target_language)
    ]
    new = [tokenizer.languages[code] for code in (source, target)]
    for i, side in enumerate(("source", "target")):
        before = tokenizer.tokenize("the dog", side=side, special_tokens=True)
        after = [new[i] if token_id == old[i] else token_id for token_id in before]
        assert after != before
        assert changed.tokenize("the dog", side=side, special_tokens=True) == after
    assert changed.start_id == (new[1] if name == "mbart" else tokenizer.start_id)
    assert (changed.source_language, changed.target_language) == (source, target)
    assert (
        changed.for_languages(tokenizer.source_language, tokenizer.target_language).special_ids
        == tokenizer.special_ids
    )
    named = read_tokenizer(folder, config, source_language=source, target_language=target)
    changed.save(tmp_path / "tokenizer")
    for other in (named, Tokenizer.load(tmp_path / "tokenizer")):
        assert other.languages == tokenizer.languages
        assert other.special_ids == changed.special_ids
        for side in ("source", "target"):
            assert other.tokenize(ODD, side=side, special_tokens=True) == changed.tokenize(
                ODD, side=side, special_tokens=True
            )
        assert (
            other.for_languages(target=tokenizer.target_language).target_prefix
            == tokenizer.target_prefix
        )


def test_marians_target_language_is_a_tag_in_front_of_the_source(published, tmp_path):
    folder, config, plain = published["marian"]
    assert plain.languages == {"fra": 2, "deu": 3, "cmn_Hans": 4}
    assert (plain.source_prefix, plain.target_prefix, plain.target_language) == ((), (), None)
    assert (plain.pad_id, plain.start_id, plain.end_id, plain.unknown_id) == (
        config["pad_token_id"],
        config["pad_token_id"],
        0,
        1,
    )
    for code in ("deu", ">>deu<<"):
        fixed = read_tokenizer(folder, config, target_language=code)
        assert (fixed.source_prefix, fixed.target_language) == ((3,), "deu")
        dog = plain.tokenize("the dog")
        assert fixed.tokenize(
            ["the dog", ">>fra<< the dog", ">>xxx<< the dog"], special_tokens=True
        ) == [
            [3, *dog, 0],
            [2, *dog, 0],
            [1, *dog, 0],
        ]
        assert fixed.tokenize(">>fra<< the dog", side="target") == plain.tokenize(
            ">>fra<< the dog", side="target"
        )
        assert 2 not in fixed.tokenize(">>fra<< the dog", side="target")
    fixed.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.tokenize(TAGGED, special_tokens=True) == fixed.tokenize(
        TAGGED, special_tokens=True
    )
    assert loaded.for_languages(target="fra").source_prefix == (2,)
    with pytest.raises(ValueError, match="does not read the source language; leave out 'fra'"):
        fixed.for_languages(source="fra")


def test_a_marian_model_without_tags_reads_them_as_text(models, tmp_path):
    config = marian(tmp_path, models, tags=[], source_lang="en", target_lang="de")
    each = read_tokenizer(
        tmp_path, config, source_language="en", target_language="de"
    )  # a bilingual model's own languages are accepted
    assert (each.languages, each.language_tags) == ({}, False)
    own = processor(models["unigram"])
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    for text in TAGGED:
        assert each.tokenize(text) == [
            vocabulary.get(piece, 1) for piece in own.encode(text, out_type=str)
        ]
    with pytest.raises(ValueError, match="has no language tags.*leave out target_language='fr'"):
        read_tokenizer(tmp_path, config, target_language="fr")
    with pytest.raises(
        ValueError, match="not told its source language; leave out source_language='fr'"
    ):
        read_tokenizer(tmp_path, config, source_language="fr")


def test_marian_with_separate_vocabularies(models, tmp_path):
    config = marian(tmp_path, models, separate_vocabs=True)
    source = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    names = list(source)
    middle = names[2:-1]
    random.Random(0).shuffle(middle)
    target = {piece: i for i, piece in enumerate([*names[:2], *middle, names[-1]])}
    write(tmp_path, target_vocab__json=target)
    each = read_tokenizer(tmp_path, config)
    assert not each.joint and set(each.languages) == {"fra", "deu", "cmn_Hans"}
    pieces = processor(models["other"]).encode("the dog sees a man", out_type=str)
    assert each.tokenize("the dog sees a man", side="target") == [
        target.get(piece, 1) for piece in pieces
    ]
    assert each.tokenize(">>fra<<") == [source[">>fra<<"]]
    assert each.vocabulary("target").control_ids == (0, target["<pad>"])
    write(
        tmp_path, target_vocab__json={piece: (i + 1) % len(target) for piece, i in target.items()}
    )
    with pytest.raises(ValueError, match="target_vocab.json gives '<pad>' another id"):
        read_tokenizer(tmp_path, config)


def test_nllb_legacy_behaviour_puts_the_source_language_last(models, tmp_path, sentences):
    config = nllb(tmp_path, models, legacy_behaviour=True)
    each = read_tokenizer(tmp_path, config)
    assert each.source_prefix == () and each.source_suffix == (2, each.languages["eng_Latn"])
    assert each.target_prefix == (each.languages["fra_Latn"],) and each.target_suffix == (2,)
    write(tmp_path, tokenizer__json=tokenizer_json(models["bpe"], "BPE", LANGUAGES["nllb"]))
    other = transformers_tokenizer("nllb", tmp_path)
    assert (
        read_tokenizer(tmp_path, config).tokenize(sentences[0], special_tokens=True)
        == other(sentences[0])["input_ids"]
    )


def test_language_ids_of_the_folder_go_before_the_published_ones(models, tmp_path):
    config = nllb(tmp_path, models)
    first = len(own_pieces(models["bpe"])) + 1
    ids = {"fra_Latn": first, "eng_Latn": first + 1, "tyv_Cyrl": first + 5, "<mask>": first + 3}
    write(tmp_path, added_tokens__json=ids)
    each = read_tokenizer(tmp_path, config, target_language="tyv_Cyrl")
    assert each.languages == {"fra_Latn": first, "eng_Latn": first + 1, "tyv_Cyrl": first + 5}
    assert each.vocabulary_size == first + 6
    assert {first + 2, first + 3, first + 4} <= set(
        each.vocabulary().control_ids
    )  # two ids have no piece
    write(tmp_path, added_tokens__json={"eng_Latn": 40})
    with pytest.raises(ValueError, match="the id 40 to both .* and 'eng_Latn'"):
        read_tokenizer(tmp_path, config)


def test_families_are_told_apart_without_a_class(published, models, tmp_path):
    for name, (folder, config, tokenizer) in published.items():
        copy = tmp_path / name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        settings = json.loads((copy / "tokenizer_config.json").read_text(encoding="utf-8"))
        settings.pop("tokenizer_class", None)
        write(copy, tokenizer_config__json=settings)
        again = read_tokenizer(copy, config)
        assert again.tokenize("the dog", special_tokens=True) == tokenizer.tokenize(
            "the dog", special_tokens=True
        )
        assert again.special_ids == tokenizer.special_ids


def test_m2m100_of_wmt21(models, tmp_path):
    config = m2m100(tmp_path, models, language_codes="wmt21", tgt_lang="de")
    first = len(own_pieces(models["bpe"])) + 1
    each = read_tokenizer(tmp_path, config)
    assert list(each.languages) == ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]
    assert (each.source_prefix, each.target_prefix) == ((first,), (first + 7,))
    assert each.for_languages(target="__zh__").target_language == "zh"


def test_t5_starts_with_padding_where_no_start_is_named(models, tmp_path):
    config = t5(tmp_path, models)
    config.pop("decoder_start_token_id", None)
    tokenizer = read_tokenizer(tmp_path, config)
    assert tokenizer.start_id == tokenizer.pad_id != tokenizer.end_id


def test_bart(models, tmp_path):
    config = {"model_type": "bart", "vocab_size": 600, "decoder_start_token_id": 2}
    write(tmp_path, vocab__json={"<s>": 0}, tokenizer_config__json={})
    with pytest.raises(ValueError, match="byte-level BPE"):
        read_tokenizer(tmp_path, config)
    write(
        tmp_path, tokenizer__json={"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}
    )
    with pytest.raises(ValueError, match="ByteLevel.*byte-level BPE"):
        read_tokenizer(tmp_path, config)
    (tmp_path / "tokenizer.json").unlink()
    write(tmp_path, **{"sentencepiece__bpe__model": models["unigram"]})
    ids = [i + 1 for i in processor(models["unigram"]).encode("the dog")]
    assert read_tokenizer(tmp_path, config).tokenize("the dog", special_tokens=True) == [0, *ids, 2]
    with pytest.raises(
        ValueError, match="BART model has no languages; leave out target_language='fr'"
    ):
        read_tokenizer(tmp_path, config, target_language="fr")


# ---- errors ----


def test_language_errors_name_the_value_and_the_remedy(models, tmp_path):
    config = nllb(tmp_path, models, tgt_lang=None)
    with pytest.raises(
        ValueError,
        match=r"needs a target language.*= \(--target-language\), one of ace_Arab.* and 190 more",
    ):
        read_tokenizer(tmp_path, config)
    with pytest.raises(
        ValueError,
        match=r"language 'english' is unknown; choose one of ace_Arab.*--source-language",
    ):
        read_tokenizer(tmp_path, config, source_language="english", target_language="fra_Latn")
    each = read_tokenizer(tmp_path, config, target_language="fra_Latn")
    with pytest.raises(ValueError, match="The target language 'French' is unknown; choose one of"):
        each.for_languages(target="French")
    with pytest.raises(ValueError, match="has no choice of languages; leave out 'fr'"):
        Tokenizer.from_sentencepiece(models["unigram"], pad_id=0).for_languages(target="fr")


@pytest.mark.parametrize("name", FAMILIES)
def test_missing_and_broken_files_are_named(name, models, tmp_path):
    config = FAMILIES[name](tmp_path, models)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        if path.name != "tokenizer_config.json":
            path.unlink()
            with pytest.raises(FileNotFoundError, match=f"no {path.name}"):
                read_tokenizer(tmp_path, config)
        path.write_bytes(b"[")
        with pytest.raises(
            ValueError, match=f"{path.name}.* (is not valid JSON|is not a SentencePiece model)"
        ):
            read_tokenizer(tmp_path, config)
        path.write_bytes(content)
    with pytest.raises(ValueError, match="but the model has 300 embeddings"):
        read_tokenizer(tmp_path, {**config, "vocab_size": 300}, target_language=None)


def test_unknown_kinds(models, tmp_path):
    with pytest.raises(
        ValueError,
        match="model_type 'led' is none that kformer reads; it reads those of marian, m2m_100",
    ):
        read_tokenizer(tmp_path, {"model_type": "led"})
    config = mbart(tmp_path, models, tokenizer_class="BarthezTokenizer")
    with pytest.raises(ValueError, match="'BarthezTokenizer'.*MBartTokenizer and MBart50Tokenizer"):
        read_tokenizer(tmp_path, config)
    config = m2m100(tmp_path, models, tokenizer_class="SMALL100Tokenizer")
    with pytest.raises(ValueError, match="'SMALL100Tokenizer'.*M2M100Tokenizer and NllbTokenizer"):
        read_tokenizer(tmp_path, config)
