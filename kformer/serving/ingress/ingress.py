"""The common part of all protocols: limits, keys, admission, deadline, metrics."""

import asyncio
import contextlib
import logging
import math
import time

from kformer.documents.glossary import Glossary
from kformer.serving import interface
from kformer.serving.admission import Admission
from kformer.serving.interface import (
    DEFAULT_SIGNATURE,
    Draining,
    InvalidRequest,
    ModelFailed,
    Request,
    ServingError,
    TooLarge,
)
from kformer.serving.keys import ApiKeys
from kformer.serving.metrics import Metrics
from kformer_options.key_file import keys_in
from kformer_options.model_folders import name_and_path

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
        glossaries: dict of name to `kformer.documents.Glossary`.
        last_arrival: float. `time.monotonic()` when the last request came.
    """

    def __init__(self, engine, settings):
        self.engine, self.settings = engine, settings
        self.admission = Admission(settings.max_queue)
        self.metrics = Metrics(engine, self.admission)
        self.keys = ApiKeys(keys_in(settings.api_keys) if settings.api_keys is not None else ())
        paths = dict(map(name_and_path, settings.glossaries))
        self.glossaries = {name: Glossary.load(path) for name, path in paths.items()}
        self.is_draining = False
        self.is_started = False
        self.last_arrival = -math.inf
        self._rates_at, self._looking = -math.inf, None
        self._documents, self._has_none = 0, asyncio.Event()
        self._has_none.set()

    @property
    def is_ready(self):
        return self.is_started and not self.is_draining

    async def answer(
        self,
        protocol,
        model,
        texts,
        *,
        signature=DEFAULT_SIGNATURE,
        version=None,
        start=None,
        seconds_left=None,
        is_part=False,
    ):
        """Answers a request, or raises a `ServingError`.

        Args:
            protocol: str. Its name in the metrics.
            model: str.
            texts: list of bytes.
            signature: str, default "serving_default".
            version: int, default `None`, for the newest.
            start: float, default now. `time.monotonic()` when the request began.
            seconds_left: float, default `None`. The client's own deadline, if it is earlier.
            is_part: bool, default `False`. Whether it is of a `document()`, which is counted once
                all of its texts are answered, and finished while the server ends.

        Returns:
            `Reply`.
        """
        start = time.monotonic() if start is None else start
        self.last_arrival = start
        self._look_at_rates()
        deadline = start + self.settings.deadline_s
        if seconds_left is not None:
            deadline = min(deadline, time.monotonic() + seconds_left)
        try:
            if not is_part:
                self._check_is_open()
            reply = await self._answer(model, version, signature, texts, deadline)
        except ServingError as error:
            self.metrics.refused(protocol, model, error)
            raise
        except asyncio.CancelledError:
            self.metrics.failed(protocol, model, "ClientLeft")
            raise
        except Exception as error:
            self.metrics.failed(protocol, model, "ModelFailed")
            _logger.exception("a request failed")
            raise ModelFailed from error
        if not is_part:
            self.metrics.answered(protocol, model, reply.version, len(texts), start)
        return reply

    @contextlib.contextmanager
    def document(self):
        """A context of a request that calls the model several times; the drain waits for its end.

        Raises:
            Draining: the server is ending.
        """
        self._check_is_open()
        self.last_arrival = time.monotonic()
        self._documents += 1
        self._has_none.clear()
        try:
            yield
        finally:
            self._documents -= 1
            if not self._documents:
                self._has_none.set()

    def glossary(self, name):
        """The `Glossary` that a request names, or `None` where it names none.

        Args:
            name: any JSON value.

        Raises:
            InvalidRequest: there is no such glossary.
        """
        if name is None or name == "":
            return None
        if not isinstance(name, str) or name not in self.glossaries:
            raise InvalidRequest("There is no glossary of that name.")
        return self.glossaries[name]

    async def drain(self, seconds):
        """Accepts nothing new, and returns when the documents in flight are done.

        Args:
            seconds: float. Maximum of the wait.
        """
        self.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_none.wait()

    def _check_is_open(self):
        if self.is_draining:
            raise Draining

    async def _answer(self, model, version, signature, texts, deadline):
        info = self.engine.metadata(model, version)
        self._check_texts(texts, info.signature(signature))
        request = Request(model, texts, signature, version, deadline)
        rate = info.texts_per_second * self.settings.replicas
        with self.admission.admitted(model, len(texts), request.seconds_left, rate):
            return await self.engine.run(request)

    def _look_at_rates(self):
        """Updates the rates of the admission, at most once a second."""
        now = time.monotonic()
        if now - self._rates_at < _RATES_EVERY_S or (self._looking and not self._looking.done()):
            return

        async def look():
            self.admission.observe(await self.engine.stats(), self.settings.replicas)

        self._rates_at, self._looking = now, asyncio.create_task(look())

    def _check_texts(self, texts, signature):
        if not texts:
            raise InvalidRequest("The request has no text.")
        most, what = self.settings.max_texts, ""
        if any(output.name == "source_tokens" for output in signature.outputs):
            most, what = min(most, self.settings.max_attention_texts), " for attention"
        check_count(len(texts), most, what)
        longest = max(map(len, texts))
        if longest > self.settings.max_text_bytes:
            raise TooLarge(
                f"A text has {longest} bytes, but at most {self.settings.max_text_bytes} are "
                "allowed."
            )


def check_count(count, most, what=""):
    """Raises `TooLarge` if a request has more than `most` texts."""
    if count > most:
        raise TooLarge(
            f"The request has {count} texts, but at most {most} are allowed{what}: send fewer at "
            "once."
        )


# The status of each error in HTTP, and its code in gRPC.
CODES = {
    interface.InvalidRequest: (400, "INVALID_ARGUMENT"),
    interface.Unauthorized: (401, "UNAUTHENTICATED"),
    interface.UnknownModel: (404, "NOT_FOUND"),
    interface.UnknownSignature: (400, "INVALID_ARGUMENT"),
    interface.TooLarge: (413, "INVALID_ARGUMENT"),
    interface.Overloaded: (429, "RESOURCE_EXHAUSTED"),
    interface.ModelFailed: (500, "INTERNAL"),
    interface.Draining: (503, "UNAVAILABLE"),
    interface.NotReady: (503, "UNAVAILABLE"),
    interface.DeadlineExceeded: (504, "DEADLINE_EXCEEDED"),
}
