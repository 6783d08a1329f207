"""The command `speed`: which engine translates fastest here."""

import json
import pathlib
import sys

from kformer_cli.checks import check_sides
from kformer_cli.environment import quiet_imports, refuse
from kformer_cli.options import LANGUAGES, Json, Run, chosen, option, with_options
from kformer_options.installed import cpu_name
from kformer_options.model_folders import check_trained

_REPEATED = "Give the option again for more."


@with_options({**LANGUAGES, **chosen("threads")})
def speed(
    run: Run,
    source: pathlib.Path | None = option(
        "Texts to translate, one a line. Default: the run's validation set.", metavar="FILE"
    ),
    reference: pathlib.Path | None = option(
        "Their translations by people, for BLEU. Default: those of the validation set, without "
        "--source.",
        metavar="FILE",
    ),
    engine: list[str] | None = option(
        f"An engine to measure, such as saved_model-int8. {_REPEATED} Default: all.",
        metavar="NAME",
    ),
    beam_size: list[int] | None = option(
        f"A width of the search. {_REPEATED} Default: 1, which is greedy, and 4.", min=1
    ),
    batch_size: list[int] | None = option(f"Texts at once. {_REPEATED} Default: 1 and 32.", min=1),
    sentences: int = option("The first N texts alone.", default=200, min=1, show_default=True),
    as_json: Json = False,
    **options,
):
    """Measure how many sentences a second each engine translates here, and say which to use.

    The engines run one after the other: SavedModels in float32, bfloat16 and int8, and with the
    signature for single texts, the run itself by PyTorch, CTranslate2 and ONNX Runtime. One that is
    not installed, or does not take the model, has a remark. Nothing else should run on the machine
    meanwhile.

    Example: [bold]kformer speed runs/en-de --source test.en --reference test.de --threads 1[/bold]
    """
    check_trained(run)
    refuse(
        source is None and reference is not None, "--reference translates --source: give it, too."
    )
    check_sides([(source, "--source"), (reference, "--reference")])
    languages = options["source_language"], options["target_language"]
    with quiet_imports():
        from rich.console import Console

        from kformer.export import engine_speed
    texts, references, languages = _texts(pathlib.Path(run), source, reference, languages)
    results = engine_speed.compare_engines(
        run,
        texts[:sentences],
        references[:sentences],
        engines=engine,
        beam_sizes=sorted({*(beam_size or (1, 4))}),
        batch_sizes=sorted({*(batch_size or (1, 32))}),
        languages=languages,
        report=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    best = engine_speed.best_engine(results)
    if as_json:
        print(json.dumps(_as_dict(results, best), ensure_ascii=False))
        return
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=120)
    console.print(_table(results))
    if best is not None:
        same = ", of those that translate as well" if best.bleu else ""
        command = engine_speed.ENGINES[best.name].command.format(run=run)
        sentence = f"Take {best.name}, the fastest over all columns{same}: {command}"
        console.print(sentence, soft_wrap=True)


def _texts(run, source, reference, languages):
    """The texts, their references (or an empty list), and a pair of languages."""
    from kformer.text import Tokenizer
    from kformer.trainer import resume
    from kformer.trainer.data import validation_lines
    from kformer.utils.lines import read_lines

    sets = resume.validation_of(run) if source is None else []
    if source is None and not sets:
        raise ValueError(f"{run} has no validation set: give texts to translate by --source.")
    if sets and sets[0].direction is not None:
        for text in sets:
            pairs = zip(languages, text.direction, strict=True)
            if all(code in (None, language) for code, language in pairs):
                return *validation_lines(text), text.direction
        directions = ", ".join("-".join(text.direction) for text in sets)
        raise ValueError(
            f"{run} has validation sets of {directions} alone: give texts of other languages by "
            "--source."
        )
    # It refuses a language that the model does not read.
    Tokenizer.load(run / "tokenizer").for_languages(*languages)
    if sets:
        return *validation_lines(sets[0]), languages
    references = [] if reference is None else read_lines(reference, "reference")
    return read_lines(source, "source"), references, languages


def _name_of(beam_size):
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def _table(results):
    from rich.table import Table

    cells = sorted({cell for result in results for cell in result.speeds})
    beams = sorted({beam for result in results for beam in result.bleu})
    table = Table(title=f"Sentences per second, {cpu_name()}", title_justify="left")
    table.add_column("engine", no_wrap=True)
    for beam_size, batch_size in cells:
        table.add_column(f"{_name_of(beam_size)}, {batch_size}", justify="right")
    for beam_size in beams:
        table.add_column(f"BLEU, {_name_of(beam_size)}", justify="right")
    table.add_column("remark")
    for result in results:
        speeds = [f"{result.speeds[cell]:,.1f}" if cell in result.speeds else "" for cell in cells]
        bleu = [f"{result.bleu[beam]:.2f}" if beam in result.bleu else "" for beam in beams]
        table.add_row(result.name, *speeds, *bleu, result.remark or "")
    return table


def _as_dict(results, best):
    rows = []
    for result in results:
        speeds = [
            {"beam_size": beam, "batch_size": batch, "sentences_per_second": round(speed, 2)}
            for (beam, batch), speed in result.speeds.items()
        ]
        row = {"engine": result.name, "speeds": speeds, "bleu": result.bleu}
        rows.append({**row, "remark": result.remark})
    return {"cpu": cpu_name(), "engines": rows, "best": best and best.name}
