"""The command `shortlist`."""

import json
import pathlib

from kformer_cli.checks import check_sides
from kformer_cli.environment import quiet_imports
from kformer_cli.options import Backend, Json, Run, option
from kformer_options.model_folders import check_trained


def shortlist(
    run: Run,
    source: pathlib.Path = option(
        "Source text, such as the training's.", required=True, metavar="FILE"
    ),
    target: pathlib.Path = option("Its translations.", required=True, metavar="FILE"),
    candidates: int = option(
        "The most target tokens of each source token. Default: 50.", default=50, min=1
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

    The run keeps the lists in shortlist.json, and its export to CTranslate2 has them as vmap.txt:
    the engine then computes the tokens alone that the sentences of a batch may need. Lines for a
    model of several languages begin with the tag of the target language.

    Example: [bold]kformer shortlist runs/en-de --source train.en --target train.de[/bold]
    """
    check_sides([(source, "--source"), (target, "--target")])
    check_trained(run)
    with quiet_imports():
        from kformer.data import token_lists
        from kformer.saving.run_directory import load_tokenizer
        from kformer.utils.lines import read_lines
    sides = read_lines(source, "source"), read_lines(target, "target")
    tokenizer = load_tokenizer(run)
    lists = token_lists.TokenLists.build(tokenizer, *sides, candidates, frequent)
    path = pathlib.Path(run) / token_lists.FILE_NAME
    lists.save(path, tokenizer)
    sizes = [len(lists(row)) for row in tokenizer.tokenize(sides[0])]
    report = {"file": str(path), "tokens": sum(sizes) / max(1, len(sizes))}
    report["vocabulary"] = tokenizer.target_vocabulary_size
    if as_json:
        print(json.dumps(report))
        return
    print(
        "{file}: {tokens:,.0f} of {vocabulary:,} tokens for a sentence of this text, on "
        "average".format_map(report)
    )
