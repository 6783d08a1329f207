"""The campaign: what could go wrong is tried, with a seed, until a count or a time is reached.

    python benchmarks/reliability.py trainings --work DIR [--seed 0 --count 1000 --minutes 60]
    python benchmarks/reliability.py self-test --work DIR

Each part is a module in `benchmarks/reliability_parts/`, whose docstring says what it tries. It
prints what it tried and what failed, and exits with 1 if anything failed. A failure names the seed
and the trial, which `--first TRIAL --count 1` repeats. The self-test plants one fault per part and
must see that part fail.
"""

import argparse
import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.reliability_parts.tally import Tally  # noqa: E402
from benchmarks.tables import print_command  # noqa: E402

BACKENDS = ("tensorflow", "jax", "torch")
PARTS = {
    "trainings": "trainings are killed and resumed",
    "commands": "exports, imports, averages, saves, distillations and translations are killed",
    "damage": "files are damaged",
    "writers": "two processes write one run at the same time",
    "power_cut": "the power goes while files are written",
    "search": "search equals a NumPy search, on each backend and exported",
    "strings": "strings of all kinds are translated, in batches and alone",
    "malicious": "folders that a stranger made to do harm are opened",
}


def parsed(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="part", required=True, metavar="PART")
    for name, text in PARTS.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--work", type=pathlib.Path, required=True, help="folder to work in")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--count", type=int, default=100, help="trials, of each backend")
        command.add_argument("--minutes", type=float, help="most minutes, of each backend")
        command.add_argument("--first", type=int, default=0, help="number of the first trial")
        command.add_argument(
            "--backends", type=lambda text: text.split(","), default=list(BACKENDS)
        )
        command.add_argument("--fault", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parsed(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    tally = Tally(options.part, options.seed, options.count, options.minutes, options.first)
    print_command()
    importlib.import_module(f"benchmarks.reliability_parts.{options.part}").run(tally, options)
    return tally.report()


if __name__ == "__main__":
    sys.exit(main())
