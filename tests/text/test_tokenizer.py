"""`kformer.Tokenizer` in Python: training, round trips, ids, special tokens."""

import copy
import gzip
import pickle
import random
import re

import numpy as np
import pytest
import sentencepiece

from kformer.text import Tokenizer
from kformer.text.languages import check_codes
from kformer.text.normalization import valid_text
from tests.text_samples import BAD_BYTES, LITERALS, SIGNS, SPACES, corpus, tricky_texts

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for name, seed in (("train.en", 0), ("train.zh", 1)):
        (folder / name).write_text("\n".join(corpus(seed=seed)) + "\n", encoding="utf-8")
    return folder / "train.en", folder / "train.zh"


@pytest.fixture(scope="module")
def tokenizer(files):
    return Tokenizer.train(list(files), vocabulary_size=600, model_type="unigram")


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def identity(request):
    return Tokenizer.train(
        texts=corpus(), vocabulary_size=500, model_type=request.param, normalization="identity"
    )


# ---- ids and special tokens ----


def test_special_ids_and_sizes(tokenizer):
    assert (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id) == (
        0,
        1,
        2,
        3,
    )
    assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert tokenizer.vocabulary_size == tokenizer.target_vocabulary_size == 600
    assert tokenizer.joint
    assert tokenizer.vocabulary("source") is tokenizer.vocabulary("target")


@pytest.mark.parametrize("side", ["source", "target"])
def test_special_tokens_are_added_on_request(tokenizer, side):
    plain = tokenizer.tokenize(["the dog", ""], side=side)
    assert plain[0] and plain[1] == []
    assert not {0, 1, 2, 3} & set(plain[0])
    assert tokenizer.tokenize(["the dog", ""], side=side, special_tokens=True) == [
        plain[0] + [3],
        [3],
    ]


def test_one_text_gives_one_sequence_and_back(tokenizer):
    ids = tokenizer.tokenize("the dog")
    assert ids == tokenizer.tokenize(["the dog"])[0]
    assert ids == tokenizer.tokenize(b"the dog")
    assert tokenizer.detokenize(ids) == "the dog"
    assert tokenizer.tokenize([]) == []
    assert tokenizer.detokenize([]) == tokenizer.detokenize(tokenizer.tokenize([])) == []
    assert tokenizer.detokenize(tokenizer.tokenize("")) == ""
    assert tokenizer.tokenize(text for text in ["the dog"]) == [ids]
    assert tokenizer.tokenize(np.array(["the dog"])) == [ids]


def test_detokenize_drops_control_ids_wherever_they_stand(tokenizer):
    ids = tokenizer.tokenize("the dog")
    assert tokenizer.detokenize([2, ids[0], 0, *ids[1:], 3, 0, 0]) == "the dog"
    assert tokenizer.detokenize([[3], [], [2, 3, 0]]) == ["", "", ""]


@pytest.mark.parametrize("kind", [np.array, np.int32, tuple, list])
def test_detokenize_takes_arrays(tokenizer, kind):
    rows = tokenizer.tokenize(["the dog", "a man"])
    width = max(map(len, rows))
    padded = [row + [0] * (width - len(row)) for row in rows]
    assert tokenizer.detokenize(kind(padded)) == ["the dog", "a man"]
    assert tokenizer.detokenize(kind(padded[0])) == "the dog"
    assert tokenizer.tokens(kind(rows[0])) == [tokenizer.id_to_token(i) for i in rows[0]]


def test_detokenize_takes_tensors(tokenizer):
    torch = pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    rows = tokenizer.tokenize(["the dog", "the man"], special_tokens=True)
    width = max(map(len, rows))
    padded = [row + [0] * (width - len(row)) for row in rows]
    for tensor in (torch.tensor(padded), tf.constant(padded), tf.ragged.constant(rows)):
        assert tokenizer.detokenize(tensor) == ["the dog", "the man"]
    assert tokenizer.detokenize(torch.tensor(rows[0])) == "the dog"
    assert tokenizer.detokenize(tf.constant(rows[0])) == "the dog"
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)) == []


def test_ids_outside_of_the_vocabulary_write_the_unknown_sign(tokenizer):
    ids = tokenizer.tokenize("the dog")
    assert tokenizer.detokenize([*ids, 600, -1, 1]) == "the dog" + " \u2047 " * 3
    assert tokenizer.tokens([600, -1]) == ["<unk>", "<unk>"]
    with pytest.raises(
        ValueError, match="The target id 600 is outside of the vocabulary of 600 pieces"
    ):
        tokenizer.id_to_token(600)


