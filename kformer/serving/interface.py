"""The interface between the two parts of the server: requests, replies, errors, and the engine.

The ingress (protocols, admission, deadlines) uses an `Engine` and no TensorFlow. An engine does not
depend on protocols. Everything here can be pickled, since an engine may compute elsewhere.
"""

import collections
import dataclasses
import time

from kformer_options.wording import shown

DEFAULT_SIGNATURE = "serving_default"
# States of a version, in the words of TensorFlow Serving.
LOADING, AVAILABLE, UNLOADING, END = "LOADING", "AVAILABLE", "UNLOADING", "END"


@dataclasses.dataclass(frozen=True)
class Request:
    """Texts for one signature of one model.

    Args:
        model: str. The model's name.
        texts: list of bytes, UTF-8.
        signature: str, default "serving_default".
        version: int, default `None`, for the newest that is available.
        deadline: float, default `None`, for none. The `time.monotonic()` after which nobody waits
            for the reply. Another process gets the seconds that are left, by its own clock.
    """

    model: str
    texts: list
    signature: str = DEFAULT_SIGNATURE
    version: int | None = None
    deadline: float | None = None

    @property
    def seconds_left(self):
        """Seconds to the deadline, at least 0, or `None` without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def __getstate__(self):
        return {**self.__dict__, "deadline": self.seconds_left}

    def __setstate__(self, state):
        seconds = state["deadline"]
        deadline = None if seconds is None else time.monotonic() + seconds
        self.__dict__.update(state, deadline=deadline)


@dataclasses.dataclass(frozen=True)
class Reply:
    """What a signature returned, one row for each text, in the order of the texts.

    Args:
        outputs: dict of output name to NumPy array, the texts' axis first: object arrays of bytes
            for texts, float32, bool. `serving_default` has `translation`, `score` and `truncated`;
            `n_best` also `translations` and `scores` `[B, N]`; `attention` has `translation`,
            `source_tokens` `[B, S]`, `target_tokens` `[B, T]` and `attention` `[B, layers, heads,
            T, S]`. Padding is an empty token.
        version: int. The version that answered.
    """

    outputs: dict
    version: int


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One input or output of a signature.

    Args:
        name: str. As a request or reply names it.
        dtype: str. TensorFlow's name: "string", "float32", "bool", "int32".
        shape: tuple of int, -1 for any size.
        tensor: str. The tensor's name in the graph.
    """

    name: str
    dtype: str
    shape: tuple
    tensor: str = ""


@dataclasses.dataclass(frozen=True)
class SignatureInfo:
    """One signature.

    Args:
        inputs, outputs: tuples of `TensorInfo`, in the order of their names.
    """

    inputs: tuple
    outputs: tuple


@dataclasses.dataclass(frozen=True)
class ModelVersion:
    """One version of a model.

    Args:
        name: str. The model's name.
        version: int.
        state: str. LOADING, AVAILABLE, UNLOADING or END. END with an `error` was refused.
        error: str, default empty. Why it was refused, without paths.
        signatures: dict of name to `SignatureInfo`, default empty. Known when it is available.
        search: dict, default empty. The search options it was exported with, such as `n_best`.
        dtype: str, default empty. How its matrices are stored.
        languages: pair of str, default `None`. Source and target code, of a model named by its
            pair, such as "en-de".
        texts_per_second: float, default 0. The rate of the fastest call of the warm-up.
        example: str, default empty. A text to try, from what the SavedModel was made from.
    """

    name: str
    version: int
    state: str
    error: str = ""
    signatures: dict = dataclasses.field(default_factory=dict)
    search: dict = dataclasses.field(default_factory=dict)
    dtype: str = ""
    languages: tuple | None = None
    texts_per_second: float = 0.0
    example: str = ""

    def signature(self, name):
        """The `SignatureInfo` of a name.

        Args:
            name: str.

        Raises:
            UnknownSignature: the version has no such signature.
        """
        names = ", ".join(self.signatures)
        message = f"The model has no signature of that name, {shown(name)}, but {names}."
        require(name in self.signatures, message, UnknownSignature)
        return self.signatures[name]


@dataclasses.dataclass
class ModelStats:
    """What a version has computed since the engine started, and what waits for it now.

    Args:
        name: str. The model's name.
        version: int.
        batches: `collections.Counter` of numbers of texts: the number of batches with so many.
        texts: int. Texts that were translated.
        tokens: int. Their tokens and those of the translations, estimated from their bytes.
        seconds: float. Time in which a batch was computed, added up.
        busy_texts: int. Texts of the batches that show how fast a busy model is.
        busy_seconds: float. The time of these batches.
        waiting: int. Texts in the queue.
    """

    name: str
    version: int
    batches: dict = dataclasses.field(default_factory=collections.Counter)
    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    busy_texts: int = 0
    busy_seconds: float = 0.0
    waiting: int = 0


