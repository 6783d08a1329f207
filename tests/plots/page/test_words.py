"""Tokens that are grouped to words, and texts that are cut where hypotheses part."""

import pytest

from kformer.plots.page.words import tree_of, units_of, words_of

pytestmark = pytest.mark.any_backend


def test_tokens_are_grouped_to_words():
    tokens = ["deu_Latn", "\u2581A", "\u2581hor", "se", ".", "\u2581", "<0xE7>", "<0x8C>", "<0xAB>"]
    words = words_of([*tokens, "</s>"])
    assert [(word["text"], word["space"], word["tokens"]) for word in words] == [
        ("A", True, [1]),
        ("horse.", True, [2, 3, 4]),
        ("猫", True, [5, 6, 7, 8]),
    ]
    assert [word["text"] for word in words_of(["\u2581五", "点", "二十", "分", "\u2581pm"])] == [
        *("五", "点", "二十", "分", "pm")
    ]
    # Bytes that are not characters, and a tag of each published kind.
    assert [word["text"] for word in words_of(["<0xE7>", "x", ">>deu<<", "__de__", "<unk>"])] == [
        "\ufffdx"
    ]
    assert words_of([]) == []


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("half past, 4", ["half", " past", ",", " 4"]),
        ("五点 二十分。", ["五", "点", " 二", "十", "分", "。"]),
        ("ab五c  ", ["ab", "五", "c", "  "]),
        ("ก็ดี", ["ก็", "ดี"]),
        ("", []),
    ],
)
def test_units(text, units):
    assert units_of(text) == units and "".join(units) == text


def test_the_tree_parts_where_texts_do():
    texts = ["a b c", "a b d", "a e", "a b"]

    def leaves(node, text=""):
        text += node["text"]
        if "rank" in node:
            return {node["rank"]: text}
        return {k: v for child in node["children"] for k, v in leaves(child, text).items()}

    tree = tree_of(texts)
    assert leaves(tree) == dict(enumerate(texts))
    assert tree["text"] == "a" and [child["text"] for child in tree["children"]] == [" b", " e"]
    assert [child["text"] for child in tree["children"][0]["children"]] == [" c", " d", ""]
    # The same text twice, from other tokens.
    assert len(tree_of(["a", "a"])["children"]) == 2
