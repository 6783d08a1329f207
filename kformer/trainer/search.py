"""Chooses the default search of a run at the end of its training."""

import dataclasses
import itertools

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
from kformer.translating.translator import SEARCH_BY_LANGUAGE, Translator
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
_SIZES = ("num_pairs", "num_tokens")
# What is chosen, of the options of a search.
_CHOSEN = ("length_penalty", "length_ratio", "length_offset")


def settle_search(path, options, train, validation, lengths, steps, report):
    """Chooses the search on the validation set, and writes it to the run's `config.json`.

    Where that is not possible, since there is no validation set or the training was too short, a
    new run has the length penalty that `choose_search` begins with. A run that began from another
    keeps the search of that, and so does one that began from a published model.

    A model of several directions has a choice for each target language, made on the validation sets
    of all directions into it.

    Args:
        path: `pathlib.Path` of the run directory, whose training has ended.
        options: `TrainOptions`.
        train: `ParallelDataset` of the training.
        validation: list of tuples: the `Text` of a validation set, and its `ParallelDataset`.
        lengths: function that returns the tokens of the training pairs by target language, as
            `TextOfTraining.lengths`.
        steps: int. The steps of the training.
        report: function that takes a sentence.
    """
    if options.choose_search is False:
        return
    config = run_directory.read_config(path)
    tokenizer, former = Tokenizer.load(path / "tokenizer"), config
    default = tokenizer.target_language
    if REASON in config:
        # What an earlier end of this training chose is not where the next choice begins.
        sentences = config[REASON].split("; ")
        chosen_languages = {sentence.partition(": search:")[0] for sentence in sentences}
        searches = config.get(SEARCH_BY_LANGUAGE, {})
        searches = {code: searches[code] for code in searches if code not in chosen_languages}
        former = {SEARCH_BY_LANGUAGE: searches}
        former |= {"search": config["search"]} if default in searches else {}
    base = read_options(former["search"], path) if former.get("search") is not None else None
    if base is not None and base.mode != "kformer":
        if validation:
            report("search: that of the published model from which the training began")
        return
    model = load_model(path / "model.keras", compiled=False)
    translator = Translator(model, tokenizer, base, former)
    lengths = lengths()
    tokens = train.num_tokens * steps / train.steps_per_epoch * _SHARE / len(lengths)
    others = former.get(SEARCH_BY_LANGUAGE, {})
    entries, reasons, by_language = {}, [], dict(others)
    for language, pair in lengths.items():
        own, name = translator, ""
        if language is not None:
            own, name = translator.for_languages(target=language), f"{language}: "
        sets = [each for each in validation if language in (None, each[0].target_language)]
        # A language that was added has no search yet.
        has_base = base is not None and (language in (None, default) or language in others)
        chosen, reason, remark = _choice(own, sets, pair, tokens, has_base)
        for sentence in filter(None, (reason, remark)):
            report(name + sentence)
        if chosen is None:
            continue
        reasons.append(name + reason)
        if language in (None, default):
            entries["search"] = dataclasses.asdict(chosen)
        if language is not None:
            by_language[language] = {name: getattr(chosen, name) for name in _CHOSEN}
    if by_language:
        # Where the default language keeps its search, one gets back to it from another language.
        kept = {name: getattr(translator.options, name) for name in _CHOSEN}
        by_language.setdefault(default, kept)
        entries[SEARCH_BY_LANGUAGE] = by_language
    if reasons:
        run_directory.write_config(path, {**config, **entries, REASON: "; ".join(reasons)})


def _choice(translator, validation, lengths, tokens, has_base):
    """The search of one target language, on as many sentences as some tokens allow.

    Returns:
        Tuple of the `SearchOptions`, or `None` if those of the translator stay; a sentence with the
        reason, or `None`; and one about the lengths of translations, or `None`.
    """
    count, why = 0, "there is no validation set"
    if validation:
        sides = zip(*(validation_lines(text) for text, _ in validation), strict=True)
        sources, references = (list(itertools.chain(*lines)) for lines in sides)
        pairs, size = (sum(getattr(d, name) for _, d in validation) for name in _SIZES)
        count = min(int(tokens * pairs / size), len(sources), _MOST_SENTENCES)
        why = "the training or the validation set is too short to choose one on it"
        indices = np.linspace(0, len(sources) - 1, count).round().astype(int)
        sources, references = ([lines[i] for i in indices] for lines in (sources, references))
    if count >= LEAST_SENTENCES:
        choice = choose_search(translator, sources, references, lengths=lengths)
        return choice.options, choice.reason, length_remark(choice.length_ratio)
    if has_base and not validation:
        return None, None, None
    if has_base:
        chosen, reason = None, f"search: that of the run from which the training began, since {why}"
    else:
        limits = dict(zip(("length_ratio", "length_offset"), length_limits(*lengths), strict=True))
        chosen = dataclasses.replace(translator.options, length_penalty=MIDDLE_PENALTY, **limits)
        translator.options = chosen
        reason = (
            f"search: length penalty {MIDDLE_PENALTY:g}, at most {chosen.length_ratio:g} times the "
            f"source's tokens and {chosen.length_offset}, since {why}"
        )
    ratio = 1.0
    if count >= _LEAST_MEASURED:
        ratio = length_ratio(translator(sources), references, suitable_tokenizer(references))
    return chosen, reason, length_remark(ratio)
