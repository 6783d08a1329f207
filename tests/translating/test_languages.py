"""One model for several target languages, whose texts are translated together."""

import numpy as np
import pytest

import kformer
from kformer.data import TokenLists
from kformer.export.target_languages import target_choices
from kformer.translating.translator import SEARCH_BY_LANGUAGE
from tests.two_languages import new_model

TEXTS = ["half past four", "", "a quarter to ten", "noon", "half past four", "ten to six"]
CODES = ["de", "en", None, "en", "en", "de"]


def new_tokenizer(is_published):
    """A tokenizer that puts the language before the source, or before the target as NLLB's does."""
    trained = kformer.Tokenizer.train(texts=TEXTS, vocabulary_size=300, languages=["de", "en"])
    if not is_published:
        return trained
    return kformer.Tokenizer.from_sentencepiece(
        trained.sentencepiece_model(),
        control_ids=trained.languages.values(),
        languages=trained.languages,
        language_places={"target": ["target_prefix"]},
    ).for_languages(target="de")


@pytest.fixture(scope="module", params=["trained", "published"])
def translator(request):
    tokenizer = new_tokenizer(request.param == "published")
    return kformer.Translator(new_model(tokenizer), tokenizer)


@pytest.mark.parametrize("options", [{"beam_size": 3}, {"beam_size": 1}, {"mbr": 4, "seed": 7}])
def test_texts_of_several_languages_are_translated_as_alone(translator, options):
    together = translator.translate(TEXTS, target_language=CODES, **options)
    for i in (2, 3, 5):  # Of each language and of none; a graph costs seconds for each length.
        language = {} if CODES[i] is None else {"target_language": CODES[i]}
        [alone] = translator.translate(TEXTS[i : i + 1], **language, **options, first_index=i)
        assert together[i].text == alone.text
        assert together[i].score == pytest.approx(alone.score, abs=1e-4)
    # One text in two languages; samples differ by their index alone.
    assert "mbr" in options or together[0].text != together[4].text


@pytest.mark.any_backend
def test_constraints_and_words_go_with_their_texts(translator):
    terms = [[], [], ["noon"], [], ["ten"], []]
    settings = {"target_language": CODES, "terms": terms, "batch_size": 2}
    texts = translator(TEXTS, **settings)
    assert "noon" in texts[2] and "ten" in texts[4]
    codes = {**settings, "target_language": iter(CODES)}  # It can be read once.
    words = translator(TEXTS, **codes, alignment=True, confidence=True)
    assert [each.text for each in words] == texts
    german = translator.for_languages(target="de")
    [alone] = german(TEXTS[-1:], alignment=True, confidence=True)
    assert words[-1].alignment == alone.alignment
    for found, expected in zip(
        translator.attention(TEXTS[0], target_language="en"),
        translator.for_languages(target="en").attention(TEXTS[0]),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)
    done = []
    translator.translate(TEXTS, **settings, progress=done.append)
    assert done == sorted(done) and done[-1] == len(TEXTS)


@pytest.mark.any_backend
def test_each_language_has_the_search_that_was_chosen_for_it(translator):
    choice = {"en": {"length_penalty": 2.0, "length_offset": 3}}
    config = {SEARCH_BY_LANGUAGE: choice}
    chosen = kformer.Translator(translator.model, translator.tokenizer, config=config)
    english = chosen.for_languages(target="en")
    assert (english.options.length_penalty, english.options.length_offset) == (2.0, 3)
    assert chosen.options == chosen.for_languages(target="de").options
    other = translator.for_languages(target="en")
    expected = other.translate(TEXTS, length_penalty=2.0, length_offset=3)
    found = chosen.translate(TEXTS, target_language="en")
    assert [each.text for each in found] == [each.text for each in expected]
    [found] = chosen.translate(TEXTS[:1], target_language=["en"], length_penalty=0.5)
    [expected] = other.translate(TEXTS[:1], length_penalty=0.5, length_offset=3)
    assert found.hypotheses[0].rank == pytest.approx(expected.hypotheses[0].rank)


@pytest.mark.any_backend
def test_unknown_languages_are_refused(translator):
    with pytest.raises(ValueError, match="The target language 'fr' is unknown; choose one of de"):
        translator.translate(TEXTS, target_language="fr")
    with pytest.raises(ValueError, match="6 .*2"):
        translator.translate(TEXTS, target_language=["de", "en"])


@pytest.mark.any_backend
def test_token_lists_are_of_one_language_unless_the_source_names_it(translator):
    own = kformer.Translator(translator.model, translator.tokenizer)
    own.token_lists = lists = TokenLists.build(own.tokenizer, TEXTS, TEXTS, 5, 5)
    is_named = own.tokenizer.language_tags == "known"
    assert own.for_languages(target="de").token_lists is lists
    assert own.for_languages(target="en").token_lists is (lists if is_named else None)
    assert bool(target_choices(own, own.options, {})) == is_named
    assert target_choices(translator, own.options, {})
