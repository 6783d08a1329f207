"""Batches of waiting texts: limited by tokens and time, of similar lengths, fair between requests.

The texts of a request are sorted by length. A batch begins with the request that was served longest
ago, takes one text of each waiting request while they fit, and is filled up in further rounds. If
more requests wait than fit, those with texts of similar length go first; a request that was skipped
twice comes before them, if it fits beside the first.
"""

import asyncio
import collections
import contextlib
import dataclasses
import itertools
import logging
import math
import time

import numpy as np

from kformer.serving.interface import DeadlineExceeded, Draining, ModelFailed

_MOST_SKIPS = 2
# A batch is chosen among the requests in a window, of this many times the texts that fit.
_WINDOW = 4
_logger = logging.getLogger(__name__)


def estimated_tokens(text):
    """The tokens of a text, its end included, estimated from its bytes.

    Only the graph knows their number. Four bytes are about one token of most alphabets, and one
    character and a third of Chinese.
    """
    return 2 + len(text) // 4


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """What bounds a batch.

    Args:
        max_tokens: int. Most source tokens, padding included. A longer text is a batch of its own.
        max_texts: int. Most texts.
        wait: float. Seconds that a free model waits for more texts.
        longest: int, default `None`. The tokens to which the model cuts a text.
    """

    max_tokens: int
    max_texts: int
    wait: float
    longest: int | None = None


class _Job:
    """The texts of one request on their way through the batches."""

    def __init__(self, signature, texts, languages, joins, max_texts, longest, future):
        self.signature, self.texts, self.languages = signature, texts, languages
        self.future = future
        self.joins, self.max_texts = joins, max_texts
        self.lengths = [min(estimated_tokens(text), longest) for text in texts]
        # The longest come last, from where they are taken first.
        self.queue = sorted(range(len(texts)), key=self.lengths.__getitem__)
        self.computing, self.results, self.skips = 0, [], 0

    @property
    def next_length(self):
        return self.lengths[self.queue[-1]]

    def finish(self, indices, outputs):
        """Takes the rows of some of the texts."""
        self.results.append((indices, outputs))
        self.computing -= len(indices)
        if not self.queue and not self.computing and not self.future.done():
            self.future.set_result(_in_order(self.results, len(self.texts)))


def _in_order(results, count):
    """The outputs of a request, joined from those of its batches; shorter rows are padded."""
    if len(results) == 1 and list(results[0][0]) == list(range(count)):
        return results[0][1]
    merged = {}
    for name, first in results[0][1].items():
        arrays = [outputs[name] for _, outputs in results]
        shape = (count, *np.max([array.shape[1:] for array in arrays], axis=0, initial=0))
        shape = tuple(map(int, shape))
        # Integers are indices in a text, where 0 is an index.
        fill = b"" if first.dtype == object else -1 if first.dtype.kind == "i" else 0
        merged[name] = np.full(shape, fill, first.dtype)
        for (indices, _), array in zip(results, arrays, strict=True):
            within = tuple(slice(size) for size in array.shape[1:])
            merged[name][(list(indices), *within)] = array
    return merged


