"""The batch job under kills, by one worker and by two, and its memory.

    python benchmarks/batch.py speed --work DIR [--lines 60000] [--model PATH --input FILE]
    python benchmarks/batch.py kills --work DIR [--lines 20000] [--kills 10] [--seed 0]
    python benchmarks/batch.py memory --work DIR [--lines 200000]

`kformer translate --workers` translates short lines by the SavedModel of `many_lines.py`, a tiny
model of random weights, or lines of `--input` by `--model`. `speed` has the seconds by one worker
and by two, start and loading included. `kills` kills the driver or a worker at random times, gives
the command again until the output is there, and compares it with that of one worker which nobody
killed. `memory` has the peak of the resident memory of driver and workers, for a twentieth of the
lines and for all. The exit status is 0 if all outputs are equal.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from benchmarks import many_lines  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

# A kill comes at most so many seconds after a shard of its try was finished.
_SPREAD = 2.0
# Small batches, and so many shards that each kill meets an unfinished job.
_KILLED = ("--batch-size", 16)


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.model:
        models, source = {"saved_model": options.model.resolve()}, options.input.resolve()
        options.lines = source.read_bytes().count(b"\n")
    else:
        models, source = many_lines.make(options)
    print_command()
    {"speed": speed, "kills": kills, "memory": memory}[options.part](options, models, source)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("speed", "kills", "memory"))
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--input", type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="tensorflow")
    options = parser.parse_args()
    if bool(options.model) != bool(options.input):
        parser.error("give --model and --input, or neither")
    if options.model and options.part == "memory":
        parser.error("memory makes lines of its own: leave out --model and --input")
    defaults = {"speed": 60_000, "kills": 20_000, "memory": 200_000}
    options.lines = options.lines or defaults[options.part]
    return options


def start(models, source, output, workers, *more):
    """A process of the command."""
    command = [sys.executable, "-m", "kformer_cli", "translate", models["saved_model"]]
    command += ["--input", source, "--output", output, "--workers", workers, *more]
    return subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )


def whole(models, source, output, workers, *more):
    """Seconds of an undisturbed job, and its output."""
    output.unlink(missing_ok=True)
    shutil.rmtree(output.with_name(f"{output.name}.parts"), ignore_errors=True)
    start_time = time.perf_counter()
    if code := start(models, source, output, workers, *more).wait():
        sys.exit(f"the command ended with {code}")
    return time.perf_counter() - start_time, output.read_bytes()


def speed(options, models, source):
    print_head(("workers", "lines", "seconds", "lines/s", "times one"))
    outputs, first = [], None
    for workers in (1, 2):
        seconds, output = whole(models, source, options.work / "out", workers)
        first = first or seconds
        outputs.append(output)
        rate = f"{options.lines / seconds:,.0f}"
        print_row(workers, f"{options.lines:,}", f"{seconds:.1f}", rate, f"{first / seconds:.2f}")
    sys.exit(outputs[0] != outputs[1])


def kills(options, models, source):
    _, expected = whole(models, source, options.work / "expected", 1, *_KILLED)
    output, randomness = options.work / "out", random.Random(options.seed)
    output.unlink(missing_ok=True)
    counts, tries, start_time = {"driver": 0, "worker": 0}, 0, time.perf_counter()
    while not output.exists():
        process = start(models, source, output, 2, *_KILLED)
        tries += 1
        while sum(counts.values()) < options.kills and process.poll() is None:
            before = finished(output)
            while process.poll() is None and finished(output) <= before:
                time.sleep(0.01)
            time.sleep(randomness.uniform(0, _SPREAD))
            kind = randomness.choice([*counts])
            if process.poll() is None and kill(process, kind):
                counts[kind] += 1
        if code := process.wait():
            assert code < 0, f"the command ended with {code}"
    seconds = time.perf_counter() - start_time
    is_equal = output.read_bytes() == expected
    print_head(("lines", "kills of driver", "of a worker", "starts", "seconds", "bytes equal"))
    numbers = counts["driver"], counts["worker"], tries
    print_row(f"{options.lines:,}", *numbers, f"{seconds:.0f}", is_equal)
    sys.exit(not is_equal)


def finished(output):
    """The number of finished shards."""
    return len([*output.with_name(f"{output.name}.parts").glob("shards-*/0*")])


def kill(process, kind):
    """Kills the driver or one of its workers; whether there was one."""
    if kind == "driver":
        process.kill()
        process.wait()
        return True
    workers = [each for each in processes(process) if "translate_shard" in name_of(each)]
    if workers:
        workers[0].kill()
    return bool(workers)


def processes(process):
    """A process and its descendants."""
    try:
        one = psutil.Process(process.pid)
        return [one, *one.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def name_of(process):
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def memory(options, models, source):
    print_head(("lines", "driver, MiB", "largest worker, MiB", "seconds"))
    lines, all_lines = options.lines // 20, options.lines
    for options.lines in (lines, all_lines):
        _, source = many_lines.make(options)
        start_time, peaks = time.perf_counter(), {"driver": 0, "worker": 0}
        process = start(models, source, options.work / "out", 2)
        while process.poll() is None:
            for each in processes(process):
                kind = "driver" if each.pid == process.pid else "worker"
                try:
                    peaks[kind] = max(peaks[kind], each.memory_info().rss >> 20)
                except psutil.Error:
                    continue
            time.sleep(0.2)
        seconds = time.perf_counter() - start_time
        print_row(f"{options.lines:,}", *peaks.values(), f"{seconds:.0f}")
        if process.returncode:
            sys.exit(process.returncode)


if __name__ == "__main__":
    main()
