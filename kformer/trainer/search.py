"""Chooses the default search of a run at the end of its training."""

import dataclasses

import numpy as np

from kformer.evaluation.search_choice import LEAST_SENTENCES, choose_search
from kformer.saving import run_directory
from kformer.saving.model_files import load_model
from kformer.text import Tokenizer
from kformer.trainer.data import validation_lines
from kformer.translating.translator import Translator
from kformer_options.search import read_options

# The key of `config.json` that has the reason of a chosen search.
REASON = "search_reason"
_MOST_SENTENCES = 2000
# The three searches generate each target token three times, and a token that a beam of 4 generates
# takes about as long as four tokens of training. So with this share of the training's tokens they
# take less than a twentieth of its time.
_SHARE = 1 / 20 / (3 * 4)


def settle_search(path, options, train, valid, steps, report):
    """Chooses the search on the validation set, and writes it to the run's `config.json`.

    A run without a validation set keeps the search that it has, and so does one that began from a
    published model, whose search is its own.

    Args:
        path: `pathlib.Path` of the run directory, whose training has ended.
        options: `TrainOptions`.
        train, valid: `ParallelDataset`; `valid` may be `None`.
        steps: int. The steps of the training.
        report: function that takes a sentence.
    """
    if valid is None or options.choose_search is False:
        return
    config = run_directory.read_config(path)
    # What an earlier end of this training chose is not where the next choice begins.
    search = None if REASON in config else config.get("search")
    base = None if search is None else read_options(search, path)
    if base is not None and base.mode != "kformer":
        report("search: that of the published model from which the training began")
        return
    sources, references = validation_lines(options)
    tokens = train.num_tokens * steps / train.steps_per_epoch * _SHARE
    affordable = int(tokens * valid.num_pairs / valid.num_tokens)
    count = min(affordable, len(sources), _MOST_SENTENCES)
    if count < LEAST_SENTENCES:
        why = "the training or the validation set is too short to choose one on it"
        report(f"search: the default, since {why}")
        return
    indices = np.linspace(0, len(sources) - 1, count).round().astype(int)
    model = load_model(path / "model.keras", compiled=False)
    translator = Translator(model, Tokenizer.load(path / "tokenizer"), base)
    lengths = train.corpus.lengths("source"), train.corpus.lengths("target").astype("int64") - 1
    sample = ([lines[i] for i in indices] for lines in (sources, references))
    choice = choose_search(translator, *sample, lengths=lengths)
    report(choice.reason)
    entries = {"search": dataclasses.asdict(choice.options), REASON: choice.reason}
    run_directory.write_config(path, {**config, **entries})