class Batcher:
    """Computes the texts of many requests in batches.

    Everything but the computing happens in the event loop.

    Args:
        call: function of a signature's name, a list of texts, bytes, and a list of their target
            languages or `None`, to a dict of arrays, one row for each text. It is called on a
            thread of `executor`.
        limits: `BatchLimits`.
        executor: executor with a thread for each of `replicas`.
        replicas: int, default 1. Batches computed at the same time.
        observe: function of the texts, the outputs and the seconds of a batch, and of whether texts
            that could share it did not fit; default `None`.
    """

    def __init__(self, call, limits, executor, replicas=1, observe=None):
        self._call, self._limits, self._executor = call, limits, executor
        self._observe = observe
        # The keys are the jobs with waiting texts, the one that was served longest ago first.
        self._jobs = collections.OrderedDict()
        self._open = set()  # All jobs that are not done.
        self._arrived, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._is_ended = False
        self._workers = [asyncio.create_task(self._work()) for _ in range(replicas)]

    @property
    def waiting(self):
        """Texts that wait."""
        return sum(len(job.queue) for job in self._jobs)

    async def run(
        self, signature, texts, *, languages=None, joins=True, max_texts=None, deadline=None
    ):
        """Computes texts.

        Args:
            signature: str.
            texts: list of bytes, at least one.
            languages: list of bytes, default `None`. The target language of each text; `None` for
                a signature that takes none.
            joins: bool, default `True`. Whether a batch may have texts of other requests, too.
            max_texts: int, default `None`. The most texts of a batch, for fewer than the limit.
            deadline: float, default `None`. The event loop's time of the end.

        Returns:
            Dict of output name to array.

        Raises:
            Draining: the batcher takes nothing more.
            DeadlineExceeded: the deadline came first.
            ModelFailed: the call failed.
        """
        if self._is_ended:
            raise Draining
        most = min(max_texts or math.inf, self._limits.max_texts)
        future = asyncio.get_running_loop().create_future()
        longest = self._limits.longest or math.inf
        job = _Job(signature, texts, languages, joins, most, longest, future)
        self._jobs[job] = None
        self._open.add(job)
        self._idle.clear()
        self._arrived.set()
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise DeadlineExceeded from None
        finally:
            # What has not begun is dropped when the caller leaves.
            self._drop(job)
            self._open.discard(job)
            if not self._open:
                self._idle.set()

    def _drop(self, job):
        """Removes a request from the queue."""
        job.queue = []
        self._jobs.pop(job, None)

    async def drain(self, seconds=None):
        """Returns when all texts are computed; after `seconds` waiting requests get `Draining`.

        Args:
            seconds: float, default `None`, for no limit.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        self.refuse()

    def refuse(self):
        """Accepts nothing more, and fails what waits."""
        self._is_ended = True
        for job in list(self._open):
            self._fail(job, Draining())

    def _fail(self, job, error):
        self._drop(job)
        if not job.future.done():
            job.future.set_exception(error)

    async def close(self):
        """Ends the workers, once the batches in computation are done."""
        self.refuse()
        self._arrived.set()
        await asyncio.gather(*self._workers)

    # ---- the workers ----

    async def _work(self):
        while not self._is_ended:
            await self._wait_for_texts()
            batch, is_full = self._next_batch()
            if not batch:
                continue
            try:
                await self._compute(batch, is_full)
            except Exception:
                count = sum(len(indices) for _, indices in batch)
                _logger.exception("a batch of %d texts failed", count)
                if len(batch) == 1:
                    self._fail(batch[0][0], ModelFailed())
                    continue
                # The texts of each request alone, so that one harms no other.
                for one in batch:
                    try:
                        await self._compute([one])
                    except Exception:
                        self._fail(one[0], ModelFailed())

    async def _wait_for_texts(self):
        """Waits for a full batch, or for some texts and then `BatchLimits.wait` seconds."""
        while not self._jobs and not self._is_ended:
            self._arrived.clear()
            await self._arrived.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.wait):
                while not self._is_ended and not self._is_full():
                    self._arrived.clear()
                    await self._arrived.wait()

    def _is_full(self):
        texts = tokens = 0
        for job in self._jobs:
            texts += len(job.queue)
            tokens += len(job.queue) * job.next_length
            if texts >= self._limits.max_texts or tokens >= self._limits.max_tokens:
                return True
        return False

    def _next_batch(self):
        """Removes the next batch from the queue: returns a list of (job, indices of its texts), and
        whether texts that could share the batch did not fit.
        """
        if not self._jobs:
            return [], False
        window = self._limits.max_texts * _WINDOW
        jobs = list(itertools.islice(self._jobs, window))
        head = jobs[0]
        signature = head.signature if head.joins and head.max_texts > 1 else None
        jobs = [job for job in jobs if job is head or job.signature == signature]
        if len(jobs) > head.max_texts:
            # The first, then those skipped too often, then those of similar length.
            early = {job for job in jobs if job is head or job.skips >= _MOST_SKIPS}
            distances = {job: abs(job.next_length - head.next_length) for job in jobs}
            jobs.sort(key=lambda job: -1 if job in early else distances[job])
        indices_of, size, longest, is_full = {job: [] for job in jobs}, 0, 0, False
        candidates = jobs
        while candidates:
            further = []
            for job in candidates:
                length = max(longest, job.next_length)
                tokens = (size + 1) * length
                if size and (size >= head.max_texts or tokens > self._limits.max_tokens):
                    is_full = head.joins
                    continue
                indices_of[job].append(job.queue.pop())
                size, longest = size + 1, length
                if job.queue:
                    further.append(job)
            candidates = further
        return self._take_out(indices_of), is_full

    def _take_out(self, indices_of):
        """Moves served jobs to the end of the queue, or out of it; returns the batch."""
        batch = []
        for job, indices in indices_of.items():
            if not indices:
                job.skips += 1
                continue
            job.computing += len(indices)
            job.skips = 0
            batch.append((job, indices))
            if job.queue:
                self._jobs.move_to_end(job)
            else:
                del self._jobs[job]
        return batch

    async def _compute(self, batch, is_full=False):
        """Computes a batch and gives each job its rows."""
        texts = [job.texts[index] for job, indices in batch for index in indices]
        begin, signature, languages = time.monotonic(), batch[0][0].signature, None
        if batch[0][0].languages is not None:
            languages = [job.languages[index] for job, indices in batch for index in indices]
        arguments = self._call, signature, texts, languages
        outputs = await asyncio.get_running_loop().run_in_executor(self._executor, *arguments)
        if self._observe is not None:
            self._observe(texts, outputs, time.monotonic() - begin, is_full)
        start = 0
        for job, indices in batch:
            end = start + len(indices)
            job.finish(indices, {name: rows[start:end] for name, rows in outputs.items()})
            start = end
