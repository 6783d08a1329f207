"""Terms, forbidden terms, prefixes and alternatives of a translator, on the frozen run."""

import pathlib

import numpy as np
import pytest

import kformer
from kformer.text.text_constraints import TextConstraints
from kformer.text.word_pieces import is_word_character, word_joins

FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"
SOURCES = ["half past four", "noon", "", "seven o'clock", "a quarter to nine"]


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN)


@pytest.mark.any_backend(quickest="torch")
def test_terms_occur_and_others_do_not(translator):
    terms = [["七点"], [("上午", "下午")], ["四点"], [], ["九点", "晚上"]]
    found = translator.translate(SOURCES, terms=terms)
    for result, row in zip(found, terms, strict=True):
        for term in row if result.text else []:
            forms = term if isinstance(term, tuple) else (term,)
            assert any(form in result.text for form in forms)
    assert found[2].text == "" and found[3].text == translator(SOURCES[3])
    # One by one as together; without terms as ever.
    alone = [translator(text, terms=row) for text, row in zip(SOURCES, terms, strict=True)]
    assert alone == [result.text for result in found]
    assert translator(SOURCES, terms=[[]] * 5) == translator(SOURCES)


def test_forbidden_terms_do_not_occur(translator):
    free = translator(SOURCES)
    for beam_size in (1, 4):
        found = translator(SOURCES, forbidden_terms=[["点"]] * 5, beam_size=beam_size)
        assert "点" in "".join(free) and "点" not in "".join(found)
        assert found[2] == "" and all(found[:2])
    # A term that must occur goes before.
    both = translator("seven o'clock", terms=["点"], forbidden_terms=["点"])
    assert both.count("点") == 1


def test_every_way_to_write_a_forbidden_term_is_kept_out(translator):
    wanted = TextConstraints(translator.tokenizer, 1, forbidden_terms=[["七点"]])
    ways = wanted.rows([0]).forbidden[0]
    texts = {translator.tokenizer.detokenize([[i for i in way if i >= 0]])[0] for way in ways}
    assert all("七点" in text for text in texts) and len(ways) > 1


def test_translations_begin_with_their_prefixes(translator):
    prefixes = ["下午", "", "四", "七", "九点"]
    for search in ({"beam_size": 1}, {"beam_size": 4}, {"sampling": True}):
        found = translator.translate(SOURCES, prefixes=prefixes, **search)
        texts = [result.text for result in found]
        assert all(map(str.startswith, texts[:2] + texts[3:], prefixes[:2] + prefixes[3:]))
    assert translator(SOURCES, prefixes=[""] * 5) == translator(SOURCES)
    # A prefix costs nothing: with all but the end forced, the end's probability is the score.
    text = translator(SOURCES[0])
    (whole,) = translator.translate(SOURCES[:1], prefixes=[text])
    assert whole.text == text and whole.score > translator.translate(SOURCES[:1])[0].score


def test_alternatives_differ_behind_the_prefix(translator):
    found = translator.translate(SOURCES, prefixes=["", "", "", "七", ""], alternatives=3)
    for i, result in enumerate(found):
        at = (
            len(TextConstraints(translator.tokenizer, 1, prefixes=["七"]).prefix(0))
            if i == 3
            else 0
        )
        assert len(result.hypotheses) == 3
        if result.text:
            assert len({hypothesis.ids[at] for hypothesis in result.hypotheses}) == 3
    best = [hypothesis.text for hypothesis in found[0].hypotheses]
    assert translator(SOURCES[0], alternatives=3) == best and translator(SOURCES[0]) in best
    (free,) = translator.translate(SOURCES[:1])
    assert found[0].hypotheses[best.index(free.text)].score == pytest.approx(free.score, abs=1e-3)