def test_bad_arguments_say_what_is_wrong(tokenizer):
    with pytest.raises(ValueError, match=r"A text must be str or bytes, not int \(3\)"):
        tokenizer.tokenize(["a", 3])
    with pytest.raises(ValueError, match="not NoneType"):
        tokenizer.tokenize(None)
    with pytest.raises(ValueError, match="side must be one of source, target, but 'left'"):
        tokenizer.tokenize("a", side="left")
    with pytest.raises(ValueError, match="ids must be whole numbers; 1.5 is not"):
        tokenizer.detokenize([[1.5]])
    with pytest.raises(ValueError, match="one or two dimensions, not 3"):
        tokenizer.detokenize(np.zeros((1, 2, 3), int))


def test_pickle_and_copy(tokenizer):
    texts = tricky_texts(100)
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other.tokenize(texts) == tokenizer.tokenize(texts)
        assert other.vocabulary("source") is other.vocabulary("target")


def test_threads_do_not_change_the_ids(tokenizer):
    texts = tricky_texts(500)
    assert tokenizer.tokenize(texts, num_threads=1) == tokenizer.tokenize(texts, num_threads=3)


# ---- text in, text out ----


def test_identity_gives_every_unicode_string_back(identity):
    texts = [text.decode("utf-8") for text in tricky_texts(4000, bad_bytes=False)]
    texts += [space + text + space for space in SPACES for text in ("", "a", "a" + space * 2 + "b")]
    codes = [*range(0x3100), *range(0x3100, 0x110000, 97)]
    texts += [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    assert identity.detokenize(identity.tokenize(texts)) == texts
    for rare in SIGNS:
        assert identity.detokenize(identity.tokenize(rare)) == rare


def test_literal_special_tokens_are_text(tokenizer, identity):
    for each in (tokenizer, identity):
        for literal in LITERALS[:6]:
            ids = each.tokenize([literal, f"a {literal} b", literal * 3])
            control = {each.pad_id, each.unknown_id, each.start_id, each.end_id}
            assert not control & {i for row in ids for i in row}
            assert each.detokenize(ids) == [literal, f"a {literal} b", literal * 3]


def test_literal_special_tokens_in_the_training_text_are_text():
    # Such a corpus must train, and must not make text pieces out of "<s>" and the like.
    texts = [
        f"{literal} word {literal}{literal} other" for literal in LITERALS for _ in range(40)
    ] + corpus(200)
    for model_type in ("unigram", "bpe"):
        for rule in ("nmt_nfkc", "identity"):
            each = Tokenizer.train(
                texts=texts, vocabulary_size=450, model_type=model_type, normalization=rule
            )
            ids = each.tokenize(LITERALS[:6])
            assert not {0, 1, 2, 3} & {i for row in ids for i in row}
            assert each.detokenize(ids) == LITERALS[:6]
            pieces = each.vocabulary().pieces
            assert len(set(pieces)) == 450


def test_nmt_nfkc_normalises(tokenizer):
    cases = {
        "  the   dog ": "the dog",
        "the\u00a0dog\u3000\tman\n": "the dog man",
        "ＡＢＣ ﬁ ① ㍿": "ABC fi 1 株式会社",
        "e\u0301": "\u00e9",
        "\u2581the\u2581dog": "the dog",
        "the \x00\x07dog": "the dog",
        "👩\u200d👧": "👩\u200d👧",
        "": "",
        " \n ": "",
    }
    assert tokenizer.detokenize(tokenizer.tokenize(list(cases))) == list(cases.values())


def test_no_character_is_unknown_with_byte_fallback(tokenizer, identity):
    for each in (tokenizer, identity):
        assert not any(each.unknown_id in row for row in each.tokenize(tricky_texts(1000)))


def test_without_byte_fallback_a_strange_character_is_unknown():
    each = Tokenizer.train(
        texts=corpus(), vocabulary_size=300, byte_fallback=False, model_type="unigram"
    )
    ids = each.tokenize("the \U0001f600 dog")
    assert each.unknown_id in ids
    assert each.detokenize(ids) == "the  \u2047  dog"


@pytest.mark.parametrize("bad", BAD_BYTES)
def test_invalid_bytes_become_replacement_characters(identity, bad):
    expected = (b"a" + bad + b"b").decode("utf-8", "replace")
    assert "\ufffd" in expected
    assert identity.detokenize(identity.tokenize(b"a" + bad + b"b")) == expected


def test_lone_surrogate_equals_its_bytes(identity):
    assert (
        valid_text("a\ud800b")
        == "a\ufffd\ufffd\ufffdb"
        == valid_text("a\ud800b".encode("utf-8", "surrogatepass"))
    )
    assert identity.tokenize("a\ud800b") == identity.tokenize(b"a\xed\xa0\x80b")


def test_byte_pieces_that_are_no_utf8_become_replacement_characters(tokenizer):
    byte = {tokenizer.id_to_token(i): i for i in range(260)}
    assert tokenizer.detokenize([byte["<0xE4>"], byte["<0xBA>"], byte["<0xBA>"]]) == "\u4eba"
    assert tokenizer.detokenize([byte["<0xE4>"], byte["<0xBA>"]]) == "\ufffd"
    assert tokenizer.detokenize([byte["<0xFF>"], byte["<0x41>"], byte["<0x80>"]]) == "\ufffdA\ufffd"


def test_text_is_joined_as_sentencepiece_joins_it():
    # The surfaces are kformer's own; on ids that are not broken bytes they must agree with
    # SentencePiece's decoder.
    generator = random.Random(0)
    for rule in ("nmt_nfkc", "identity"):
        each = Tokenizer.train(
            texts=corpus(), vocabulary_size=500, normalization=rule, model_type="unigram"
        )
        processor = sentencepiece.SentencePieceProcessor(model_proto=each.sentencepiece_model())
        several = [
            i for i, piece in enumerate(each.vocabulary().pieces) if not piece.startswith("<0x")
        ]
        rows = [generator.choices(several, k=generator.randint(1, 8)) for _ in range(2000)]
        assert each.detokenize(rows) == processor.decode(rows)


def test_split_digits(files):
    each = Tokenizer.train(list(files), vocabulary_size=600, model_type="unigram")
    assert not [
        piece for piece in each.vocabulary().pieces[260:] if sum(c.isdigit() for c in piece) > 1
    ]
    together = Tokenizer.train(
        list(files), vocabulary_size=600, split_digits=False, model_type="bpe"
    )
    assert [
        piece for piece in together.vocabulary().pieces[260:] if sum(c.isdigit() for c in piece) > 1
    ]


# ---- equal paths ----


def test_unigram_scores_are_multiples_so_that_sums_are_exact(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.sentencepiece_model())
    scores = [processor.get_score(i) for i in range(len(processor))]
    assert min(scores) < -5
    assert all(score * 64 == round(score * 64) for score in scores)


def test_equal_paths_end_in_the_longest_piece():
    # "aaa" as a + aa or aa + a is of equal worth; exact sums leave the choice to the one rule of
    # every release.
    each = Tokenizer.train(texts=corpus(), vocabulary_size=500, model_type="unigram")
    assert {"人", "人人"} <= set(each.vocabulary().pieces)
    for length in range(3, 60):
        row = each.tokens(each.tokenize("。" + "人" * length))
        lengths = [len(piece) for piece in row if set(piece) == {"人"}]
        assert sum(lengths) == length
        assert lengths == sorted(lengths)


# ---- training ----


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_training_twice_gives_the_same_bytes(files, model_type):
    from_files = Tokenizer.train(list(files), vocabulary_size=600, model_type=model_type)
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    from_texts = Tokenizer.train(texts=iter(lines), vocabulary_size=600, model_type=model_type)
    assert from_files.sentencepiece_model() == from_texts.sentencepiece_model()


def test_sampling_is_seeded_and_bounded(files):
    def model(seed):
        return Tokenizer.train(
            list(files), vocabulary_size=500, max_sentences=800, seed=seed, model_type="unigram"
        ).sentencepiece_model()

    assert model(0) == model(0) != model(1)


def test_separate_models(files):
    each = Tokenizer.train(*files, vocabulary_size=(500, 450), model_type="bpe")
    assert (each.vocabulary_size, each.target_vocabulary_size) == (500, 450)
    assert not each.joint
    assert each.sentencepiece_model("source") != each.sentencepiece_model("target")
    for side in ("source", "target"):
        assert each.detokenize(each.tokenize(["the dog"], side=side), side=side) == ["the dog"]
    mixed = Tokenizer.train(
        files[0], target_texts=["the dog 人"] * 9, vocabulary_size=(500, 269), model_type="unigram"
    )
    assert mixed.target_vocabulary_size == 269


def test_long_and_odd_training_texts_are_used():
    # One text longer than SentencePiece's limit, with NUL and line breaks, is all there is to learn
    # from.
    text = "\x00".join(corpus(400)) + "\n" + "猫" * 5000
    each = Tokenizer.train(
        texts=[text], vocabulary_size=420, character_coverage=1.0, model_type="unigram"
    )
    assert "猫" in "".join(each.vocabulary().pieces)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": []}, "There is no text in texts"),
        ({"texts": ["", "  ", "\n"]}, "There is no text in texts"),
        ({"texts": ["\u200b"]}, "no text in texts after normalisation"),
        ({"texts": "one string"}, "texts must be an iterable of texts, not one str"),
        (
            {"texts": ["a"], "vocabulary_size": 0},
            "vocabulary_size must be a whole number of at least 4, but 0",
        ),
        ({"texts": ["a"], "vocabulary_size": 2.5}, "but 2.5"),
        ({"texts": ["a"], "vocabulary_size": (300, 300)}, "has 2 sizes for 1 model"),
        (
            {"texts": ["a"], "model_type": "word"},
            "model_type must be one of unigram, bpe",
        ),
        (
            {"texts": ["a"], "normalization": "model"},
            "normalization must be one of nmt_nfkc, identity",
        ),
        ({"texts": ["a"], "character_coverage": 1.5}, "character_coverage=1.5"),
        ({}, "Pass either files or texts"),
        ({"target_texts": ["a"]}, "Pass either files or texts"),
        ({"files": [["a b"]]}, "files takes paths .* a list: give texts themselves as texts"),
        ({"texts": ["a"], "target_files": 5}, "target_files takes paths .* target_texts"),
        ({"texts": ["a", 5]}, "A text must be str or bytes, not int"),
    ],
)
def test_training_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(**arguments)


