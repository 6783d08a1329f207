"""The tokenizer of a training: loaded, taken from another run, or trained."""

import random

from kformer.data.corpus import SIDES
from kformer.saving.run_directory import read_config
from kformer.text import Tokenizer
from kformer.text.further_pieces import share_without_pieces
from kformer.text.sentencepiece_training import sample_texts
from kformer.text.vocabulary_size import describe_vocabulary_size
from kformer.translating.translator import DIRECTIONS
from kformer.utils.lines import read_chunks
from kformer_options.names import named
from kformer_options.text_files import count_lines
from kformer_options.training import default_of
from kformer_options.wording import counted

_CHUNK_LINES = 10_000
# So many lines show what a language is like: which characters it has, and of one that the model
# has already which words must keep their segmentation.
_SAMPLE_LINES = 10_000
# A language is in a script of its own if more of its characters have no pieces: many times what
# the training of a tokenizer leaves without.
_MOST_WITHOUT_PIECES = 0.02


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
        if options.start_from is not None and lines.directions:
            tokenizer = _with_new_languages(tokenizer, lines, options, report)
    else:
        report(f"tokenizer: training it on {counted(lines.num_pairs, 'pair')} ...")
        tokenizer = train_tokenizer(options, lines, report)
    _check_languages(tokenizer, lines, options)
    tokenizer.save(folder)
    return tokenizer


def _check_languages(tokenizer, lines, options):
    """Checks that a tokenizer that was not made for a text has its languages."""
    languages = dict.fromkeys(target for _, target in lines.directions)
    if (options.effort or 1) > 1 and len(lines.directions) > 1:
        languages |= dict.fromkeys(source for source, _ in lines.directions)
    lacking = ", ".join(code for code in languages if code not in tokenizer.languages)
    if len(languages) > 1 and lacking:
        remedy = f"leave {named('tokenizer')} out, so that one is trained for them"
        if not options.tokenizer:
            remedy = "take teachers that were trained for them"
        raise ValueError(f"The tokenizer has no tokens for the languages {lacking}: {remedy}.")
    if not lines.directions and tokenizer.language_tags == "known" and len(tokenizer.languages) > 1:
        raise ValueError(
            f"The tokenizer is for the languages {', '.join(tokenizer.languages)}, and nobody "
            f"knows which of them the text is in: describe it by {named('corpora')}."
        )


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


def _with_new_languages(tokenizer, lines, options, report):
    """Returns the tokenizer of the run that a training starts from, with the languages that the
    description of the text has more: target languages that it lacks, and languages whose characters
    it lacks.
    """
    targets = list(dict.fromkeys(target for _, target in lines.directions))
    codes = [code for code in targets if code not in tokenizer.languages]
    directions = read_config(options.start_from).get(DIRECTIONS, ())
    directions = [name.split("-") for name in directions]
    if not tokenizer.languages:
        # A model of one direction stays one, or the first of several is the one that it has.
        codes, directions = ([], []) if len(targets) == 1 else (codes, lines.directions[:1])
    if not codes and not tokenizer.is_extendable:
        return tokenizer
    known = {side: {pair[i] for pair in directions} for i, side in enumerate(SIDES)}
    known["target"] |= {*tokenizer.languages}
    if tokenizer.joint:
        known = dict.fromkeys(SIDES, known["source"] | known["target"])
    paths = {side: {} for side in SIDES}
    for text in lines.texts:
        for side, code in zip(SIDES, text.direction, strict=True):
            side_paths = paths["source" if tokenizer.joint else side]
            side_paths.setdefault(code, {})[getattr(text, side)] = None
    if codes and not tokenizer.languages:
        for side, code in zip(SIDES, lines.directions[0], strict=True):
            files = paths["source" if tokenizer.joint else side][code]
            if _lacks_pieces(tokenizer.vocabulary(side), files):
                raise ValueError(
                    f"The model of {options.start_from} has no pieces for {code}: name the corpus "
                    f"of its own direction first in {options.corpora}."
                )
    added, texts = {}, {side: ([], []) for side in SIDES}
    for side, languages in paths.items():
        for code, files in languages.items():
            is_new = code not in known[side] and (
                code in codes or _lacks_pieces(tokenizer.vocabulary(side), files)
            )
            texts[side][0 if is_new else 1].extend(files)
            added |= {code: None} if is_new else {}
    if not codes and not added:
        return tokenizer
    names = ", ".join(dict.fromkeys([*codes, *added]))
    if options.lora_rank is not None:
        raise ValueError(
            f"The model of {options.start_from} has no tokens for {names} yet, and adapters learn "
            f"none: leave {named('lora_rank')} out."
        )
    report(f"tokenizer: adding {names} to that of {options.start_from} ...")
    (new, former), (new_target, former_target) = (map(_lines, texts[side]) for side in SIDES)
    seed = options.seed or default_of("seed")
    larger = tokenizer.with_languages(
        codes,
        texts=new,
        target_texts=new_target,
        former_texts=sample_texts(former, _SAMPLE_LINES, seed),
        former_target_texts=sample_texts(former_target, _SAMPLE_LINES, seed),
        seed=seed,
    )
    sizes = [
        (each.vocabulary_size, each.target_vocabulary_size)[: 1 if each.joint else 2]
        for each in (tokenizer, larger)
    ]
    before, after = (" and ".join(f"{size:,}" for size in each) for each in sizes)
    sentence = f"tokenizer: {names} added, {after} pieces instead of {before}, whose ids stay"
    if codes and not tokenizer.languages:
        sentence += f"; the model has translated into {codes[0]} so far"
    report(sentence)
    return larger


def _lacks_pieces(vocabulary, paths):
    """Whether a vocabulary has no pieces for many characters of files, as of another script."""
    sample = sample_texts(_lines(paths), _SAMPLE_LINES, 0)
    return share_without_pieces(vocabulary, sample) > _MOST_WITHOUT_PIECES


def _lines(paths):
    for path in paths:
        for chunk in read_chunks(path, "text", _CHUNK_LINES):
            yield from chunk


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
        # Half of the lines, which are those of one side: `Tokenizer.train` chooses its number of
        # pieces by them, as it does for one direction.
        return round(sum(self._weights[path] * count for path, count in self._counts.items()) / 2)

    def __iter__(self):
        generator = random.Random(self._seed)
        for path, weight in self._weights.items():
            copies, share = divmod(weight, 1)
            for chunk in read_chunks(path, "text", _CHUNK_LINES):
                for line in chunk:
                    yield from [line] * (int(copies) + (generator.random() < share))