@pytest.mark.any_backend(quickest="torch")
def test_alternatives_keep_to_the_options_of_the_search(translator):
    """Whose best translation is one of them, with its score."""
    (free,) = translator.translate(SOURCES[:1], prefixes=["七"])
    first = len(TextConstraints(translator.tokenizer, 1, prefixes=["七"]).prefix(0))
    for options in (
        {"renormalize": True},
        {"repetition_penalty": 0.01},  # Below 1 it makes repetition likelier.
        {"repetition_penalty": 0.01, "beam_size": 1, "renormalize": True},
        {"no_repeat_ngram_size": 1},
    ):
        options |= {"forbidden_ids": (free.hypotheses[0].ids[first],)}
        options |= {"prefixes": ["七"], "max_length": 8}
        (best,), (found,) = (
            translator.translate(SOURCES[:1], **options, **more)
            for more in ({}, {"alternatives": 5})
        )
        same = [each.score for each in found.hypotheses if each.ids == best.hypotheses[0].ids]
        assert same == [pytest.approx(best.score, rel=1e-4)]
        if "beam_size" in options:
            assert found.hypotheses[0].ids == best.hypotheses[0].ids
        elif "repetition_penalty" in options:
            assert found.hypotheses[0].ids[first] in found.hypotheses[0].ids[:first]
    for hypothesis in found.hypotheses:
        assert len(set(hypothesis.ids)) == len(hypothesis.ids)


def test_limits_are_raised_or_refused(translator):
    long = " ".join(["七点"] * 12)
    assert long in translator("noon", terms=[long], length_ratio=0.0, length_offset=1)
    with pytest.raises(ValueError, match="terms of text 1 need .* tokens, but max_length is 4"):
        translator("noon", terms=[long], max_length=4)


def test_errors_name_the_remedy(translator):
    for arguments, message in (
        ({"terms": [["七点"]], "beam_size": 1}, "need a beam, but beam_size is 1"),
        ({"terms": [["七点"]], "sampling": True}, "but the search samples"),
        ({"terms": [["七点"], []]}, "differ in length"),
        ({"terms": ["七点"]}, "terms of text 1 must be a list of terms"),
        ({"terms": [[""]]}, "The term '' of text 1 is empty"),
        ({"prefixes": ["七"], "shortlist": (5, 6)}, "leave the shortlist out"),
        ({"alternatives": 0}, "alternatives must be a whole number of at least 1"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            translator(["noon"], **arguments)


@pytest.mark.any_backend(quickest="torch")
def test_errors_name_the_text_in_the_whole_input(translator):
    """Also where the text is one of a later call, or the error comes in a branch of a search."""
    long = "七点" * 40
    tokenizer = kformer.Tokenizer.train(
        texts=["a b c"] * 20, vocabulary_size=11, byte_fallback=False
    )
    for arguments, message in (
        ({"prefixes": ["", "", long]}, "The prefix and the terms of text 103 need"),
        ({"prefixes": ["", "", long], "alternatives": 2}, "the terms of text 103 need"),
        ({"terms": [[], [long], []]}, "the terms of text 102 need"),
        ({"terms": [[], [], ["七点", ""]]}, "The term '' of text 103 is empty; leave it out"),
        ({"forbidden_terms": [[], [""], []]}, "The forbidden term '' of text 102 is empty"),
        ({"terms": [[], [3], []]}, "A term of text 102 must be"),
        ({"forbidden_terms": [[], [], "a"]}, "forbidden_terms of text 103 must be a list"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            translator.translate(["noon"] * 3, first_index=100, **arguments)
    for arguments, message in (
        ({"prefixes": ["a", "a", "é"]}, "The prefix 'é' of text 8 cannot be written"),
        ({"terms": [["a"], [("a", "é")], []]}, "The term 'é' of text 7 cannot be written"),
    ):
        with pytest.raises(ValueError, match=message):
            TextConstraints(tokenizer, 3, first_index=5, **arguments)
    # Nothing is asked of an empty text.
    assert translator.translate([""], prefixes=[long])[0].text == ""


@pytest.mark.any_backend
def test_where_words_end():
    assert [is_word_character(c) for c in "aß7é-.▁时한の"] == [True] * 4 + [False] * 6
    tokenizer = kformer.Tokenizer.train(
        texts=["der Hund und die Hunde, der Hundehütte"] * 20, vocabulary_size=290
    )
    vocabulary = tokenizer.vocabulary("target")
    joins = word_joins(vocabulary, len(vocabulary) + 3)
    assert len(joins.continues) == len(vocabulary) + 3 and not joins.continues[-3:].any()
    by_piece = dict(zip(vocabulary.pieces, joins.continues.tolist(), strict=False))
    assert by_piece["e"] and not by_piece[","] and not by_piece["▁der"] and by_piece["<0x41>"]
    assert not np.any(joins.is_open[[tokenizer.pad_id, tokenizer.end_id, tokenizer.unknown_id]])
