"""Which requests are accepted: by a queue in texts, and by what can be answered in time."""

import contextlib

from kformer.serving.interface import Overloaded

# Maximum of the expected wait, as a fraction of the time to the deadline.
_SAFE_SHARE = 0.7
_MOST_RETRY_AFTER = 60.0


class _Line:
    """The requests of one model: how many texts of each are not answered, and the model's rate."""

    def __init__(self):
        self.requests, self.rate, self._seen = {}, 0.0, (0, 0.0)

    def observe(self, *totals):
        """Updates the rate from the total texts and seconds of a busy model."""
        texts, seconds = (new - old for new, old in zip(totals, self._seen, strict=True))
        self._seen = totals
        if seconds > 0 and texts > 0:
            rate = texts / seconds
            self.rate = (self.rate + rate) / 2 if self.rate else rate


class Admission:
    """The texts that are accepted and not yet answered.

    A request is refused if the queue of its model is full, or if the texts before it would take
    longer than its deadline allows, by the rate that was observed. If the queue is empty, a request
    is accepted whatever its size.

    Args:
        max_queue: int. Maximum number of texts of a model that are accepted and not yet answered.

    Attributes:
        texts: int. Number of texts of all models that are accepted and not yet answered.
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
            texts_per_second: float, default 0. The rate in the warm-up, which counts until a rate
                has been observed.

        Raises:
            Overloaded: the request is refused.
        """
        line = self._lines.setdefault(model, _Line())
        waiting, rate = line.requests.values(), line.rate or texts_per_second
        # The model computes texts of all requests in turns.
        ahead = count + sum(min(texts, count) for texts in waiting)
        seconds, message = ahead / rate if rate else 0.0, ""
        if line.requests and sum(waiting) + count > self._max_queue:
            message = f"The queue of {self._max_queue} texts is full: ask again later."
        elif line.requests and seconds > _SAFE_SHARE * seconds_left:
            message = "The server is too busy to answer in time: ask again later."
        if message:
            raise Overloaded(message, min(_MOST_RETRY_AFTER, max(1.0, seconds / 2)))
        key = object()
        line.requests[key] = count
        self.texts += count
        try:
            yield
        finally:
            del line.requests[key]
            self.texts -= count

    def observe(self, stats, replicas):
        """Estimates the rates from what an engine has computed.

        Args:
            stats: list of `ModelStats`.
            replicas: int. Batches that are computed at the same time.
        """
        for name in {one.name for one in stats}:
            ours = [one for one in stats if one.name == name]
            texts = sum(one.busy_texts for one in ours)
            seconds = sum(one.busy_seconds for one in ours) / replicas
            self._lines.setdefault(name, _Line()).observe(texts, seconds)
