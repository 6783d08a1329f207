"""The page's side of the server: its files, and the little interface that its script calls."""

import asyncio
import contextlib
import dataclasses
import json
import time

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.plots.page.content import attention_entry, line_entry, model_entry
from kformer.plots.page.document import POLICY, asset, asset_names
from kformer.serving.ingress.bodies import as_text, media_type, parse_json, post_route
from kformer.serving.ingress.documents import Documents
from kformer.serving.ingress.ingress import Protocol
from kformer.serving.interface import (
    COVERAGE,
    DEFAULT_SIGNATURE,
    Request,
    ServingError,
    require,
)
from kformer.serving.languages import example_for
from kformer.translating.coverage import without_model

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
    routes = [
        Route("/page/models", page.models),
        post_route("/page/translate", ingress, page.translate),
        post_route("/page/attention", ingress, page.attention),
    ]
    for path, name in zip(OPEN_PATHS, ("index.html", *asset_names()), strict=True):
        kind = f"{_TYPES[name.rsplit('.', 1)[1]]}; charset=utf-8"
        file = Response(asset(name), headers={**_HEADERS, "content-type": kind})
        routes.append(Route(path, file, methods=["GET"]))
    return routes


class _Page(Protocol):
    """What the script of the page asks for."""

    async def models(self, request):
        """The models that are ready: an entry for each pair of languages."""
        models = []
        for name in self.engine.models():
            with contextlib.suppress(ServingError):  # It is not ready.
                version = self.engine.metadata(name)
                outputs = version.signatures[DEFAULT_SIGNATURE].outputs
                if any(output.name == "translation" for output in outputs):
                    models += [self._entry(version, pair) for pair in _pairs(version)]
        return _json({"models": models})

    async def translate(self, request, content):
        """The translations of each line of a text, the n best where the model has them; with a
        glossary one of each.
        """
        version, pair, text, glossary = self._read(request, content)
        start = time.monotonic()
        lines = text.replace("\r\n", "\n").split("\n")
        self.ingress.check_sizes([line.encode("utf-8") for line in lines])  # Empty ones, too.
        numbers = [number for number, line in enumerate(lines) if line.strip()]
        entries = [line_entry(line, [], []) for line in lines]
        if numbers:
            translate = self._hypotheses if glossary is None else self._with_terms
            texts = [lines[number] for number in numbers]
            version, translated = await translate(version, pair, texts, glossary)
            for number, entry in zip(numbers, translated, strict=True):
                entries[number] = entry
        milliseconds = 1000 * (time.monotonic() - start)
        entry = self._entry(version, pair)
        return _json({"model": entry, "lines": entries, "milliseconds": milliseconds})

    async def attention(self, request, content):
        """The attention behind the best translation of one line."""
        version, pair, text, _ = self._read(request, content)
        languages = version.languages_into(pair[1])
        texts = [text.encode("utf-8")]
        query = Request(version.name, texts, "attention", target_languages=languages)
        reply = await self.ingress.answer(_PROTOCOL, query)
        source, target = (
            [token.decode("utf-8", "replace") for token in reply.outputs[name][0] if token]
            for name in ("source_tokens", "target_tokens")
        )
        weights = reply.outputs["attention"][0][:, :, : len(target), : len(source)]
        return _json(attention_entry(source, target, {"cross": (weights, target, source)}))

    def _read(self, request, content):
        """The `ModelVersion`, the pair of languages, the text, and a `Glossary` or `None`, from the
        body of a request.
        """
        # A form of another site cannot send this type.
        is_json = media_type(request) == "application/json"
        require(is_json, "The content type must be application/json.")
        fields = parse_json(content)
        require(isinstance(fields.get("model"), str), "model must be a string.")
        text = as_text(fields.get("text")).decode("utf-8", "replace")
        version = self.engine.metadata(fields["model"])
        pairs, languages = _pairs(version), fields.get("languages")
        pair = next((pair for pair in pairs if languages in (None, list(pair))), None)
        require(pair is not None, f"languages must be a pair of the model {version.name}.")
        return version, pair, text, self.ingress.glossary(fields.get("glossary"), pair)

    def _entry(self, version, pair):
        """A model with one of its pairs of languages, as the page shows it."""
        entry = model_entry(
            version.name,
            pair,
            version=version.version,
            example=(len(version.pairs) < 2 and version.example) or example_for(pair[0]),
            attention="attention" in version.signatures,
        )
        return {**entry, "glossaries": list(self.ingress.glossaries_for(pair))}

    async def _hypotheses(self, version, pair, lines, _):
        """The version that answered, and the entries of the lines."""
        names = (COVERAGE, "n_best", DEFAULT_SIGNATURE)
        name = next(name for name in names if name in version.signatures)
        languages, texts = version.languages_into(pair[1]), [line.encode() for line in lines]
        query = Request(version.name, texts, name, target_languages=languages)
        reply = await self.ingress.answer(_PROTOCOL, query)
        outputs = reply.outputs
        texts, scores = outputs.get("translations"), outputs.get("scores")
        if texts is None:
            texts, scores = outputs["translation"][:, None], outputs["score"][:, None]
        rows = [[text.decode("utf-8", "replace") for text in row] for row in texts]
        if COVERAGE in outputs:
            coverages = list(map(json.loads, outputs[COVERAGE]))
        else:
            coverages = await asyncio.to_thread(_coverages, lines, rows)
        entries = []
        for *facts, coverage in zip(
            lines, rows, scores, outputs["truncated"], coverages, strict=True
        ):
            entries.append(line_entry(*facts, coverage=coverage))
        # Another version may have taken over since: the one that answered is not served any more.
        return dataclasses.replace(version, version=reply.version), entries

    async def _with_terms(self, version, pair, lines, glossary):
        """As `_hypotheses`; the model may be asked several times for a line."""
        documents = Documents(self.ingress, _PROTOCOL, version, pair, time.monotonic())
        translated = await documents.translate(lines, "text", glossary)
        rows = [[text] for text, _ in translated]
        coverages = await asyncio.to_thread(_coverages, lines, rows)
        entries = [
            line_entry(line, row, [None], report.cut > 0, report.terms, coverage)
            for line, row, (_, report), coverage in zip(
                lines, rows, translated, coverages, strict=True
            )
        ]
        return version, entries


def _coverages(lines, rows):
    """What needs no model of the first translation in each row, as JSON values."""
    return [
        without_model(*each).as_dict() for each in zip(lines, (r[0] for r in rows), strict=True)
    ]


def _json(content):
    return JSONResponse(content, headers={**_HEADERS, "cache-control": "no-store"})


def _pairs(version):
    """The pairs of languages of a model, or one of `None` where they are not known."""
    return version.pairs or ((None, None),)
