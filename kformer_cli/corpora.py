"""The command `clean`."""

import json
import pathlib

import typer

from kformer_cli.checks import check_description, check_text
from kformer_cli.environment import quiet_imports
from kformer_cli.options import Json, flag, option
from kformer_options.text_files import check_output


def clean(
    corpora: pathlib.Path = option(
        "A YAML file that describes the corpora: files, languages, weights and rules.",
        required=True,
        metavar="FILE",
    ),
    output: pathlib.Path = option(
        "The folder to make: the lines of each corpus, and corpora.yaml for kformer train.",
        required=True,
        metavar="DIR",
    ),
    report: pathlib.Path | None = option(
        "Write the counts of each corpus and rule, with three examples each, as JSON.",
        metavar="FILE",
    ),
    exclude: list[pathlib.Path] | None = option(
        "Text of which nothing may be trained on, such as a test set, one sentence per line. Give "
        "the option again for more. The validation sets are such text anyway.",
        metavar="FILE",
    ),
    rejected: bool = flag(
        "--rejected", "Write the pairs that are left out, with the rule, to DIR/rejected.tsv."
    ),
    as_json: Json = False,
):
    """Clean corpora: repair what can be repaired, leave out what would harm a training, and say
    how much that was and why.

    An interrupted cleaning goes on when the command is given again.

    Example: [bold]kformer clean --corpora corpora.yaml --output cleaned[/bold]

    Then train on it: [bold]kformer train --corpora cleaned/corpora.yaml --output runs/en-de[/bold]
    """
    check_description(corpora)
    for path in exclude or ():
        check_text(path, "--exclude")
    if report is not None:
        check_output(report, corpora, *(exclude or ()))
    with quiet_imports():
        from kformer.data import Corpora
        from kformer.data import clean as clean_corpora
        from kformer.utils.files import write_json
        from kformer.utils.progress import Progress
    bar = Progress(what="pairs read", name="corpora")
    description = Corpora.load(corpora)
    for name, corpus in description.corpora.items() if exclude else ():
        if "overlap" not in corpus.clean:
            raise ValueError(
                f"{corpora}: the corpus {name!r} is cleaned without the rule overlap, so that what "
                "stands in --exclude would stay in it: give it clean: [overlap] at least."
            )
    result = clean_corpora(
        description,
        output,
        exclude=exclude or (),
        rejected=rejected,
        progress=lambda name, pairs: bar(pairs, None),
    )
    if report is not None:
        write_json(report, result.corpora)
    if as_json:
        print(json.dumps({"output": str(output), "corpora": result.corpora}, ensure_ascii=False))
        return
    width = max(len(name) for name in result.corpora)
    for name, what, count in result.rows():
        typer.echo(f"{name:<{width}}  {what:<26}{count:>14,}", err=True)
    print(output)
