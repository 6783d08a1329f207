"""A process that trains one run for another process, as `kformer.trainer.jobs` starts it.

The first line of standard input is the work, as JSON. When standard input ends, so has the other
process, and the training ends with a checkpoint. Each line of standard output is a JSON list of a
kind and a value: a sentence ("setting" or "outcome"), the "result", or the message of a
`ValueError` ("mistake") or another exception ("error").
"""

import contextlib
import functools
import json
import os
import pathlib
import signal
import sys
import threading

from rich.console import Console

from kformer.trainer.training import Reports, train_one
from kformer.training.callbacks.progress import TrainingProgress
from kformer.training.machine import configure_machine
from kformer_options.names import command_line_names

# Between two lines of the progress within an epoch.
_SECONDS = 60.0


class _Channel:
    """Standard output, as lines of JSON. What libraries print goes to standard error."""

    def __init__(self):
        self._output = os.dup(1)
        os.dup2(2, 1)

    def send(self, kind, value):
        # When the other process has ended, nobody reads it, and there is still a checkpoint to
        # write. Without a buffer, since a signal may interrupt another line.
        with contextlib.suppress(OSError):
            os.write(self._output, f"{json.dumps([kind, value])}\n".encode())

    def write(self, text):
        """As a file: sends the lines of the progress."""
        for line in text.splitlines():
            self.send("outcome", line)

    def flush(self):
        pass


def main():
    """Trains."""

    def end_with_parent():
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGTERM)

    channel = _Channel()
    work = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_parent, daemon=True).start()
    console = Console(file=channel, force_terminal=False)
    progress = functools.partial(TrainingProgress, seconds=_SECONDS, console=console)
    sends = (functools.partial(channel.send, kind) for kind in ("setting", "outcome"))
    reports = Reports(*sends, progress if work["shows_progress"] else None)
    try:
        with command_line_names(work["is_command"]):
            configure_machine(**work["machine"])
            result = train_one(pathlib.Path(work["path"]), work["options"], work["resume"], reports)
    except ValueError as error:
        channel.send("mistake", str(error))
    except (Exception, KeyboardInterrupt) as error:
        kind = "" if isinstance(error, KeyboardInterrupt | OSError) else f"{type(error).__name__}: "
        channel.send("error", f"{kind}{error}")
    else:
        channel.send("result", result[1:])  # The other process knows its path.


if __name__ == "__main__":
    main()
