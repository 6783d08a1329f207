"""The page's side of the server: its files, and the little interface that its script calls."""

import asyncio
import json
import time

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.serving import interface
from kformer.serving.page.content import attention_entry, line_entry, model_entry
from kformer.serving.page.document import POLICY, asset, asset_names
from kformer.serving.page.examples import example_for

# What everybody may read, also where the server asks for keys: it says nothing of any model.
OPEN_PATHS = ("/", *(f"/page/{name}" for name in asset_names()))
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The status of each error, the first that fits.
_STATUSES = (
    (interface.TooLarge, 413),
    (interface.InvalidRequest, 400),
    (interface.Unauthorized, 401),
    (interface.UnknownModel, 404),
    (interface.UnknownSignature, 404),
    (interface.Overloaded, 429),
    (interface.DeadlineExceeded, 504),
    ((interface.Draining, interface.NotReady), 503),
)


def page_routes(engine, settings):
    """The routes of the page: `/`, its files, and what its script asks for under `/page/`.

    Args:
        engine: `kformer.serving.interface.Engine`.
        settings: `kformer.serving.settings.ServerSettings`. Its limits and its deadline hold here,
            too; keys are the ingress's to check, for all paths but `OPEN_PATHS`.

    Returns:
        List of `starlette.routing.Route`.

    Example:
    ```python
    # app = starlette.applications.Starlette(routes=page_routes(engine, settings))
    ```
    """
    page = _Page(engine, settings)
    return [
        Route("/", _file("index.html"), methods=["GET"]),
        *(Route(f"/page/{name}", _file(name), methods=["GET"]) for name in asset_names()),
        Route("/page/models", _answer(page.models), methods=["GET"]),
        Route("/page/translate", _answer(page.translate), methods=["POST"]),
        Route("/page/attention", _answer(page.attention), methods=["POST"]),
    ]


def _file(name):
    """The handler of a file of the page."""
    content = asset(name)
    kind = f"{_TYPES[name.rsplit('.', 1)[1]]}; charset=utf-8"

    async def handler(request):
        return Response(content, headers={**_HEADERS, "content-type": kind})

    return handler


def _answer(method):
    """The handler of a method that returns JSON values, or raises a `ServingError`."""

    async def handler(request):
        headers = {**_HEADERS, "cache-control": "no-store"}
        try:
            return JSONResponse(await method(request), headers=headers)
        except interface.ServingError as error:
            if isinstance(error, interface.Overloaded):
                headers["retry-after"] = str(max(1, round(error.retry_after)))
            status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
            code = "lines" if isinstance(error, _TooManyLines) else "error"
            return JSONResponse({"error": str(error), "code": code}, status, headers)

    return handler


class _TooManyLines(interface.TooLarge):
    """The text has more lines than a request may have texts."""


class _Page:
    """What the script of the page asks for."""

    def __init__(self, engine, settings):
        self.engine = engine
        self.settings = settings

    async def models(self, request):
        """The models that are ready."""
        found = []
        for name in self.engine.models():
            try:
                version = self.engine.metadata(name)
            except interface.ServingError:
                continue
            outputs = version.signatures[interface.DEFAULT_SIGNATURE].outputs
            if any(output.name == "translation" for output in outputs):
                found.append(_model(version))
        return {"models": found}

    async def translate(self, request):
        """The translations of each line of a text, the n best where the model has them."""
        model, text = await self._read(request)
        version = self.engine.metadata(model)
        lines = text.replace("\r\n", "\n").split("\n")
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        if len(numbers) > self.settings.max_texts:
            raise _TooManyLines(
                f"The text has {len(numbers)} lines, but a request may have "
                f"{self.settings.max_texts}: shorten it."
            )
        name = "n_best" if "n_best" in version.signatures else interface.DEFAULT_SIGNATURE
        start = time.monotonic()
        entries = [line_entry(line, [], []) for line in lines]
        if numbers:
            reply = await self._run(request, model, name, [lines[number] for number in numbers])
            version = self.engine.metadata(model, reply.version)
            rows = _hypotheses(reply.outputs)
            for number, (texts, scores, truncated) in zip(numbers, rows, strict=True):
                entries[number] = line_entry(lines[number], texts, scores, truncated)
        milliseconds = 1000 * (time.monotonic() - start)
        return {"model": _model(version), "lines": entries, "milliseconds": milliseconds}

    async def attention(self, request):
        """The attention behind the best translation of one line."""
        model, text = await self._read(request)
        reply = await self._run(request, model, "attention", [text])
        source, target = (
            [token.decode("utf-8", "replace") for token in reply.outputs[name][0] if token]
            for name in ("source_tokens", "target_tokens")
        )
        weights = reply.outputs["attention"][0][:, :, : len(target), : len(source)]
        return attention_entry(source, target, {"cross": (weights, target, source)})

    async def _read(self, request):
        """The name of a model and a text, from the body of a request."""
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            # A form of another site cannot send this type.
            raise interface.InvalidRequest("The content type must be application/json.")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self.settings.max_body_bytes:
                raise interface.TooLarge(
                    f"A request may have {self.settings.max_body_bytes} bytes: shorten it."
                )
        try:
            content = json.loads(body)
            model, text = content["model"], content["text"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise interface.InvalidRequest(
                "The body must be a JSON object with model and text."
            ) from error
        if not isinstance(model, str) or not isinstance(text, str):
            raise interface.InvalidRequest("model and text must be strings.")
        return model, text

    async def _run(self, request, model, signature, texts):
        """The engine's reply, unless the client leaves before."""
        limit = self.settings.max_text_bytes
        texts = [text.encode("utf-8", "replace") for text in texts]
        if any(len(text) > limit for text in texts):
            raise interface.TooLarge(f"A line may have {limit} bytes: shorten it.")
        deadline = time.monotonic() + self.settings.deadline_s
        asked = interface.Request(model, texts, signature, deadline=deadline)
        running = asyncio.ensure_future(self.engine.run(asked))
        leaving = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise interface.DeadlineExceeded("The client left.")
            return running.result()
        finally:
            running.cancel()
            leaving.cancel()


def _model(version):
    return model_entry(
        version.name,
        version.languages,
        version=version.version,
        example=version.example or example_for((version.languages or (None,))[0]),
        attention="attention" in version.signatures,
    )


def _hypotheses(outputs):
    """Yields texts, scores and whether the text was cut, of each text of a reply."""
    texts, scores = outputs.get("translations"), outputs.get("scores")
    if texts is None:
        texts, scores = outputs["translation"][:, None], outputs["score"][:, None]
    for row, row_scores, truncated in zip(texts, scores, outputs["truncated"], strict=True):
        yield [text.decode("utf-8", "replace") for text in row], row_scores.tolist(), truncated


async def _departure(request):
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
