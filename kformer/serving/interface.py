"""The interface between the two parts of the server: requests, replies, errors, and the engine.

The ingress (protocols, admission, deadlines) uses an `Engine` and no TensorFlow. An engine does not
depend on protocols. Everything here can be pickled, since an engine may compute elsewhere.
"""

import collections
import dataclasses
import time

from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.text.languages import some_languages
from kformer_options.wording import shown

COVERAGE = "coverage"
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
        target_languages: list of bytes, default `None`. Codes of languages: one for each text, or
            one for all. An empty one, and `None`, is for the model's own.
    """

    model: str
    texts: list
    signature: str = DEFAULT_SIGNATURE
    version: int | None = None
    deadline: float | None = None
    target_languages: list | None = None

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
        inputs, outputs: tuples of `TensorInfo`, in the order of their names. The inputs are the
            texts and, if the model has several target languages, `target_language`.
    """

    inputs: tuple
    outputs: tuple

    @property
    def text(self):
        """The `TensorInfo` of the texts."""
        return next(one for one in self.inputs if one.name != TARGET_LANGUAGE)

    @property
    def has_languages(self):
        """Whether a request may name target languages."""
        return any(one.name == TARGET_LANGUAGE for one in self.inputs)

    def check_inputs(self, names):
        """Checks the names of a request's inputs.

        Args:
            names: collection of str.

        Raises:
            InvalidRequest: the texts are missing, or there is an input that the signature lacks.
        """
        is_right = self.text.name in names and set(names) <= {one.name for one in self.inputs}
        optional = f", the optional {TARGET_LANGUAGE}" if self.has_languages else ""
        message = f"The signature has the input {self.text.name}{optional} and no other."
        require(is_right, message)


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
        pairs: tuple of pairs of str, default empty. Source and target codes of what it translates:
            the pair that it is named by, such as "en-de", or those that its config or its
            languages tell.
        target_languages: tuple of str, default empty. The codes among which a request chooses.
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
    pairs: tuple = ()
    target_languages: tuple = ()
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

    def languages_into(self, code):
        """The `Request.target_languages` for translations into a language.

        Args:
            code: str or `None`. A model of one direction is asked for none, whatever its code.
        """
        return [code.encode()] if code in self.target_languages else None

    def languages_of(self, request):
        """The target language of each text of a request.

        Args:
            request: `Request`.

        Returns:
            List of bytes; `None` if the signature takes no languages.

        Raises:
            InvalidRequest: a language is unknown, or their number is not that of the texts.
        """
        signature, languages = self.signature(request.signature), request.target_languages
        count = len(request.texts)
        if languages is None:
            return [b""] * count if signature.has_languages else None
        message = f"This model has no choice of languages: leave {TARGET_LANGUAGE} out."
        require(signature.has_languages, message)
        message = f"There are {len(languages)} target languages for {count} texts: give one for "
        require(len(languages) in (1, count), f"{message}each text, or one for all.")
        known = {b"", *map(str.encode, self.target_languages)}
        unknown = next((language for language in languages if language not in known), b"")
        code = shown(unknown.decode("utf-8", "replace"))
        choices = some_languages(self.target_languages)
        require(not unknown, f"The target language {code} is unknown; choose one of {choices}.")
        return languages if len(languages) == count else languages * count


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
