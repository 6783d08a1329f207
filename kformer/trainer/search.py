"""Chooses the default search of a run at the end of its training."""

import dataclasses

import numpy as np

from kformer.evaluation.scores import length_ratio, length_remark, suitable_tokenizer
from kformer.evaluation.search_choice import (
    LEAST_SENTENCES,
    MIDDLE_PENALTY,
    choose_search,
    length_limits,
)
from kformer.saving import run_directory
from kformer.saving.model_files import load_model
from kformer.text import Tokenizer
from kformer.trainer.data import validation_lines
from kformer.translating.translator import Translator
from kformer_options.search import read_options

# The key of `config.json` that has the reason of a chosen search.
REASON = "search_reason"
_MOST_SENTENCES = 2000
# The lengths of fewer translations say too little.
_LEAST_MEASURED = 10
# The three searches generate each target token three times, and a token that a beam of 4 generates
# takes about as long as four tokens of training. So with this share of the training's tokens they
# take less than a twentieth of its time.
_SHARE = 1 / 20 / (3 * 4)


def settle_search(path, options, train, valid, steps, report):
    """Chooses the search on the validation set, and writes it to the run's `config.json`.

    Where that is not possible, since there is no validation set or the training was too short, a
    new run has the length penalty that `choose_search` begins with. A run that began from another
    keeps the search of that, and so does one that began from a published model.

    Args:
        path: `pathlib.Path` of the run directory, whose training has ended.
        options: `TrainOptions`.
        train, valid: `ParallelDataset`; `valid` may be `None`.
        steps: int. The steps of the training.
        report: function that takes a sentence.
    """
    if options.choose_search is False:
        return
    config = run_directory.read_config(path)
    # What an earlier end of this training chose is not where the next choice begins.
    search = None if REASON in config else config.get("search")
    base = None if search is None else read_options(search, path)
    if base is not None and base.mode != "kformer":
        if valid is not None:
            report("search: that of the published model from which the training began")
        return
    count, why = 0, "there is no validation set"
    if valid is not None:
        sources, references = validation_lines(options)
        tokens = train.num_tokens * steps / train.steps_per_epoch * _SHARE
        affordable = int(tokens * valid.num_pairs / valid.num_tokens)
        count = min(affordable, len(sources), _MOST_SENTENCES)
        why = "the training or the validation set is too short to choose one on it"
    elif base is not None:
        return
    model = load_model(path / "model.keras", compiled=False)
    translator = Translator(model, Tokenizer.load(path / "tokenizer"), base)
    lengths = train.corpus.lengths("source"), train.corpus.lengths("target").astype("int64") - 1
    if count:
        indices = np.linspace(0, len(sources) - 1, count).round().astype(int)
        sample = [[lines[i] for i in indices] for lines in (sources, references)]
    ratio = 1.0
    if count >= LEAST_SENTENCES:
        choice = choose_search(translator, *sample, lengths=lengths)
        chosen, reason, ratio = choice.options, choice.reason, choice.length_ratio
    elif base is not None:
        chosen, reason = None, f"search: that of the run from which the training began, since {why}"
    else:
        limits = dict(zip(("length_ratio", "length_offset"), length_limits(*lengths), strict=True))
        chosen = dataclasses.replace(translator.options, length_penalty=MIDDLE_PENALTY, **limits)
        reason = (
            f"search: length penalty {MIDDLE_PENALTY:g}, at most {chosen.length_ratio:g} times the "
            f"source's tokens and {chosen.length_offset}, since {why}"
        )
    report(reason)
    if chosen is not None:
        translator.options = chosen
        entries = {"search": dataclasses.asdict(chosen), REASON: reason}
        run_directory.write_config(path, {**config, **entries})
    if _LEAST_MEASURED <= count < LEAST_SENTENCES:
        translations = translator(sample[0])
        ratio = length_ratio(translations, sample[1], suitable_tokenizer(sample[1]))
    if remark := length_remark(ratio):
        report(remark)
