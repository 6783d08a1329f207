"""Models that other toolkits wrote, with what those toolkits made of 32 sentences."""

import pathlib

import numpy as np
from keras import ops

DATA = pathlib.Path(__file__).with_name("data")


def lines(name, file):
    """The lines of a file of a fixture."""
    text = (DATA / name / file).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def log_probabilities(translator, sources, targets):
    """The log-probabilities of each token of targets, a list of arrays, in one batch.

    Args:
        translator: `kformer.Translator`.
        sources, targets: lists of lists of ids, with the end token.
    """
    model = translator.model
    targets = [list(target) for target in targets]
    inputs = {
        "source_ids": _padded(sources, model.pad_id),
        "target_ids": _padded([[model.start_id, *row[:-1]] for row in targets], model.pad_id),
    }
    logits = ops.convert_to_numpy(model(inputs)).astype("float64")
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return [table[np.arange(len(row)), row] for table, row in zip(logits, targets, strict=True)]


def largest_difference(translator, name, *, pieces="greedy.pieces", scores="greedy.scores.txt"):
    """The largest difference of a log-probability from those of a fixture: lines of a sum, a tab,
    and a number for each piece and the end token.
    """
    tokenizer, end = translator.tokenizer, translator.model.end_id
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary("target").pieces)}
    targets = [[*(ids[piece] for piece in line.split()), end] for line in lines(name, pieces)]
    sources = tokenizer.tokenize(lines(name, "source.txt"), special_tokens=True)
    theirs = [np.array(line.partition("\t")[2].split(), float) for line in lines(name, scores)]
    ours = log_probabilities(translator, sources, targets)
    return max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True))


def _padded(rows, pad_id):
    array = np.full((len(rows), max(map(len, rows))), pad_id, "int32")
    for number, row in enumerate(rows):
        array[number, : len(row)] = row
    return array
