"""Counts and times the operations of a SavedModel's translations.

    python benchmarks/operations.py SAVED_MODEL [SAVED_MODEL ...] --source FILE [--batch-size 1]
        [--sentences 8] [--repeats 5] [--top 12]

SAVED_MODEL is the folder of a version, such as `saved_models/translator/1`. One core computes it. A
cell has the kernels and the milliseconds of an operation for each sentence, of the traced pass over
all sentences that took the least time. A trace makes small kernels seem longer than they are, so
the last row is the least processor time of a pass without one; the SavedModels take turns. "control
flow" is what a loop itself is made of.
"""

import argparse
import collections
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    cpu_name,
    in_turns,
    print_command,
    print_head,
    print_row,
    read,
    versions,
)

CONTROL_FLOW = {"Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond", "Identity"}


def open_model(folder):
    """Returns a function of texts and of further arguments of `Session.run`, which translates."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - it registers the tokenizer's ops

    one = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
    with tf.Graph().as_default() as graph:
        session = tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(**one))
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
    signature = loaded.signature_def["serving_default"]

    def translate(texts, **settings):
        feed = {each.name: [""] * len(texts) for each in signature.inputs.values()}
        feed[signature.inputs["text"].name] = texts
        return session.run(signature.outputs["translation"].name, feed, **settings)

    return translate


def traced(translate, batches):
    """Returns a `Counter` of kernels and one of microseconds, by operation."""
    import tensorflow as tf

    trace = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    kernels, times = collections.Counter(), collections.Counter()
    for batch in batches:
        found = tf.compat.v1.RunMetadata()
        translate(batch, options=trace, run_metadata=found)
        for device in found.step_stats.dev_stats:
            for node in device.node_stats:
                match = re.search(r" = (\w+)\(", node.timeline_label)
                name = match[1] if match else "other"
                name = "control flow" if name in CONTROL_FLOW else name
                kernels[name] += 1
                times[name] += node.op_end_rel_micros - node.op_start_rel_micros
    return kernels, times


def timed(translate, batches):
    """The processor time of all batches in seconds."""
    begin = time.process_time()
    for batch in batches:
        translate(batch)
    return time.process_time() - begin


def report(options):
    print(f"{cpu_name()}; {versions('tensorflow')}\n")
    print_command()
    texts, size = read(options.source)[: options.sentences], options.batch_size
    batches = [texts[begin : begin + size] for begin in range(0, len(texts), size)]
    models = [open_model(folder) for folder in options.saved_models]

    def measured(measure):
        """What each model measured in all rounds, a list for each."""
        found = {model: [] for model in models}
        for model in in_turns(models, options.repeats):
            found[model].append(measure(model, batches))
        return found.values()

    measured(timed)  # The first calls are slower.
    seconds = [min(each) for each in measured(timed)]
    found = [min(each, key=lambda pair: pair[1].total()) for each in measured(traced)]
    print_head(["operation", *map(str, options.saved_models)])

    def row(label, names):
        cells = (
            f"{sum(kernels[name] for name in names) / len(texts):,.0f}, "
            f"{sum(times[name] for name in names) / len(texts) / 1000:.2f} ms"
            for kernels, times in found
        )
        print_row(label, *cells)

    total = sum((times for _, times in found), collections.Counter())
    names = [name for name, _ in total.most_common()]
    for name in names[: options.top]:
        row(name, [name])
    row(f"{len(names[options.top :])} others", names[options.top :])
    row("all", names)
    print_row("without a trace", *(f"{each / len(texts) * 1000:.2f} ms" for each in seconds))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("saved_models", type=pathlib.Path, nargs="+")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--top", type=int, default=12)
    report(parser.parse_args())


if __name__ == "__main__":
    main()
