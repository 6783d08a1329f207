"""BLEU and chrF agree with sacreBLEU's own command, on a fixed sample."""

import subprocess
import sys

import pytest

from kformer.evaluation.scores import bleu_tokenizers, evaluate
from kformer.translating.translation import Hypothesis, Translation

pytestmark = pytest.mark.any_backend

HYPOTHESES = ["The dog bit the man.", "It was not surprising.", "The man had just bitten him!"]
REFERENCES = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
OTHERS = ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."]
CHINESE = (
    ["早上六点五十分", "一万二千三百零五美元", "2031年5月3日"],
    ["早上六点五十五分", "一万二千三百零五美元", "2031年5月13日"],
)


class FixedTranslator:
    """Returns fixed translations, and keeps the options of the last call."""

    def __init__(self, translations):
        self.translations, self.asked = translations, None

    def translate(self, texts, *, batch_size, progress, **options):
        self.asked = {"batch_size": batch_size, **options}
        progress(len(texts))
        return [
            Translation([Hypothesis(text, 0.0, 0.0, [])], i == 1)
            for i, text in enumerate(self.translations)
        ]


def sacrebleu_command(folder, hypotheses, references, *options):
    """What `sacrebleu` prints: BLEU and chrF."""
    for name, lines in (
        ("hypotheses", hypotheses),
        *((f"references{i}", lines) for i, lines in enumerate(references)),
    ):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    names = [folder / f"references{i}" for i in range(len(references))]
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        *names,
        "-i",
        folder / "hypotheses",
        "-m",
        "bleu",
        "chrf",
        "-b",
        "-w",
        "6",
        *options,
    ]
    output = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=True
    ).stdout
    return [float(part) for part in output.strip("[]\n ").replace(",", " ").split()]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "hypotheses, references, options, flags",
    [
        (HYPOTHESES, [REFERENCES], {}, []),
        (HYPOTHESES, [REFERENCES, OTHERS], {"lowercase": True}, ["-lc", "--chrf-lowercase"]),
        (CHINESE[0], [CHINESE[1]], {"tokenize": "zh"}, ["-tok", "zh"]),
        (CHINESE[0], [CHINESE[1]], {}, ["-tok", "zh"]),  # It suits the references.
    ],
)
def test_scores_are_those_of_the_sacrebleu_command(
    tmp_path, hypotheses, references, options, flags
):
    found = evaluate(
        FixedTranslator(hypotheses), ["x"] * 3, references, progress=lambda done: None, **options
    )
    assert [found.bleu, found.chrf] == pytest.approx(
        sacrebleu_command(tmp_path, hypotheses, references, *flags), abs=1e-6
    )
    assert 10 < found.bleu < 90 and 10 < found.chrf < 100
    tokenize = flags[1] if "-tok" in flags else "13a"
    assert (
        f"tok:{tokenize}" in found.bleu_signature
        and f"nrefs:{len(references)}" in found.bleu_signature
    )
    assert (
        "case:lc" in found.chrf_signature
        if options.get("lowercase")
        else "case:mixed" in found.chrf_signature
    )


@pytest.mark.parametrize(
    "count, words", [(6, "shorter"), (7, None), (8, None), (10, None), (11, "longer")]
)
def test_translations_that_are_far_too_short_or_too_long_are_said(count, words):
    """Outside of 0.8 to 1.25 times the words of the references."""
    translator = FixedTranslator(["a " * count * 2] * 3)
    found = evaluate(translator, ["x"] * 3, ["a b c d " * 4] * 3, progress=lambda done: None)
    assert found.length_ratio == found.as_dict()["length_ratio"] == pytest.approx(count / 8)
    assert (found.length_remark is None) == (words is None)
    assert words is None or f"much {words} than their references" in found.length_remark


def test_the_result_has_translations_and_truncated_sources():
    translator, counts = FixedTranslator(HYPOTHESES), []
    found = evaluate(
        translator, ["x"] * 3, HYPOTHESES, batch_size=7, progress=counts.append, beam_size=5
    )
    assert found.hypotheses == HYPOTHESES and found.truncated == [1] and counts == [3]
    assert translator.asked == {"batch_size": 7, "beam_size": 5}
    assert found.bleu == pytest.approx(100) and found.as_dict()["sentences"] == 3


@pytest.mark.parametrize(
    "sources, references, options, words",
    [
        ([], [], {}, "There is nothing to evaluate"),
        (["x", "x"], ["x"], {}, "2 lines in the sources, but 1 in the references"),
        (["x"], [["x"], []], {}, "1 line in the sources, but 0 in the references"),
        (["x"], ["x"], {"tokenize": "moses"}, "tokenize must be one of 13a, char"),
    ],
)
def test_bad_input_is_refused_before_anything_is_translated(sources, references, options, words):
    translator = FixedTranslator(HYPOTHESES)
    with pytest.raises(ValueError, match=words):
        evaluate(translator, sources, references, **options)
    for sides in (("test.en", ["x"]), (["x"], "test.de")):
        with pytest.raises(TypeError, match="Give a list of texts, not one text"):
            evaluate(translator, *sides)
    assert translator.asked is None


def test_the_usual_tokenizations_are_known():
    assert {"none", "13a", "zh", "char", "intl", "ja-mecab"} <= set(bleu_tokenizers())
