"""The graph's tokenizer gives the ids and the text of Python's."""

import random

import numpy as np
import pytest

import kformer.text
from tests.text_samples import corpus, tricky_texts

tf = pytest.importorskip("tensorflow", reason="the graph is TensorFlow's")
GraphTokenizer = pytest.importorskip("kformer.export.saved_model.tokenizer").GraphTokenizer
pytestmark = pytest.mark.any_backend

SETTINGS = [(kind, rule) for kind in ("unigram", "bpe") for rule in ("nmt_nfkc", "identity")]


def trained(model_type="unigram", normalization="nmt_nfkc", **settings):
    return kformer.text.Tokenizer.train(
        texts=corpus(),
        vocabulary_size=500,
        model_type=model_type,
        normalization=normalization,
        **settings,
    )


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda param: "-".join(param))
def tokenizer(request):
    return trained(*request.param)


@pytest.fixture(scope="module")
def texts():
    return tricky_texts(4000)


def decoded(strings):
    return [text.decode("utf-8") for text in strings.numpy().tolist()]


@pytest.mark.heavy
def test_ids_and_text_equal_pythons(tokenizer, texts):
    graph = GraphTokenizer(tokenizer)
    ids = tokenizer.tokenize(texts, special_tokens=True)
    graph_ids = tf.function(graph.tokenize)(tf.constant(texts))
    assert graph_ids.dtype == tf.int32
    assert graph_ids.to_list() == ids
    back = tokenizer.detokenize(ids)
    assert decoded(tf.function(graph.detokenize)(graph_ids)) == back
    assert len(set(back)) > 2000  # the strings are not all alike
    if tokenizer.normalization == "identity":
        assert back == [text.decode("utf-8", "replace") for text in texts]


def test_random_ids_give_equal_text(tokenizer):
    # Ids that no text gives: bytes that are not UTF-8, control ids in the middle, ids outside
    # of the vocabulary.
    generator = random.Random(0)
    size = tokenizer.vocabulary_size
    rows = [
        [generator.randrange(size) for _ in range(generator.randint(0, 12))] for _ in range(1000)
    ]
    rows += [
        [generator.randrange(-2, 300) for _ in range(generator.randint(0, 12))] for _ in range(1000)
    ]
    rows += [[size, size + 7, -1]]
    graph = GraphTokenizer(tokenizer)
    expected = tokenizer.detokenize(rows)
    assert any("\ufffd" in text for text in expected)
    assert decoded(graph.detokenize(tf.ragged.constant(rows, dtype=tf.int32))) == expected
    assert decoded(graph.detokenize(tf.ragged.constant(rows, dtype=tf.int64))) == expected
    pieces = graph.tokens(tf.ragged.constant(rows, dtype=tf.int32)).to_list()
    assert [[piece.decode() for piece in row] for row in pieces] == [
        tokenizer.tokens(row) for row in rows
    ]


