"""Which requests are accepted: by a queue in texts, and by what can be answered in time."""

import contextlib
import time

from kformer.serving.interface import Overloaded

# Of the time to the deadline, the part that the expected wait may take.
_SAFE_SHARE = 0.7
_HALF_LIFE = 20.0
_MOST_RETRY_AFTER = 60.0


class _Line:
    """The requests of one model: how many texts of each are not answered, and the rate."""

    def __init__(self, texts_per_second):
        self.requests = {}
        self._rate = texts_per_second
        self._done, self._busy, self._since = 0.0, 0.0, time.monotonic()

    def ahead_of(self, count):
        """Texts that are computed before a request of `count` is done: the model takes turns."""
        return count + sum(min(waiting, count) for waiting in self.requests.values())

    def seconds_for(self, texts):
        """How long so many texts take, or 0 while nothing is known."""
        rate = self._done / self._busy if self._busy > 1 and self._done else self._rate
        return texts / rate if rate else 0.0

    def pass_time(self, done=0):
        """Notes the time since the last call, and texts that were answered."""
        now = time.monotonic()
        passed, self._since = now - self._since, now
        if self.requests:
            fade = 0.5 ** (passed / _HALF_LIFE)
            self._busy = self._busy * fade + passed
            self._done = self._done * fade
        self._done += done


class Admission:
    """The texts that are accepted and not yet answered.

    A request is refused where the queue is full, or where the texts before it take longer than it
    has. So a server under any load answers what it accepts in time, and refuses the rest at once.

    Args:
        max_queue: int. Most texts that are accepted and not yet answered.
    """

    def __init__(self, max_queue):
        self._max_queue = max_queue
        self._lines = {}
        self.texts = 0

    @contextlib.contextmanager
    def admitted(self, model, count, seconds_left, texts_per_second=0.0):
        """A context in which a request's texts count as accepted.

        Args:
            model: str. The model's name.
            count: int. The number of texts.
            seconds_left: float. Time to the deadline.
            texts_per_second: float, default 0. What the model reached when it was warmed up.

        Raises:
            Overloaded: the request is refused.
        """
        line = self._lines.setdefault(model, _Line(texts_per_second))
        line.pass_time()
        ahead = line.seconds_for(line.ahead_of(count))
        if line.requests and self.texts + count > self._max_queue:
            raise Overloaded(
                f"The queue of {self._max_queue} texts is full: ask again later.", _retry(ahead)
            )
        if line.requests and ahead > _SAFE_SHARE * seconds_left:
            raise Overloaded(
                "The server is too busy to answer in time: ask again later.", _retry(ahead)
            )
        key = object()
        line.requests[key] = count
        self.texts += count
        done = 0
        try:
            yield
            done = count
        finally:
            line.pass_time(done)
            del line.requests[key]
            self.texts -= count


def _retry(seconds):
    return min(_MOST_RETRY_AFTER, max(1.0, seconds / 2))