def test_file_errors(tmp_path, files):
    with pytest.raises(FileNotFoundError, match=r"text file .*nowhere.* does not exist"):
        Tokenizer.train([files[0], tmp_path / "nowhere"], model_type="unigram")
    with pytest.raises(FileNotFoundError, match=r"text file .*nowhere.* does not exist"):
        Tokenizer.train(
            files[0], tmp_path / "nowhere", vocabulary_size=10**9, model_type="unigram"
        )  # before the source is trained
    (tmp_path / "train.gz").write_bytes(gzip.compress(b"some text\n"))
    with pytest.raises(
        ValueError, match=r"text file .*train.gz' is compressed by gzip: decompress"
    ):
        Tokenizer.train([files[0], tmp_path / "train.gz"])
    (tmp_path / "latin1").write_bytes("fine\nna\u00efve\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"Line 2 of .*latin1.* is not valid UTF-8"):
        Tokenizer.train(tmp_path / "latin1", model_type="unigram")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize(
    ("size", "message"), [(100_000, "too large .*at most"), (10, "too small .*need")]
)
def test_vocabulary_size_errors_name_a_size_that_works(files, model_type, size, message):
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.train(files[0], vocabulary_size=size, model_type=model_type)
    assert "train.en" in str(error.value)
    named = int(re.search(r"pass vocabulary_size=(\d+)", str(error.value))[1])
    assert (
        Tokenizer.train(files[0], vocabulary_size=named, model_type=model_type).vocabulary_size
        == named
    )


# ---- languages and foreign pieces, for imported tokenizers ----


@pytest.fixture(scope="module")
def multilingual(tokenizer):
    """The same model with three languages behind its pieces, and a tag on the source side."""
    pieces = [*tokenizer.vocabulary().pieces, ">>de<<", ">>fr<<", ">>zh<<"]
    return Tokenizer.from_sentencepiece(
        tokenizer.sentencepiece_model(),
        vocabulary=pieces,
        **{f"{name}_id": i for name, i in tokenizer.special_ids.items()},
        control_ids=[600, 601, 602],
        languages={"de": 600, "fr": 601, "zh": 602},
        language_places={"source": ["source_suffix"], "target": ["target_suffix", "start"]},
        language_tags=True,
    )


def test_languages_stand_in_their_places(multilingual, tmp_path):
    changed = multilingual.for_languages("de", "zh")
    assert (multilingual.source_language, multilingual.target_language) == (None, None)
    assert (changed.source_language, changed.target_language) == ("de", "zh")
    assert (changed.source_prefix, changed.source_suffix, changed.target_suffix) == (
        (),
        (3, 600),
        (3, 602),
    )
    assert (changed.start_id, multilingual.start_id) == (602, 2)
    assert changed.for_languages(target="fr").source_suffix == (3, 600)
    assert changed.vocabulary("target") is multilingual.vocabulary("target")
    changed.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    for other in (loaded, pickle.loads(pickle.dumps(changed)), copy.deepcopy(changed)):
        assert other.languages == {"de": 600, "fr": 601, "zh": 602}
        assert other.special_ids == changed.special_ids
        assert other.tokenize(">>fr<< the dog", special_tokens=True) == changed.tokenize(
            ">>fr<< the dog", special_tokens=True
        )
        assert other.for_languages("zh").source_suffix == (3, 602)


def test_a_tag_in_front_of_a_source_text_becomes_its_id(multilingual, tokenizer):
    dog = tokenizer.tokenize("the dog")
    texts = [">>fr<<the dog", ">>xx<< the dog", b">>fr<< the dog", "the dog", ">>fr<<"]
    assert multilingual.tokenize(texts) == [[601, *dog], [1, *dog], [601, *dog], dog, [601]]
    assert multilingual.tokenize(texts, side="target") == tokenizer.tokenize(texts)
    for text in (" >>fr<< the dog", "the >>fr<< dog", ">> fr the dog"):
        assert multilingual.tokenize(text) == tokenizer.tokenize(text)


@pytest.fixture(scope="module")
def trained():
    """A tokenizer that was trained for two target languages."""
    return Tokenizer.train(texts=corpus(), vocabulary_size=400, languages=["de", "zh-Hans"])


def test_a_trained_tokenizer_has_a_piece_for_each_target_language(trained, tmp_path):
    assert trained.languages == {"de": 4, "zh-Hans": 5}
    assert trained.tokens([4, 5]) == [">>de<<", ">>zh-Hans<<"]
    assert (trained.target_language, trained.source_language) == ("de", None)
    assert (trained.source_prefix, trained.target_prefix) == ((4,), ())
    dog, chinese = trained.tokenize("the dog"), trained.for_languages(target="zh-Hans")
    assert trained.tokenize("the dog", special_tokens=True) == [4, *dog, 3]
    assert chinese.tokenize("the dog", special_tokens=True) == [5, *dog, 3]
    assert chinese.tokenize("the dog", "target", special_tokens=True) == [*dog, 3]
    chinese.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.target_language == "zh-Hans"
    assert loaded.writes_like(chinese) and not loaded.writes_like(trained)


def test_only_the_tags_of_a_trained_tokenizer_are_tags(trained):
    dog = trained.tokenize("the dog")
    for tag in (">>zh-Hans<<", b">>zh-Hans<< "):
        text = tag + (b"the dog" if isinstance(tag, bytes) else "the dog")
        assert trained.tokenize(text, special_tokens=True) == [5, *dog, 3]
    for text in (">>Achtung<< Baustelle", ">>zh<< the dog", " >>de<< the dog", ">>de< <"):
        ids = trained.tokenize(text)
        assert not {4, 5}.intersection(ids)
        assert trained.detokenize(ids, side="source") == text.strip()
    assert trained.tokenize(">>de<< the dog", side="target")[0] != 4
    second = trained.tokenize(">>zh-Hans<<>>de<<")
    assert second[0] == 5 and trained.detokenize(second, side="source") == ">>de<<"


def test_the_other_direction_of_a_trained_tokenizer(trained):
    two = Tokenizer.train(
        texts=corpus(),
        target_texts=[text[::-1] for text in corpus()],
        vocabulary_size=400,
        languages=["de", "en"],
    )
    for tokenizer in (trained, two):
        other = tokenizer.swapped()
        assert other.languages == tokenizer.languages
        assert other.vocabulary("source") is tokenizer.vocabulary("target")
        for code in tokenizer.languages:
            rows = other.for_languages(target=code).tokenize("the dog", special_tokens=True)
            dog = tokenizer.tokenize("the dog", side="target", special_tokens=True)
            assert rows == [tokenizer.languages[code], *dog]


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ("de", "must be a list of codes, such as .*, not 'de'"),
        ([1], "must be a list of codes"),
        (["de", "de"], "The language 'de' occurs twice"),
        (["a b"], "'a b' must be a code without spaces"),
        (["x<<"], "'x<<' must be a code without spaces"),
    ],
)
def test_languages_of_a_training_are_codes(languages, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(texts=["the dog"], languages=languages)
    assert check_codes(iter(["de", "fr"])) == ["de", "fr"]  # They are read once.


def test_language_errors(multilingual, tokenizer):
    with pytest.raises(
        ValueError, match="The source language 'en' is unknown; choose one of de, fr, zh"
    ):
        multilingual.for_languages(source="en")
    with pytest.raises(ValueError, match="has no choice of languages; leave out 'de'"):
        tokenizer.for_languages(target="de")
    model = tokenizer.sentencepiece_model()
    with pytest.raises(ValueError, match="A language place must be one of source_prefix.*'behind'"):
        Tokenizer.from_sentencepiece(
            model, languages={"de": 5}, language_places={"source": ["behind"]}
        )
    with pytest.raises(
        ValueError,
        match="The language id 600 is outside of the vocabulary of 600 pieces",
    ):
        Tokenizer.from_sentencepiece(
            model, languages={"de": 600}, language_places={"target": ["target_prefix"]}
        )


def test_an_unknown_run_that_is_a_piece_of_the_vocabulary_has_its_id():
    own = Tokenizer.train(
        texts=corpus(), vocabulary_size=300, byte_fallback=False, model_type="unigram"
    )
    pieces = [*own.vocabulary().pieces, "\u00fc", "\u00fc\u00e4", "\u00f1"]
    each = Tokenizer.from_sentencepiece(
        own.sentencepiece_model(),
        vocabulary=pieces,
        **{f"{name}_id": i for name, i in own.special_ids.items()},
        control_ids=[302],
    )
    assert each.tokens(each.tokenize("dog\u00fc dog")) == [
        *own.tokens(own.tokenize("dog")),
        "\u00fc",
        *own.tokens(own.tokenize("dog")),
    ]
    # SentencePiece joins unknown characters: a run is looked up as a whole. A control id is never
    # reached.
    assert each.tokenize(["\u00fc\u00e4", "\u00e4", "\u00e4\u00fc", "\u00f1"]) == [
        [*own.tokenize("\u00e4")[:-1], token] for token in (301, 1, 1, 1)
    ]
    assert each.detokenize(each.tokenize("dog\u00fc dog")) == "dog\u00fc dog"


class Column:
    """A column of a dataset: an iterable of texts that is no list."""

    def __init__(self, texts):
        self.texts = texts

    def __iter__(self):
        return iter(self.texts)


def test_texts_are_taken_in_place_of_files(tmp_path):
    """As by `ParallelDataset`; a list of str has the names of files."""
    lines = ["the dog sees a cat"] * 9
    for texts in (Column(lines), iter(lines), np.array(lines), Column(map(str.encode, lines))):
        found = Tokenizer.train(texts, vocabulary_size=275)
        assert found.tokenize(lines) == Tokenizer.train(texts=lines, vocabulary_size=275).tokenize(
            lines
        )
    two = Tokenizer.train(Column(lines), Column(["der Hund"] * 9), vocabulary_size=(275, 268))
    assert (two.vocabulary_size, two.target_vocabulary_size) == (275, 268)
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    for paths in ([str(path)], (path,), iter([str(path)]), iter([path]), tmp_path.glob("*.txt")):
        found = Tokenizer.train(paths, vocabulary_size=275)
        assert found.vocabulary_size == 275
    with pytest.raises(FileNotFoundError, match="the dog sees a cat.*texts="):
        Tokenizer.train(lines, vocabulary_size=275)


def test_a_tokenizer_shows_its_sizes_and_languages():
    tokenizer = Tokenizer.train(texts=["the dog sees a cat"] * 9, vocabulary_size=275)
    assert repr(tokenizer) == (
        "Tokenizer(vocabulary_size=275, normalization='nmt_nfkc', joint=True)"
    )