class ServingError(Exception):
    """An error of a request. Its message is one sentence for the client, without texts or paths.

    Args:
        message: str, default that of the class.
    """

    message = "The request failed."
    # The status in HTTP, and the code in gRPC.
    codes = 500, "INTERNAL"
    model = ""  # Where it is known.

    def __init__(self, message=None):
        super().__init__(message or self.message)


class InvalidRequest(ServingError):
    """The request is malformed."""

    codes = 400, "INVALID_ARGUMENT"


class UnknownModel(ServingError):
    """No model has that name, or that version of it is not served."""

    codes = 404, "NOT_FOUND"


class UnknownSignature(InvalidRequest):
    """The model has no such signature."""


class TooLarge(ServingError):
    """A body, a text or the number of texts is above its limit."""

    codes = 413, "INVALID_ARGUMENT"


class Unauthorized(ServingError):
    """The request has no valid API key."""

    codes = 401, "UNAUTHENTICATED"


class Overloaded(ServingError):
    """The queue is full, or the reply would not be ready by the deadline.

    Args:
        message: str.
        retry_after: float, default 1. Seconds after which it is worth another try.
    """

    codes = 429, "RESOURCE_EXHAUSTED"

    def __init__(self, message, retry_after=1.0):
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(ServingError):
    """The deadline came before the reply."""

    message = "The reply was not ready by the deadline."
    codes = 504, "DEADLINE_EXCEEDED"


class Draining(ServingError):
    """The server is ending, and takes nothing new."""

    message = "The server is ending: ask again in a moment."
    codes = 503, "UNAVAILABLE"


class NotReady(ServingError):
    """The model is still being loaded."""

    codes = 503, "UNAVAILABLE"


class ModelFailed(ServingError):
    """The model raised an error. The server's log has it."""

    message = "The model failed; the server's log says why."


def require(condition, message, error=InvalidRequest):
    """Raises the error of a request unless a condition holds.

    Args:
        condition: any, for its truth.
        message: str. What the client reads.
        error: class of `ServingError`, default `InvalidRequest`.
    """
    if not condition:
        raise error(message)


class Engine:
    """Where models are loaded and computed. Its methods run in one event loop.

    Subclasses are made with the server's settings alone: `LocalEngine(settings)`.
    """

    async def start(self):
        """Loads every model and warms it up; returns when each is ready.

        Raises:
            Exception: a model cannot be loaded. Nothing is left running.
        """

    async def run(self, request):
        """Answers a request.

        If the caller is cancelled, what has not begun to be computed is dropped.

        Args:
            request: `Request`.

        Returns:
            `Reply`.

        Raises:
            UnknownModel, UnknownSignature, NotReady, Draining, DeadlineExceeded, ModelFailed: see
                there.
        """

    def models(self):
        """Dict of model name to a list of `ModelVersion`, newest first, as they are now.

        Returns at once. A model that is configured has an entry even while it is loaded.
        """

    def metadata(self, model, version=None):
        """The `ModelVersion` that answers requests for a model.

        Args:
            model: str.
            version: int, default `None`, for the newest that is available.

        Raises:
            UnknownModel: it is not served.
            NotReady: no version is available yet.
        """
        available = [one for one in self.versions(model) if one.state == AVAILABLE]
        for one in available:
            if version in (None, one.version):
                return one
        if version is not None:
            raise _unknown_version(model, version, available)
        raise NotReady(f"The model {model!r} is not ready yet.")

    def versions(self, model, version=None):
        """The list of `ModelVersion` of a model, whatever their states, newest first.

        Args:
            model: str.
            version: int, default `None`, for all.

        Raises:
            UnknownModel: there is none.
        """
        models = self.models()
        message = f"There is no model {shown(model)}, but {', '.join(models)}."
        require(model in models, message, UnknownModel)
        versions = [one for one in models[model] if version in (None, one.version)]
        if version is not None and not versions:
            raise _unknown_version(model, version, models[model])
        return versions

    async def stats(self):
        """A list of `ModelStats`, one for each version that has been served."""

    async def drain(self, seconds):
        """Refuses new requests, and returns when those in flight are answered.

        Args:
            seconds: float. After so long the rest gets `Draining`.
        """

    async def close(self):
        """Ends threads and processes, and frees the models."""


def _unknown_version(model, version, versions):
    numbers = ", ".join(str(one.version) for one in versions) or "none yet"
    return UnknownModel(f"The model {model!r} has no version {version} here, but {numbers}.")
