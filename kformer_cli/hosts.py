"""The process around a training on several hosts, which has the last word.

JAX ends a process from C++ once another host is lost, and nothing can be said from inside. So
`kformer train --hosts` starts itself as a child and waits for its end.
"""

import collections
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

from kformer_cli.environment import value_of
from kformer_options.child_process import environment
from kformer_options.host_addresses import seconds_to_meet

# The file descriptors of the parent's standard output and standard error, for the child: "5,6".
_DESCRIPTORS = "KFORMER_HOST_DESCRIPTORS"
_KEPT_LINES = 200
# What JAX writes before it ends a process: hosts that sent no sign of life, the first host, hosts
# that did not come to the end, and hosts that did not come at all.
_SILENT = re.compile(r"(?:unhealthy|timed out task names)[^\n]*:\s*((?:\d+\s)+)")
_FIRST_IS_LOST = re.compile(
    r"Failed to send RPC to coordination service|Socket closed|CoordinationService/Heartbeat"
)
_NOBODY_CAME = re.compile(r"RegisterTask")


def runs_as_child(arguments):
    """Whether a command needs a process of its own: a training on several hosts, not yet in it.

    Args:
        arguments: list of str, the command line.
    """
    return (
        arguments[:1] == ["train"]
        and value_of("--hosts", arguments) is not None
        and _DESCRIPTORS not in os.environ
    )


def run_as_child(arguments):
    """Runs a command as a child process, passes signals on, and explains the child's end.

    The child has standard output and standard error as they are. What its libraries write in C++
    goes to a pipe, so that no stack trace stands in front of the explanation. Its standard input
    ends when this process does.

    Args:
        arguments: list of str, the command line.

    Returns:
        int. The exit code.
    """
    streams = [os.dup(descriptor) for descriptor in (1, 2)]
    child = subprocess.Popen(
        [sys.executable, "-m", "kformer_cli", *arguments],
        env=environment(**{_DESCRIPTORS: ",".join(map(str, streams))}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        pass_fds=streams,
        process_group=0,  # So that Ctrl-C comes once, from here.
    )
    for descriptor in streams:
        os.close(descriptor)
    signals = set()

    def send(number, frame):
        signals.add(number)
        child.send_signal(number)

    former = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    lines = collections.deque(child.stdout, _KEPT_LINES)
    code = child.wait()
    for number, handler in former.items():
        signal.signal(number, handler)
    child.stdin.close()
    if code >= 0:
        return code
    if -code in signals:
        return 128 - code
    if os.environ.get("KFORMER_TRACEBACK") == "1":
        sys.stderr.writelines(lines)
    print(f"error: {explanation(''.join(lines), -code, arguments)}", file=sys.stderr)
    return 1


def explanation(log, number, arguments):
    """Why the child of a training on several hosts was ended by a signal.

    Args:
        log: str. The last of what its libraries wrote.
        number: int. The signal.
        arguments: list of str, the command line.

    Returns:
        str, a sentence.
    """
    if _NOBODY_CAME.search(log):
        return (
            f"The hosts did not all come within {seconds_to_meet()} seconds: start the same "
            "command on each, with its own --host-index, and see that all reach the port of the "
            "first."
        )
    run = value_of("--output", arguments) or "RUN"
    names = [
        path.name.partition("-")[2] for path in pathlib.Path(run, "checkpoints").glob("step-*")
    ]
    steps = [int(name) for name in names if name.isdecimal()]
    where = f"{run} has no checkpoint yet, so the training begins at step 0."
    if steps:
        where = f"the training goes on from step {max(steps):,} of {run}."
    lost = ""
    if match := _SILENT.search(log):
        numbers = match[1].split()
        lost = f"Host {numbers[0]} no longer answers"
        if numbers[1:]:
            lost = f"Hosts {' and '.join(numbers)} no longer answer"
    elif _FIRST_IS_LOST.search(log):
        lost = "Host 0 no longer answers"
    if lost:
        return f"{lost}: start the same command with --resume on all hosts once it is back; {where}"
    name = signal.Signals(number).name
    return f"The training was ended by {name}: start the same command with --resume; {where}"


def take_streams():
    """In a child: takes the parent's streams, and ends this process when the parent ends.

    Returns:
        bool. Whether this is a child.
    """
    descriptors = os.environ.get(_DESCRIPTORS)
    if descriptors is None:
        return False
    output, errors = map(int, descriptors.split(","))
    encoding = sys.stderr.encoding
    sys.stdout = open(output, "w", encoding=encoding)  # noqa: SIM115
    sys.stderr = open(errors, "w", encoding=encoding, buffering=1)  # noqa: SIM115

    def wait():
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
    return True


def end_child(code):
    """Ends a child at once: JAX would wait for the other hosts first, and then abort."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
