"""The tokenizer of a training: loaded, taken from another run, or trained."""

from kformer.text import Tokenizer
from kformer.text.vocabulary_size import describe_vocabulary_size
from kformer_options.training import default_of
from kformer_options.wording import counted


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
    sides = [lines.sources, lines.targets]
    files = sides if options.separate_vocabularies else [[*lines.sources, *lines.targets]]
    settings = {"seed": options.seed or default_of("seed"), "model_type": kind}
    tokenizer = Tokenizer.train(*files, vocabulary_size=options.vocabulary_size, **settings)
    size, is_apart = tokenizer.vocabulary_size, options.separate_vocabularies
    which = "a source and a target vocabulary" if is_apart else "one vocabulary for both sides"
    sentence = f"tokenizer: {kind}"
    if not options.tokenizer_type:
        sentence += ", which splits a text into fewer pieces than unigram does"
    sentence += f"; {which}, {size:,} pieces"
    if not options.vocabulary_size:
        sentence += f", {describe_vocabulary_size(size, lines.num_pairs)}"
    report(sentence)
    return tokenizer