def test_empty_batch_and_empty_strings():
    graph = GraphTokenizer(trained())
    roundtrip = tf.function(
        lambda texts: graph.detokenize(graph.tokenize(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    nothing = tf.constant([], tf.string)
    assert graph.tokenize(nothing).shape[0] == 0
    assert graph.tokens(graph.tokenize(nothing)).shape[0] == 0
    assert roundtrip(nothing).numpy().tolist() == []
    assert roundtrip(tf.constant([""])).numpy().tolist() == [b""]
    assert roundtrip(tf.constant(["", " ", "", "a dog"])).numpy().tolist() == [
        b"",
        b"",
        b"",
        b"a dog",
    ]
    assert graph.tokenize(tf.constant([""]), special_tokens=False).to_list() == [[]]


def test_padding_writes_nothing_and_dense_ids_of_any_rank():
    tokenizer = trained()
    graph = GraphTokenizer(tokenizer)
    texts = ["the dog", "a small bridge near the river"]
    ragged = graph.tokenize(texts)
    dense = ragged.to_tensor(tokenizer.pad_id)
    assert decoded(graph.detokenize(dense)) == texts
    n_best = tf.stack([dense, dense], axis=1)  # [B, N, T]
    assert [
        [text.decode() for text in row] for row in graph.detokenize(n_best).numpy().tolist()
    ] == [[text, text] for text in texts]
    assert graph.tokens(n_best).shape == n_best.shape
    for shape in ((2, 0), (0, 3), (0, 2, 3)):
        assert graph.detokenize(tf.zeros(shape, tf.int32)).numpy().tolist() == [b""] * shape[0]


def test_no_row_changes_another(texts):
    graph = GraphTokenizer(trained(normalization="identity"))
    chosen = texts[:60]
    together = graph.tokenize(tf.constant(chosen))
    alone = [graph.tokenize(tf.constant([text])).to_list()[0] for text in chosen]
    assert together.to_list() == alone
    assert graph.detokenize(together).numpy().tolist() == [
        graph.detokenize(tf.constant([row], tf.int32)).numpy()[0] for row in alone
    ]


def test_separate_sides_and_id_map():
    source, target = corpus(seed=0), corpus(seed=5)
    own = kformer.text.Tokenizer.train(
        texts=source, target_texts=target, vocabulary_size=(500, 450), model_type="unigram"
    )
    pieces = {side: list(own.vocabulary(side).pieces) for side in ("source", "target")}
    for side, seed in (("source", 1), ("target", 2)):
        random.Random(seed).shuffle(pieces[side])
    # Some pieces of the target model have no id: Python and the graph must make them unknown.
    dropped = [piece for piece in pieces["target"] if piece.startswith("\u2581")][:5]
    pieces["target"] = [piece for piece in pieces["target"] if piece not in dropped]
    ids = {}
    for name, piece in (("pad", "<pad>"), ("unknown", "<unk>"), ("start", "<s>"), ("end", "</s>")):
        ids[f"{name}_id"] = len(ids) * 7
        for side in pieces:  # one set of special ids for both sides
            pieces[side].remove(piece)
    for piece, token_id in zip(("<pad>", "<unk>", "<s>", "</s>"), ids.values(), strict=True):
        for side in pieces:
            pieces[side].insert(token_id, piece)
    tokenizer = kformer.text.Tokenizer.from_sentencepiece(
        own.sentencepiece_model("source"),
        own.sentencepiece_model("target"),
        vocabulary=pieces["source"],
        target_vocabulary=pieces["target"],
        source_prefix=[20, 21],
        target_suffix=[ids["end_id"], 22],
        **ids,
    )
    graph = GraphTokenizer(tokenizer)
    texts = source[:50] + target[:50] + ["</s> <pad>"]
    for side in ("source", "target"):
        expected = tokenizer.tokenize(texts, side=side, special_tokens=True)
        found = graph.tokenize(texts, side=side)
        assert found.to_list() == expected
        assert decoded(graph.detokenize(found, side=side)) == tokenizer.detokenize(
            expected, side=side
        )
        unknown = [tokenizer.unknown_id in row for row in expected]
        assert any(unknown) == (side == "target")
    with pytest.raises(ValueError, match="side must be one of source, target, but 'left'"):
        graph.tokenize(texts, side="left")


def test_joint_model_is_embedded_once():
    joint = trained()
    twice = kformer.text.Tokenizer.train(
        texts=corpus(), target_texts=corpus(seed=3), vocabulary_size=500, model_type="unigram"
    )
    for tokenizer, expected in ((joint, 1), (twice, 2)):
        models = [
            part for part in GraphTokenizer(tokenizer).submodules if hasattr(part, "vocab_size")
        ]
        assert len(models) == expected


def imported():
    """A tokenizer with language tags, a fixed language and pieces that its source model does not
    have.
    """
    own = kformer.text.Tokenizer.train(
        texts=corpus(),
        target_texts=corpus(seed=5),
        vocabulary_size=(400, 450),
        byte_fallback=False,
        model_type="unigram",
    )
    pieces = dict.fromkeys(
        [
            *own.vocabulary("source").pieces,
            *own.vocabulary("target").pieces,
            "\U0001f600",
            "\u00fc",
            ">>fr<<",
            ">>de<<",
        ]
    )
    ids = {piece: i for i, piece in enumerate(pieces)}
    return kformer.text.Tokenizer.from_sentencepiece(
        own.sentencepiece_model("source"),
        own.sentencepiece_model("target"),
        vocabulary=list(pieces),
        **{f"{name}_id": i for name, i in own.special_ids.items()},
        control_ids=[ids[">>fr<<"], ids[">>de<<"]],
        languages={"fr": ids[">>fr<<"], "de": ids[">>de<<"]},
        language_places={"target": ["source_prefix"]},
        language_tags=True,
    )


def test_only_the_tags_of_a_trained_tokenizer_are_tags():
    texts = ["the dog", "the cat sat on the mat", "die Katze sitzt"] * 20
    trained = kformer.Tokenizer.train(texts=texts, vocabulary_size=320, languages=["de", "en"])
    texts = ["the dog", ">>en<<the dog", ">>en<<>>de<< dog", ">>Achtung<< dog", " >>de<<", ">>de<<"]
    texts += [">>", "", ">>fr<< >>de<<"]
    for tokenizer in (trained, trained.for_languages(target="en")):
        expected = tokenizer.tokenize(texts, special_tokens=True)
        assert GraphTokenizer(tokenizer).tokenize(tf.constant(texts)).to_list() == expected


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_languages_that_were_added_later(model_type, texts):
    russian = ["Каждый вечер медленно", "Большой город, красный вечер", "Лошадь медленно"] * 20
    old = trained(model_type)
    new = old.with_languages(["zh", "ru"], texts=russian, former_texts=corpus(100))
    assert new.vocabulary_size > old.vocabulary_size + 20
    texts = [*texts[:1000], *russian[:3], ">>ru<<the dog", ">>fr<<the dog", ">>zh<<"]
    for tokenizer in (new, new.for_languages(target="ru")):
        expected = tokenizer.tokenize(texts, special_tokens=True)
        graph = GraphTokenizer(tokenizer)
        assert graph.tokenize(tf.constant(texts)).to_list() == expected
        back = decoded(graph.detokenize(tf.ragged.constant(expected)))
        assert back == tokenizer.detokenize(expected)


@pytest.mark.heavy
def test_language_tags_and_foreign_pieces(tmp_path, texts):
    tagged = [b">>fr<< " + text for text in texts[:300]] + [
        b">>xx<<" + text for text in texts[:300]
    ]
    tagged += [b">>" + text + b"<< a" for text in texts[:300]] + [
        b">>fr<<",
        b"",
        b">><<",
        b">>f\xffr<< a",
        b" >>fr<< a",
    ]
    every = texts[:1000] + tagged
    plain = imported()
    for tokenizer in (plain, plain.for_languages(target="de")):
        graph = GraphTokenizer(tokenizer)
        for side in ("source", "target"):
            for special_tokens in (False, True):
                expected = tokenizer.tokenize(every, side=side, special_tokens=special_tokens)
                assert (
                    graph.tokenize(
                        tf.constant(every), side=side, special_tokens=special_tokens
                    ).to_list()
                    == expected
                )
        assert graph.tokenize(tf.constant([], tf.string)).to_list() == []
        assert graph.tokenize(tf.constant(["the dog"])).to_list() == [
            tokenizer.tokenize("the dog", special_tokens=True)
        ]
    ids = plain.vocabulary().foreign_pieces
    assert {ids["\U0001f600"], ids["\u00fc"]} <= {
        i for row in plain.tokenize([*every, "\u00fc", "\U0001f600"]) for i in row
    }
    module = echo(plain.for_languages(target="de"))
    tf.saved_model.save(module, str(tmp_path / "echo"), signatures=module.echo)
    del module
    found = tf.saved_model.load(str(tmp_path / "echo")).signatures["serving_default"](
        text=tf.constant(every)
    )["ids"]
    rows = plain.for_languages(target="de").tokenize(every, special_tokens=True)
    width = max(map(len, rows))
    np.testing.assert_array_equal(found, [row + [0] * (width - len(row)) for row in rows])


def echo(tokenizer):
    module = tf.Module()
    module.tokenizer = GraphTokenizer(tokenizer)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def call(texts):
        ids = module.tokenizer.tokenize(texts)
        dense = ids.to_tensor(0)
        return {
            "ids": dense,
            "text": module.tokenizer.detokenize(ids, side="target"),
            "tokens": module.tokenizer.tokens(dense, side="source"),
        }

    module.echo = call
    return module


@pytest.mark.heavy
def test_saved_model_gives_the_same(tmp_path, tokenizer, texts):
    module = echo(tokenizer)
    tf.saved_model.save(module, str(tmp_path / "echo"), signatures=module.echo)
    del module
    loaded = tf.saved_model.load(str(tmp_path / "echo")).signatures["serving_default"]
    found = loaded(text=tf.constant(texts))
    rows = tokenizer.tokenize(texts, special_tokens=True)
    width = max(map(len, rows))
    np.testing.assert_array_equal(found["ids"], [row + [0] * (width - len(row)) for row in rows])
    assert decoded(found["text"]) == tokenizer.detokenize(rows)
    assert [piece.decode() for piece in found["tokens"].numpy()[3]][
        : len(rows[3])
    ] == tokenizer.tokens(rows[3])
    assert loaded(text=tf.constant([], tf.string))["text"].shape == (0,)
