"""What `kformer translate` writes about the words of a translation: their alignment, confidence."""

import typer

from kformer_cli.options import chosen, set_options

WORDS = chosen("alignment", "confidence")
# Options that exclude columns about words: a line has several translations with them, is split, or
# is translated in another process.
_WITHOUT_WORDS = ("alternatives", "workers", "document", "split", "glossary")


def check_words(options, n_best):
    """Checks that columns about words are asked for where there is one translation of a line.

    Args:
        options: dict of the command's options.
        n_best: int. The translations per line.

    Raises:
        typer.BadParameter: there are more, or other processes translate.
    """
    for name in set_options(options, WORDS):
        if n_best > 1 or any(options[other] for other in _WITHOUT_WORDS):
            raise typer.BadParameter(
                f"--{name} is about the best translation of each line as it is: leave out "
                f"--n-best, {', '.join(f'--{other}' for other in _WITHOUT_WORDS)}."
            )


def with_words(translator, lines, results, options):
    """The results with what is asked for about their words.

    Args:
        translator: `kformer.Translator`.
        lines: list of str, the texts.
        results: list of `Translation` of the texts.
        options: dict of the command's options.

    Returns:
        List of `Translation`.
    """
    wanted = set_options(options, WORDS)
    if not wanted:
        return results
    found = translator.annotated(lines, results, **wanted)
    return [result._replace(words=words) for result, words in zip(results, found, strict=True)]
