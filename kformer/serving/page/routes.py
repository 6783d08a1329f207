"""The page's side of the server: its files, and the little interface that its script calls."""

import contextlib
import dataclasses
import time

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.plots.page.content import attention_entry, line_entry, model_entry
from kformer.plots.page.document import POLICY, asset, asset_names
from kformer.serving.ingress.bodies import (
    as_text,
    media_type,
    parse_json,
    read_body,
    while_connected,
)
from kformer.serving.ingress.documents import Documents
from kformer.serving.ingress.ingress import check_count
from kformer.serving.interface import DEFAULT_SIGNATURE, InvalidRequest, ServingError
from kformer.serving.page.examples import example_for

# What everybody may read, also where the server asks for keys: it says nothing of any model.
OPEN_PATHS = ("/", *(f"/page/{name}" for name in asset_names()))
_PROTOCOL = "page"
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def page_routes(ingress):
    """The routes of the page: `/`, its files, and what its script asks for under `/page/`.

    Args:
        ingress: `kformer.serving.ingress.ingress.Ingress`, whose limits, deadline, queue and
            metrics hold here, too. Keys are checked before, for all paths but `OPEN_PATHS`.

    Returns:
        List of `starlette.routing.Route`.
    """
    page = _Page(ingress)
    return [
        Route("/", _file("index.html"), methods=["GET"]),
        *(Route(f"/page/{name}", _file(name), methods=["GET"]) for name in asset_names()),
        Route("/page/models", page.models, methods=["GET"]),
        Route("/page/translate", page.translate, methods=["POST"]),
        Route("/page/attention", page.attention, methods=["POST"]),
    ]


def _file(name):
    """The handler of a file of the page."""
    content = asset(name)
    kind = f"{_TYPES[name.rsplit('.', 1)[1]]}; charset=utf-8"

    async def handler(request):
        return Response(content, headers={**_HEADERS, "content-type": kind})

    return handler


class _Page:
    """What the script of the page asks for."""

    def __init__(self, ingress):
        self._ingress = ingress
        self._engine = ingress.engine

    async def models(self, request):
        """The models that are ready."""
        models = []
        for name in self._engine.models():
            with contextlib.suppress(ServingError):  # It is not ready.
                version = self._engine.metadata(name)
                outputs = version.signatures[DEFAULT_SIGNATURE].outputs
                if any(output.name == "translation" for output in outputs):
                    models.append(_model(version))
        return _json({"models": models, "glossaries": sorted(self._ingress.glossaries)})

    async def translate(self, request):
        """The translations of each line of a text, the n best where the model has them; with a
        glossary one of each.
        """
        model, text, glossary = await self._read(request)
        return await while_connected(request, self._translate(model, text, glossary))

    async def attention(self, request):
        """The attention behind the best translation of one line."""
        model, text, _ = await self._read(request)
        return await while_connected(request, self._attention(model, text))

    async def _read(self, request):
        """The name of a model, a text, and a `Glossary` or `None`, from the body of a request."""
        if media_type(request) != "application/json":
            # A form of another site cannot send this type.
            raise InvalidRequest("The content type must be application/json.")
        fields = parse_json(await read_body(request, self._ingress.settings.max_body_bytes))
        model, text = fields.get("model"), fields.get("text")
        if not isinstance(model, str):
            raise InvalidRequest("model must be a string.")
        glossary = self._ingress.glossary(fields.get("glossary"))
        return model, as_text(text).decode("utf-8", "replace"), glossary

    async def _answer(self, model, signature, texts):
        texts = [text.encode("utf-8") for text in texts]
        return await self._ingress.answer(_PROTOCOL, model, texts, signature=signature)

    async def _translate(self, model, text, glossary):
        start = time.monotonic()
        version = self._engine.metadata(model)
        lines = text.replace("\r\n", "\n").split("\n")
        check_count(len(lines), self._ingress.settings.max_texts)  # Of empty ones, too.
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        entries = [line_entry(line, [], []) for line in lines]
        if numbers:
            translate = self._hypotheses if glossary is None else self._with_terms
            texts = [lines[number] for number in numbers]
            version, translated = await translate(version, texts, glossary)
            for number, entry in zip(numbers, translated, strict=True):
                entries[number] = entry
        milliseconds = 1000 * (time.monotonic() - start)
        return _json({"model": _model(version), "lines": entries, "milliseconds": milliseconds})

    async def _hypotheses(self, version, lines, _):
        """The version that answered, and the entries of the lines."""
        name = "n_best" if "n_best" in version.signatures else DEFAULT_SIGNATURE
        reply = await self._answer(version.name, name, lines)
        rows = zip(lines, _hypotheses(reply.outputs), strict=True)
        entries = [line_entry(line, *row) for line, row in rows]
        # Another version may have taken over since: the one that answered is not served any more.
        return dataclasses.replace(version, version=reply.version), entries

    async def _with_terms(self, version, lines, glossary):
        """As `_hypotheses`; the model may be asked several times for a line."""
        documents = Documents(self._ingress, _PROTOCOL, version, time.monotonic())
        translated = await documents.translate(lines, "text", glossary)
        entries = [
            line_entry(line, [text], [None], report.cut > 0, report.terms)
            for line, (text, report) in zip(lines, translated, strict=True)
        ]
        return version, entries

    async def _attention(self, model, text):
        reply = await self._answer(model, "attention", [text])
        source, target = (
            [token.decode("utf-8", "replace") for token in reply.outputs[name][0] if token]
            for name in ("source_tokens", "target_tokens")
        )
        weights = reply.outputs["attention"][0][:, :, : len(target), : len(source)]
        return _json(attention_entry(source, target, {"cross": (weights, target, source)}))


def _json(content):
    return JSONResponse(content, headers={**_HEADERS, "cache-control": "no-store"})


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
