"""Systems that are measured in turns, each in a process of its own that answers requests.

Other load on the machine then affects all of them alike.
"""

import json
import os
import subprocess
import sys
import tempfile


def answer(handle):
    """Runs in a system's process: answers each line of standard input.

    A line is a JSON list; the answer is `handle(*list)` as JSON.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Keeps what libraries print out of the replies.
    for line in sys.stdin:
        print(json.dumps(handle(*json.loads(line))), file=replies, flush=True)


class Worker:
    """The parent's side of a system's process.

    Args:
        system: str, its name.
        command: list of strings; the process calls `answer`.
        environment: dict of strings, its environment variables.
    """

    def __init__(self, system, command, environment):
        self.system = system
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read later
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)

    def ask(self, *request):
        """The answer to a request."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"{self.system} failed:\n{self._errors.read()[-3000:]}")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def in_turns(workers, rounds, first=0):
    """The workers of several rounds one by one; every second round has the reverse order.

    Args:
        workers: list.
        rounds: int, how often each worker comes.
        first: int, default 0. The number of the first round; even rounds are reversed.
    """
    for number in range(first, first + rounds):
        yield from workers if number % 2 else reversed(workers)
