"""The common part of all protocols: limits, keys, admission, deadline, metrics."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import time

from kformer.serving import interface
from kformer.serving.admission import Admission
from kformer.serving.interface import ServingError, require
from kformer.serving.keys import ApiKeys
from kformer.serving.metrics import Metrics
from kformer.serving.settings import named_glossary
from kformer_options.key_file import keys_in
from kformer_options.model_folders import languages_of_name

_RATES_EVERY_S = 1.0
_logger = logging.getLogger(__name__)


class Ingress:
    """The common part of the protocols.

    Args:
        engine: `Engine`.
        settings: `ServerSettings`.

    Attributes:
        is_draining: bool. Whether the server is ending.
        is_ready: bool. Whether every model has answered its warm-up.
        glossaries: dict of `NAME`, or `NAME:SOURCE-TARGET` for a pair of languages alone, to
            `kformer.documents.Glossary`.
        last_arrival: float. `time.monotonic()` when the last request came.
    """

    def __init__(self, engine, settings):
        self.engine, self.settings = engine, settings
        self.admission = Admission(settings.max_queue)
        self.metrics = Metrics(engine, self.admission)
        self.keys = ApiKeys(keys_in(settings.api_keys) if settings.api_keys is not None else ())
        self.glossaries = dict(map(named_glossary, settings.glossaries))
        self.is_draining = self.is_started = False
        self.last_arrival = self._rates_at = -math.inf
        self._looking = None
        self._documents, self._has_none = 0, asyncio.Event()
        self._has_none.set()

    @property
    def is_ready(self):
        return self.is_started and not self.is_draining

    async def answer(self, protocol, request, *, start=None, is_part=False):
        """Answers a request, or raises a `ServingError`.

        Args:
            protocol: str. Its name in the metrics.
            request: `Request`. Its deadline is the client's own, if it has one.
            start: float, default now. `time.monotonic()` when the request began.
            is_part: bool, default `False`. Whether it is of a `document()`, which is counted once
                all of its texts are answered, and finished while the server ends.

        Returns:
            `Reply`.
        """
        start = time.monotonic() if start is None else start
        self.last_arrival = start
        self._look_at_rates()
        model, deadline = request.model, start + self.settings.deadline_s
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        try:
            if self.is_draining and not is_part:
                raise interface.Draining
            reply = await self._answer(dataclasses.replace(request, deadline=deadline))
        except ServingError as error:
            error.model = model
            raise
        except asyncio.CancelledError:
            self.metrics.failed(protocol, model, "ClientLeft")
            raise
        except Exception as error:
            _logger.exception("a request failed")
            failure = interface.ModelFailed()
            failure.model = model
            raise failure from error
        if not is_part:
            self.metrics.answered(protocol, model, reply.version, len(request.texts), start)
        return reply

    @contextlib.contextmanager
    def document(self):
        """A context of a request that calls the model several times; the drain waits for its end.

        Raises:
            Draining: the server is ending.
        """
        if self.is_draining:
            raise interface.Draining
        self.last_arrival = time.monotonic()
        self._documents += 1
        self._has_none.clear()
        try:
            yield
        finally:
            self._documents -= 1
            if not self._documents:
                self._has_none.set()

    def glossaries_for(self, pair):
        """Dict of name to `Glossary`: those for a pair of languages.

        Args:
            pair: pair of str, or of `None` where it is not known. A glossary for it goes before one
                of the same name for all pairs.
        """
        glossaries = {}
        for key in sorted(self.glossaries):
            name, colon, languages = key.partition(":")
            if not colon or languages_of_name(languages) == pair:
                glossaries[name] = self.glossaries[key]
        return glossaries

    def glossary(self, name, pair):
        """The `Glossary` that a request names, or `None` where it names none.

        Args:
            name: any JSON value.
            pair: as for `glossaries_for`.

        Raises:
            InvalidRequest: there is no such glossary.
        """
        if name is None or name == "":
            return None
        glossaries = self.glossaries_for(pair)
        is_known = isinstance(name, str) and name in glossaries
        names = ", ".join(glossaries) or "none"
        languages = f" for {'-'.join(pair)}" if pair[0] else ""
        require(is_known, f"There is no glossary of that name{languages}, but {names}.")
        return glossaries[name]

    async def drain(self, seconds):
        """Accepts nothing new, and returns when the documents in flight are done.

        Args:
            seconds: float. Maximum of the wait.
        """
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_none.wait()

    def check_sizes(self, texts, most=math.inf, what=""):
        """Checks the number of a request's texts and their bytes.

        Args:
            texts: list of bytes.
            most: int, default the limit of the settings, which is never exceeded.
            what: str, default empty. What has the limit `most`, in words.

        Raises:
            TooLarge: a limit is exceeded.
        """
        most, most_bytes = min(most, self.settings.max_texts), self.settings.max_text_bytes
        message = f"The request has {len(texts)} texts, but at most {most} are allowed{what}"
        require(len(texts) <= most, f"{message}: send fewer at once.", interface.TooLarge)
        longest = max(map(len, texts), default=0)
        message = f"A text has {longest} bytes, but at most {most_bytes} are allowed."
        require(longest <= most_bytes, message, interface.TooLarge)

    async def _answer(self, request):
        info = self.engine.metadata(request.model, request.version)
        outputs, count = info.signature(request.signature).outputs, len(request.texts)
        require(count, "The request has no text.")
        if any(output.name == "source_tokens" for output in outputs):
            self.check_sizes(request.texts, self.settings.max_attention_texts, " for attention")
        else:
            self.check_sizes(request.texts)
        rate = info.texts_per_second * self.settings.replicas
        with self.admission.admitted(request.model, count, request.seconds_left, rate):
            return await self.engine.run(request)

    def _look_at_rates(self):
        """Updates the rates of the admission, at most once a second."""
        now = time.monotonic()
        if now - self._rates_at < _RATES_EVERY_S or (self._looking and not self._looking.done()):
            return

        async def look():
            self.admission.observe(await self.engine.stats(), self.settings.replicas)

        self._rates_at, self._looking = now, asyncio.create_task(look())


class Protocol:
    """What the protocols share.

    Args:
        ingress: `Ingress`.
    """

    def __init__(self, ingress):
        self.ingress, self.engine = ingress, ingress.engine
