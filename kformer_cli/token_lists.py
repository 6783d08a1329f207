"""The command `shortlist`."""

import json
import pathlib
import sys

from kformer_cli.checks import check_sides
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import Backend, Json, Run, option
from kformer_options.model_folders import check_trained


def shortlist(
    run: Run,
    source: pathlib.Path | None = option(
        "Source text. Default: the training's, with the run's validation set.", metavar="FILE"
    ),
    target: pathlib.Path | None = option("Its translations.", metavar="FILE"),
    valid_source: pathlib.Path | None = option(
        "Source of a validation set, on which the length of the lists is chosen.", metavar="FILE"
    ),
    valid_target: pathlib.Path | None = option("Its translations.", metavar="FILE"),
    candidates: int | None = option(
        "The most target tokens of each source token. Default: 200, or the least of 50, 100, 200, "
        "400 and 800 with which 99 % of the validation set are translated as without lists.",
        min=1,
    ),
    frequent: int = option(
        "The most frequent target tokens, which every sentence may have. Default: 200.",
        default=200,
        min=1,
    ),
    as_json: Json = False,
    backend: Backend = None,
):
    """List the target tokens that each source token may be translated by, for faster translation.

    The run keeps the lists in shortlist.json. Translations by the run, by its SavedModel and by its
    CTranslate2 export (vmap.txt) then compute the tokens alone that their sentences may need. The
    model translates up to 20,000 of the lines, and its translations are aligned, too: it writes
    other words than its references. Lines for a model of several languages begin with the tag of
    the target language. Remove shortlist.json to compute all tokens again.

    Example: [bold]kformer shortlist runs/en-de[/bold]
    """
    refuse(
        (source is None) != (target is None), "A text has two sides: give --source and --target."
    )
    refuse(
        (valid_source is None) != (valid_target is None),
        "A validation set has two sides: give --valid-source and --valid-target.",
    )
    check_sides([(source, "--source"), (target, "--target")])
    check_sides([(valid_source, "--valid-source"), (valid_target, "--valid-target")])
    check_trained(run)
    with quiet_imports():
        from kformer.data.token_lists import FILE_NAME, TokenLists
        from kformer.evaluation.list_choice import SIZES, choose_lists, with_translations
        from kformer.text.languages import some_languages
        from kformer.translating.translator import Translator
        from kformer.utils.lines import read_lines
    valid, translator = None, Translator.load(run)
    if source is None:
        text, sides, valid = _texts_of(pathlib.Path(run))
        translator = text.of(translator)
    else:
        sides = read_lines(source, "source"), read_lines(target, "target")
    if valid_source is not None:
        valid = read_lines(valid_source, "source"), read_lines(valid_target, "target")
    translator.token_lists, tokenizer, trials = None, translator.tokenizer, []
    texts = with_translations(translator, *sides)
    if valid is None:
        lists = TokenLists.build(tokenizer, *texts, candidates or 200, frequent)
    else:
        numbers = [size for size, _ in SIZES] if candidates is None else [candidates]
        sizes = [(number, frequent) for number in numbers]
        lists, trials = choose_lists(translator, *texts, valid, sizes)
    path = pathlib.Path(run) / FILE_NAME
    lists.save(path, tokenizer)
    rows = tokenizer.tokenize(sides[0], special_tokens=True)
    heads, tags = {i for row in rows for i in row[:1]}, tokenizer.tag_ids.items()
    if lacking := [tag for tag, token in tags if token not in heads]:
        print(
            f"warning: no line begins with {some_languages(lacking)}, and translations into these "
            "languages would be made of other languages' tokens: add such lines.",
            file=sys.stderr,
        )
    sizes = [len(lists(row)) for row in rows]
    report = {"file": str(path), "tokens": sum(sizes) / max(1, len(sizes))}
    report["vocabulary"] = tokenizer.target_vocabulary_size
    report["trials"] = [trial._asdict() for trial in trials]
    if as_json:
        print(json.dumps(report))
        return
    for trial in trials:
        print(
            "{candidates} candidates: {tokens:,.0f} tokens for a sentence of the validation set, "
            "{equal:.1%} of its translations unchanged, BLEU {bleu:.2f} ({full_bleu:.2f} without "
            "lists)".format_map(trial._asdict())
        )
    if trials and not trials[-1].is_enough:
        print("These lists change more than 1 % of the translations, or BLEU by more than 0.05.")
    print(
        "{file}: {tokens:,.0f} of {vocabulary:,} tokens for a sentence of this text, on "
        "average".format_map(report)
    )


def _texts_of(run):
    """A `Text` of a run's training, the two sides of all, and those of its validation set or
    `None`.
    """
    from kformer.trainer import resume
    from kformer.trainer.data import validation_lines
    from kformer.utils.lines import read_lines

    texts = resume.training_texts_of(run)
    if not texts:
        raise ValueError(
            f"{run} has no training text of its own: give a text by --source and --target."
        )
    directions = dict.fromkeys(text.direction for text in texts)
    if len(directions) > 1:
        raise ValueError(
            f"{run} has texts of {', '.join(map('-'.join, directions))}: give a text by --source "
            "and --target, in which each source line begins with the tag of its target language."
        )
    sides = [
        [line for text in texts for line in read_lines(getattr(text, side), side)]
        for side in ("source", "target")
    ]
    sets = resume.validation_of(run)
    return texts[0], sides, validation_lines(sets[0]) if sets else None
