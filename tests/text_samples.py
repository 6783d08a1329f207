"""Texts for the tests of tokenizers: a small generated corpus, and difficult strings."""

import random

_ENGLISH = (
    "the a this every small big old young red green man woman child dog horse teacher driver "
    "house street river bridge garden kitchen market rides sees builds opens crosses watches "
    "paints near behind above under with without slowly quickly today yesterday morning "
    "evening beautiful forgotten neighbouring international"
).split()
_CHINESE = (
    "男人女人孩子骑着一匹红色的马在街上慢慢走过那座古老桥今天早上老师打开厨房门看见花园里有很多人"
)

SPACES = [
    " ",
    "  ",
    "\u00a0",
    "\u3000",
    "\u200b",
    "\t",
    "\n",
    "\r\n",
    "\u2009",
    "\u2028",
    "\u202f",
    "\ufeff",
    "\x85",
]
LITERALS = ["</s>", "<s>", "<pad>", "<unk>", "<0x41>", "<0x0A>", " \u2047 ", "\u2047", "\u2585"]
SIGNS = [
    "\u2581",
    "\u2581\u2581",
    "\x10",
    "\x10e",
    "\x10s",
    "\x10\u2581",
    "\ufffd",
    "\ue000",
    "\U0010fffd",
    "\x00",
]
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "😀"]
MARKS = [
    "e\u0301",
    "A\u030a",
    "क\u094dष",
    "\u1112\u1161\u11ab",
    "ﬁ",
    "①",
    "ｶﾞ",
    "\u2126",
    "\u0301",
    "㍿",
    "ＡＢＣ",
]
BAD_BYTES = [
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xe2\x96",
    b"\xf0\x9f\x98",
    b"\xf4\x90\x80\x80",
    b"\x80",
]


def corpus(size=1500, seed=0):
    """Sentences of English and Chinese words and numbers."""
    generator = random.Random(seed)
    sentences = []
    for index in range(size):
        if index % 3:
            words = generator.choices(_ENGLISH, k=generator.randint(3, 9))
            words.insert(generator.randint(0, len(words)), str(generator.randrange(5000)))
            sentences.append(" ".join(words).capitalize() + generator.choice(".!?"))
        else:
            sentences.append(
                "".join(generator.choices(_CHINESE, k=generator.randint(4, 12))) + "。"
            )
    return sentences


def tricky_texts(count, seed=1, bad_bytes=True):
    """`count` byte strings of fragments of every kind above.

    With `bad_bytes` some of them are not valid UTF-8.
    """
    generator = random.Random(seed)
    sentences = corpus(200, seed)
    kinds = [SPACES, LITERALS, SIGNS, EMOJI, MARKS, sentences]

    def fragment():
        kind = generator.randrange(len(kinds) + 4)
        if kind < len(kinds):
            return generator.choice(kinds[kind]).encode()
        if kind == len(kinds):
            return chr(generator.randrange(0x20)).encode()
        if kind == len(kinds) + 1:
            ranges = [(0x20, 0x600), (0x600, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000)]
            return chr(generator.randrange(*generator.choice(ranges))).encode()
        if kind == len(kinds) + 2:
            return (
                generator.choice(["a", "ab", ".", "?", "12", "人"]) * generator.randint(1, 9)
            ).encode()
        return generator.choice(BAD_BYTES) if bad_bytes and generator.random() < 0.5 else b""

    alone = [text.encode() for kind in kinds[:-1] for text in kind] + [
        b"",
        *(BAD_BYTES if bad_bytes else []),
    ]
    texts = [
        b"".join(fragment() for _ in range(generator.randint(0, 8)))
        for _ in range(count - len(alone))
    ]
    return alone + texts
