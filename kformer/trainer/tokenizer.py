"""The tokenizer of a training: loaded, taken from another run, or trained."""

import random

from kformer.text import Tokenizer
from kformer.text.vocabulary_size import describe_vocabulary_size
from kformer.utils.lines import read_chunks
from kformer_options.text_files import count_lines
from kformer_options.training import default_of
from kformer_options.wording import counted

_CHUNK_LINES = 10_000


def provide_tokenizer(path, options, lines, shared, resumed, report):
    """Makes the tokenizer of a training and saves it in the run directory.

    Args:
        path: `pathlib.Path` of the run directory.
        options: `TrainOptions`.
        lines: `Lines` of the training text.
        shared: `Tokenizer` of the run that the training starts from or of its teachers, or `None`.
        resumed: bool. Whether the training is resumed; a tokenizer in the run directory is then
            loaded.
        report: function that takes a sentence about the choice.

    Returns:
        `Tokenizer`.

    Raises:
        VocabularySizeError: the given vocabulary size does not fit the corpus.
    """
    folder = path / "tokenizer"
    if resumed and (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder)
    if options.tokenizer:
        tokenizer = Tokenizer.load(options.tokenizer)
    elif shared is not None:
        tokenizer = shared
    else:
        report(f"tokenizer: training it on {counted(lines.num_pairs, 'pair')} ...")
        tokenizer = train_tokenizer(options, lines, report)
    tokenizer.save(folder)
    return tokenizer


def train_tokenizer(options, lines, report):
    """Trains the tokenizer of a training.

    Args:
        options: `TrainOptions`.
        lines: `Lines` of the training text.
        report: function that takes a sentence about the choice.

    Returns:
        `Tokenizer`.

    Raises:
        VocabularySizeError: the given vocabulary size does not fit the corpus.
    """
    kind = options.tokenizer_type or default_of("tokenizer_type")
    settings = {"seed": options.seed or default_of("seed"), "model_type": kind}
    settings["vocabulary_size"] = options.vocabulary_size
    is_apart = options.separate_vocabularies
    which = "a source and a target vocabulary" if is_apart else "one vocabulary for both sides"
    if len(lines.directions) > 1:
        languages = dict.fromkeys(target for _, target in lines.directions)
        if (options.effort or 1) > 1:  # Teachers of the other direction translate into these.
            languages |= dict.fromkeys(source for source, _ in lines.directions)
        texts = _Sample(lines.texts, settings["seed"])
        tokenizer = Tokenizer.train(texts=texts, languages=list(languages), **settings)
        which = f"one vocabulary for all languages, {', '.join(languages)} to translate into"
    else:
        sides = [text.source for text in lines.texts], [text.target for text in lines.texts]
        files = sides if is_apart else [[*sides[0], *sides[1]]]
        tokenizer = Tokenizer.train(*files, **settings)
    size = tokenizer.vocabulary_size
    sentence = f"tokenizer: {kind}"
    if not options.tokenizer_type:
        sentence += ", which splits a text into fewer pieces than unigram does"
    sentence += f"; {which}, {size:,} pieces"
    if not options.vocabulary_size:
        sentence += f", {describe_vocabulary_size(size, lines.num_pairs)}"
    report(sentence)
    return tokenizer


class _Sample:
    """Lines of all languages, each file as often as its weight says: the sentences from which a
    tokenizer for several directions is trained. A file that both directions of a pair read counts
    once.

    Args:
        texts: list of `Text`.
        seed: int.
    """

    def __init__(self, texts, seed):
        # The weights of a file by its path.
        self._weights, self._seed = {}, seed
        for text in texts:
            for path in (text.source, text.target):
                self._weights[path] = max(text.weight, self._weights.get(path, 0))
        self._counts = {path: count_lines(path) for path in self._weights}

    def __len__(self):
        return round(sum(self._weights[path] * count for path, count in self._counts.items()))

    def __iter__(self):
        generator = random.Random(self._seed)
        for path, weight in self._weights.items():
            copies, share = divmod(weight, 1)
            for chunk in read_chunks(path, "text", _CHUNK_LINES):
                for line in chunk:
                    yield from [line] * (int(copies) + (generator.random() < share))
