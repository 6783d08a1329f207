"""The command `trim`."""

import json
import pathlib

import typer

from kformer_cli.checks import check_text
from kformer_cli.environment import quiet_imports
from kformer_cli.options import Backend, Json, Run, option
from kformer_options.model_folders import check_new_folder, check_trained


def trim(
    run: Run,
    text: list[pathlib.Path] = option(
        "Text whose pieces are kept, one sentence per line. Give the option again for more: text "
        "of both languages is needed.",
        required=True,
        metavar="FILE",
    ),
    output: pathlib.Path = option("The run directory to make.", required=True, metavar="RUN"),
    as_json: Json = False,
    backend: Backend = None,
):
    """Trim the vocabulary of a run to the pieces that some text needs, above all of an imported
    multilingual model: most of its weights are of languages that you may not need.

    The text is segmented as before, and the logits of the pieces that stay are what they were.
    Special tokens, languages, bytes and single characters stay, except letters of other scripts.

    Example: [bold]kformer trim runs/nllb --text train.en --text train.de --output
    runs/nllb-en-de[/bold]
    """
    check_trained(run)
    for path in text:
        check_text(path, "--text")
    check_new_folder(output)
    with quiet_imports():
        from kformer.interop import trim_vocabulary
        from kformer.translating import streaming
        from kformer.utils.lines import read_lines
    translator = streaming.load_run_translator(run)
    lines = (line for path in text for line in read_lines(path, "text"))
    trimmed = trim_vocabulary(translator, lines)
    trimmed.save(output)
    sizes = [
        {
            "pieces": each.tokenizer.vocabulary_size,
            "target_pieces": each.tokenizer.target_vocabulary_size,
            "parameters": each.model.count_params(),
            "bytes": (pathlib.Path(path) / "model.keras").stat().st_size,
        }
        for each, path in ((translator, run), (trimmed, output))
    ]
    if as_json:
        print(json.dumps({"run": str(output), "before": sizes[0], "after": sizes[1]}))
        return
    for name, unit in (("pieces", ""), ("parameters", ""), ("bytes", " on the disk")):
        before, after = (each[name] for each in sizes)
        typer.echo(f"{before:,} {name}{unit} became {after:,} ({after / before:.0%})", err=True)
    print(output)
