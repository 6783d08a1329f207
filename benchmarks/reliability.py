"""The campaign: what could go wrong is tried, with a seed, until a count or a time is reached.

    python benchmarks/reliability.py trainings --work DIR [--seed 0 --count 1000 --minutes 60]
    python benchmarks/reliability.py self-test --work DIR

Each part is a module in `benchmarks/reliability_parts/`, whose docstring says what it tries. It
prints what it tried and what failed, and exits with 1 if anything failed. A failure names the seed
and the trial, which `--first TRIAL --count 1` repeats. The self-test plants one fault per part and
must see that part fail.
"""

import argparse
import contextlib
import importlib
import io
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.reliability_parts.tally import Tally  # noqa: E402
from benchmarks.reliability_parts.zygote import Zygote  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

BACKENDS = ("tensorflow", "jax", "torch")
PARTS = {
    "trainings": "trainings are killed and resumed",
    "commands": "exports, imports, averages, saves, distillations and translations are killed",
    "damage": "files are damaged",
    "writers": "two processes write one run at the same time",
    "strings": "strings of all kinds are translated, in batches and alone",
    "malicious": "folders that a stranger made to do harm are opened",
    "power_cut": "the power goes while files are written",
    "search": "search equals a NumPy search, on each backend and exported",
    "self-test": "a fault is planted for each part, which must see it",
}
# The parts that are a class whose `trial` takes a tally, a trial's number and its generator; the
# others are a function `run`.
CLASSES = {
    "trainings": "Trainings",
    "commands": "Commands",
    "damage": "Damage",
    "writers": "Writers",
    "malicious": "Malicious",
    "power_cut": "PowerCut",
}
# Where a part runs if nothing else is asked for; the others run on all backends.
DEFAULT_BACKENDS = {
    "commands": ["tensorflow"],
    "damage": ["torch", "tensorflow"],
    "writers": ["torch"],
    "malicious": ["torch"],
    "power_cut": ["torch", "tensorflow"],
}
# A part's arguments when it has a fault, such that it needs few trials.
SELF_TESTS = {
    "trainings": "--count 20 --backends torch",
    "commands": "--count 40 --only translate --backends torch",
    "damage": "--count 40 --backends torch --only model.keras",
    "writers": "--count 100",
    "strings": "--count 1000",
    "malicious": "--count 20 --only pickle",
    "power_cut": "--count 20 --backends torch",
    "search": "--count 10 --backends torch",
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
        default = DEFAULT_BACKENDS.get(name, list(BACKENDS))
        command.add_argument("--backends", type=lambda text: text.split(","), default=default)
        command.add_argument("--only", help=argparse.SUPPRESS)
        command.add_argument("--fault", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run_part(options, ends_at_failure=False):
    """Runs a part; returns its `Tally`."""
    options.work.mkdir(parents=True, exist_ok=True)
    budget = options.seed, options.count, options.minutes, options.first
    tally = Tally(options.part, *budget, ends_at_failure)
    module = importlib.import_module(f"benchmarks.reliability_parts.{options.part}")
    if options.part not in CLASSES:
        module.run(tally, options)
        return tally
    for backend in options.backends:
        with Zygote(backend, options.work) as zygote:
            make = getattr(module, CLASSES[options.part])
            part = make(zygote, options.work, options.fault, options.only)
            for number, rng in tally.trials():
                tally.guard(backend, part.trial, tally, number, rng)
    return tally


def self_test(work, parts=None):
    """Plants a fault for each part; returns 0 if each part has seen its own."""
    print_head(["part", "trials until it saw its fault", "what it said"])
    unseen = 0
    for part, arguments in SELF_TESTS.items():
        if parts and part not in parts:
            continue
        command = [part, "--work", str(work), "--fault", part, *arguments.split()]
        with contextlib.redirect_stderr(io.StringIO()):
            tally = run_part(parsed(command), ends_at_failure=True)
        said = tally.failures[0].split(": ", 1)[1] if tally.failures else "nothing"
        print_row(part, tally.tried, " ".join(said.split())[:80].replace("|", "/"))
        unseen += not tally.failures
    return 1 if unseen else 0


def main(arguments=None):
    options = parsed(arguments)
    print_command()
    if options.part == "self-test":
        return self_test(options.work, options.only and options.only.split(","))
    return run_part(options).report()


if __name__ == "__main__":
    sys.exit(main())
