"""A process that trains one run for another process, as `kformer.trainer.jobs` starts it.

The first line of standard input says what to do. When standard input ends, so has the other
process, and the training ends with a checkpoint. The last line of standard output has the result.
"""

import json
import os
import signal
import sys
import threading

from kformer_cli.environment import prepare_environment, quiet_imports
from kformer_cli.main import describe
from kformer_options.names import command_line_names


def _end_with_parent():
    sys.stdin.read()
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        for stream in (1, 2):  # Nobody reads them any more, and a failed print has no checkpoint.
            os.dup2(nothing.fileno(), stream)
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    """Trains, and returns the exit code."""
    prepare_environment([])
    work = json.loads(sys.stdin.readline())
    with quiet_imports():
        from kformer.trainer.jobs import ERROR, RESULT
        from kformer.trainer.run import train_run
        from kformer.training.machine import configure_machine

    threading.Thread(target=_end_with_parent, daemon=True).start()
    settings = {name: work[name] for name in ("resume", "show_progress")}
    try:
        with command_line_names(work["is_command"]):
            configure_machine(**work["machine"])
            result = train_run(work["path"], **settings, **work["options"])
    except (Exception, KeyboardInterrupt) as error:
        message, code = describe(error)
        print(f"{ERROR}{message}", flush=True)
        return code
    parts = {name: value for name, value in result._asdict().items() if name != "path"}
    print(f"{RESULT}{json.dumps(parts)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
