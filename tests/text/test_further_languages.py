"""`Tokenizer.with_languages`: old ids and old text stay, new text gets pieces of its own."""

import random

import pytest

from kformer.text import Tokenizer
from tests.text_samples import corpus, tricky_texts

pytestmark = pytest.mark.any_backend
_RUSSIAN = "каждый вечер большой маленький город мужчина женщина лошадь медленно красный".split()
_FRENCH = "quatre heures et demie une grande maison rouge près de la rivière forêt".split()
ENGLISH = [text for text in corpus() if text.isascii()]


def sentences(words, count=300, seed=3):
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=6)) + "." for _ in range(count)]


@pytest.fixture(
    scope="module", params=[("bpe", "nmt_nfkc"), ("unigram", "nmt_nfkc"), ("bpe", "identity")]
)
def old(request):
    kind, normalization = request.param
    settings = {"vocabulary_size": 420, "model_type": kind, "normalization": normalization}
    return Tokenizer.train(texts=ENGLISH, languages=["de", "en"], **settings)


def test_old_ids_stay_and_new_text_is_shorter(old, tmp_path):
    russian = sentences(_RUSSIAN)
    new = old.with_languages(["ru"], texts=russian, former_texts=ENGLISH)
    size = old.vocabulary_size
    assert new.vocabulary().pieces[:size] == old.vocabulary().pieces
    assert new.vocabulary_size == new.target_vocabulary_size > size and new.joint
    assert new.languages == {**old.languages, "ru": size} and old.languages == {"de": 4, "en": 5}
    assert new.target_language == old.target_language == "de"
    for text in ENGLISH[:50]:
        assert new.tokenize(text, special_tokens=True) == old.tokenize(text, special_tokens=True)
    ids, before = new.tokenize(russian), old.tokenize(russian)
    assert sum(map(len, ids)) < sum(map(len, before)) / 3
    assert new.detokenize(ids) == russian
    assert all(i < len(new.vocabulary()) for row in ids for i in row)
    dog = new.tokenize("the dog")
    russian_dog = new.for_languages(target="ru").tokenize("the dog", special_tokens=True)
    assert russian_dog == new.tokenize(">>ru<<the dog", special_tokens=True) == [size, *dog, 3]
    assert new.tokenize(">>fr<<") == old.tokenize(">>fr<<")
    new.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.writes_like(new) and loaded.languages == new.languages
    assert not new.writes_like(old)
    for text in tricky_texts(150):
        assert new.detokenize(new.tokenize(text)) == old.detokenize(old.tokenize(text))


def test_text_of_the_languages_so_far_gets_no_new_pieces(old):
    french, unlike = sentences(_FRENCH), old.with_languages(["fr"], texts=sentences(_FRENCH))
    english = [text.replace("the", "maison") for text in ENGLISH]
    assert unlike.tokenize(english) != old.tokenize(english)
    like = old.with_languages(["fr"], texts=french, former_texts=english)
    assert like.tokenize(english) == old.tokenize(english)
    assert sum(map(len, like.tokenize(french))) < sum(map(len, old.tokenize(french)))
    assert like.tokens(like.tokenize("è")) == ["▁", "è"]
    none = old.with_languages(["fr"], texts=french, num_pieces=0)
    names = none.vocabulary().pieces[old.vocabulary_size :]
    assert names[0] == ">>fr<<" and {"è", "ê"} <= set(names[1:])
    assert all(len(piece) == 1 for piece in names[1:])
    few = old.with_languages(["fr"], texts=french, num_pieces=3)
    assert none.vocabulary_size < few.vocabulary_size <= none.vocabulary_size + 3


def test_a_tokenizer_of_one_direction_gets_languages():
    old = Tokenizer.train(texts=ENGLISH, vocabulary_size=400)
    new = old.with_languages(["de", "fr"], texts=sentences(_FRENCH))
    assert new.languages == {"de": 400, "fr": 401} and new.target_language == "de"
    assert new.tokenize("the dog", special_tokens=True)[0] == 400
    assert new.tokenize("the dog", special_tokens=True)[1:] == old.tokenize(
        "the dog", special_tokens=True
    )
    with pytest.raises(ValueError, match=r"name it, too, before the new one, such as \['de', 'fr'"):
        old.with_languages(["fr"])
    with pytest.raises(ValueError, match="has the language 'fr' already"):
        new.with_languages(["fr"])
    larger = new.with_languages(["ru"])
    assert larger.languages == {"de": 400, "fr": 401, "ru": new.vocabulary_size}
    source_only = old.with_languages(texts=sentences(_RUSSIAN))
    assert source_only.languages == {} and source_only.vocabulary_size > 400
    assert source_only.tokenize("the dog", special_tokens=True) == old.tokenize(
        "the dog", special_tokens=True
    )


def test_two_vocabularies_grow_apart_and_can_be_swapped():
    reverse = [text[::-1] for text in ENGLISH]
    old = Tokenizer.train(
        texts=ENGLISH, target_texts=reverse, vocabulary_size=(400, 380), languages=["de", "en"]
    )
    new = old.with_languages(["ru"], target_texts=sentences(_RUSSIAN))
    assert new.vocabulary_size == 401 and new.target_vocabulary_size > 400
    assert new.languages["ru"] == 400 and new.id_to_token(380, "target") == ">>ru<<"
    assert new.for_languages(target="ru").tokenize(">>en<<dog")[0] == 5
    other = new.for_languages(target="ru").swapped()
    assert other.languages == {"de": 4, "en": 5, "ru": 380} and other.target_language == "ru"
    dog = new.tokenize("the dog", "target", special_tokens=True)
    assert other.tokenize("the dog", special_tokens=True) == [380, *dog]
    assert other.tokenize(">>ru<<the dog", special_tokens=True) == [380, *dog]
    assert other.swapped().languages == new.languages


def test_the_tokenizer_of_a_published_model_takes_no_languages(old):
    published = Tokenizer.from_sentencepiece(old.sentencepiece_model())
    assert old.is_extendable and not published.is_extendable
    with pytest.raises(ValueError, match="takes no further languages: train a model that has more"):
        published.with_languages(["de", "fr"])
    published = Tokenizer.from_sentencepiece(
        old.sentencepiece_model(), languages=old.languages, language_places={"target": ["start"]}
    )
    with pytest.raises(ValueError, match="instead of 'fr' choose one of de, en"):
        published.with_languages(["fr"])
