"""Documents through a model of several target languages."""

import pytest

import kformer
from kformer.documents import translate_document
from kformer.documents.translating import language_named
from tests.two_languages import CODES, new_translator

pytestmark = pytest.mark.any_backend

PAGE = '<html lang="en"><p>half past four</p><p>ten to six</p></html>'


@pytest.fixture(scope="module")
def translator():
    return new_translator()


def test_the_target_language_is_the_one_of_the_translation(translator):
    pages = {code: translator.document(PAGE, "html", target_language=code) for code in CODES}
    for code, page in pages.items():
        first, second = translator(["half past four", "ten to six"], target_language=code)
        assert page == f'<html lang="{code}"><p>{first}</p><p>{second}</p></html>'
        assert page == translator.for_languages(target=code).document(PAGE, "html")
    assert translator.document(PAGE, "html") == pages["de"] != pages["fr"]


def xliff(*codes):
    files = (
        f'<file target-language="{code}"><trans-unit id="a"><source>half past four</source>'
        "</trans-unit></file>"
        for code in codes
    )
    return f'<xliff version="1.2">{"".join(files)}</xliff>'


CATALOGUE = 'msgid ""\nmsgstr ""\n"Language: {}\\n"\n\nmsgid "half past four"\nmsgstr ""\n'


def test_a_document_that_names_a_language_is_translated_into_it(translator):
    for name in ("fr", "fr-CA", "fra"):
        pages = {"xliff": xliff(name), "po": CATALOGUE.format(name)}
        for format, page in pages.items():
            german, french = (
                translator.document(page, format, target_language=code) for code in CODES
            )
            assert translator.document(page, format) == french != german
    page = CATALOGUE.format("")
    german = translator.document(page, "po", target_language="de")
    assert translator.document(page, "po") == german


def test_the_language_of_a_document_is_no_guess():
    languages = ["yue_Hant", "zho_Hans", "zho_Hant", "deu_Latn"]
    for name, code in (("de-AT", "deu_Latn"), ("zh-Hant", "zho_Hant"), ("yue", "yue_Hant")):
        assert language_named([name, name], languages, "deu_Latn") == code
    assert language_named(["de-AT", "de"], languages, "zho_Hans") == "deu_Latn"
    for name in ("zh", "zh-TW"):
        with pytest.raises(ValueError, match=f"into '{name}', .* choose a target language"):
            language_named([name], languages, "deu_Latn")
        assert language_named([name], languages, "zho_Hant") == "zho_Hant"
    assert language_named(["zh-Hans"], languages, "zho_Hant") == "zho_Hans"
    assert language_named([], languages, "zho_Hant") is None


@pytest.mark.parametrize("codes", [("es",), ("de", "fr"), ("de", "es")])
def test_a_document_for_other_languages_is_refused(translator, codes):
    with pytest.raises(ValueError, match=f"into {', '.join(map(repr, codes))}, .* such as de, fr"):
        translator.document(xliff(*codes), "xliff")


def test_an_unknown_target_language_is_refused(translator):
    with pytest.raises(ValueError, match="The target language 'es' is unknown; choose one of de"):
        translate_document(translator, "noon", target_language="es")


def test_a_model_that_reads_its_source_language_reads_that_of_the_document(translator):
    trained = translator.tokenizer
    tokenizer = kformer.Tokenizer.from_sentencepiece(
        trained.sentencepiece_model(),
        control_ids=trained.languages.values(),
        languages=trained.languages,
        language_places={"source": ["source_prefix"], "target": ["target_prefix"]},
    ).for_languages("de", "fr")
    german = kformer.Translator(translator.model, tokenizer)
    french, text = german.for_languages("fr", "de"), "half past four"
    page = german.document(text, source_language="fr", target_language="de")
    assert page == french(text) != german.for_languages(target="de")(text)
    assert german.document(text, source_language="en") == german(text)  # For its sentences.
