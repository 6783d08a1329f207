"""What every benchmark prints: its command, and a Markdown table."""

import pathlib
import sys


def print_command(setting=""):
    """Prints the command line of this process.

    Args:
        setting: str, default "". Environment variables before it, as "NAME=VALUE ".
    """
    command = " ".join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    print(f"command: {setting}python benchmarks/{command}\n")


def print_head(columns):
    """Prints the first two lines of a table."""
    print_row(*columns)
    print(f"{'|---' * len(columns)}|", flush=True)


def print_row(*cells):
    """Prints a row of a table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
