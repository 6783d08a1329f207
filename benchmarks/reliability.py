"""The campaign: what could go wrong is tried, with a seed, until a count or a time is reached.

    python benchmarks/reliability.py trainings --work DIR [--seed 0 --count 1000 --minutes 60]

Each part is a module in `benchmarks/reliability_parts/`, whose docstring says what it tries. It
prints what it tried and what failed, and the exit status is 1 if anything failed. A failure names
the seed and the trial, which `--first TRIAL --count 1` repeats. The parts fork processes, so they
need Linux.
"""

import argparse
import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import names, print_command  # noqa: E402
from benchmarks.reliability_parts.tally import Tally  # noqa: E402
from benchmarks.reliability_parts.zygote import Zygote  # noqa: E402

# What a part tries, where it runs if nothing else is asked for, and its class, whose `trial` takes
# a tally, a trial's number and its generator; a part without one is a function `run`.
PARTS = {
    "trainings": ("trainings are killed and resumed", "tensorflow,jax,torch", "Trainings"),
    "commands": ("other commands that write are killed", "tensorflow", "Commands"),
    "damage": ("files are damaged", "torch,tensorflow", "Damage"),
    "writers": ("two processes write one run at the same time", "torch", "Writers"),
    "malicious": ("folders that a stranger made to do harm are opened", "torch", "Malicious"),
    "lying_hub": ("models are asked of a hub that lies", "torch", None),
    "jobs": ("work in several processes is killed and gone on with", "torch", None),
    "outputs": ("commands are told to write into what they read", "torch", None),
    "odd_clients": ("a server is asked by odd clients of HTTP", "tensorflow", None),
    "odd_metadata": ("versions of a SavedModel come with odd notes", "tensorflow", None),
    "power_cut": ("the power goes while files are written", "torch,tensorflow", "PowerCut"),
    "strings": ("strings of all kinds are translated, in batches and alone", "tensorflow", None),
}


def run_part(options, name):
    """Runs a part; returns its exit status."""
    _, backends, kind = PARTS[name]
    tally = Tally(name, options.seed, options.count, options.minutes, options.first)
    module = importlib.import_module(f"benchmarks.reliability_parts.{name}")
    if kind is None:
        module.run(tally, options)
        return tally.report()
    for backend in options.backends or names(backends):
        with Zygote(backend, options.work) as zygote:
            part = getattr(module, kind)(zygote, options.work, options.only)
            for number, rng in tally.trials():
                tally.guard(backend, part.trial, tally, number, rng)
    return tally.report()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    texts = "; ".join(f"{name}: {text}" for name, (text, *_) in PARTS.items())
    parser.add_argument("part", choices=PARTS, help=texts)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder to work in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100, help="trials, of each backend")
    parser.add_argument("--minutes", type=float, help="most minutes, of each backend")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--backends", type=names, help="default: those that differ in a part")
    parser.add_argument(
        "--only",
        help="of commands, damage, power_cut: one command or file; of malicious: one attack on a "
        "published model, or toolkits; of lying_hub, outputs, "
        "odd_clients and odd_metadata: unchecked; of jobs: workers, efforts, full_disk, "
        "hosts or unchecked",
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    print_command()
    return run_part(options, options.part)


if __name__ == "__main__":
    sys.exit(main())
