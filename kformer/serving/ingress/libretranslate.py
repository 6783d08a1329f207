"""LibreTranslate's protocol, for models whose pairs of languages are known."""

import asyncio
import re
import time
import urllib.parse

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from kformer.serving.ingress.bodies import as_text, media_type, parse_json, post_route
from kformer.serving.ingress.documents import Documents
from kformer.serving.ingress.ingress import Protocol
from kformer.serving.interface import InvalidRequest, Request, TooLarge, require
from kformer.serving.languages import NAMES
from kformer_options.wording import shown

_PROTOCOL = "libretranslate"
_MOST_FIELDS = 10_000
# What LibreTranslate's own server has, and this one has not.
_MISSING = ("/translate_file", "/detect", "/suggest", "/frontend/settings")
_N_BEST = "n_best"
# The most pairs in an error message.
_SHOWN = 12


def routes(ingress):
    """The routes of the protocol.

    Args:
        ingress: `Ingress`.

    Returns:
        List of Starlette routes.
    """
    protocol = _LibreTranslate(ingress)
    return [
        post_route("/translate", ingress, protocol.translate),
        Route("/languages", protocol.languages),
        *(Route(path, _missing, methods=["GET", "POST"]) for path in _MISSING),
    ]


async def _missing(request):
    message = f"This server has no {request.url.path}: it has /translate and /languages"
    message += ", and files are translated by the command kformer translate --document FILE."
    raise HTTPException(501, message)


class _LibreTranslate(Protocol):
    async def languages(self, request):
        targets = {}
        for source, target in self._models():
            targets.setdefault(source, []).append(target)
            targets.setdefault(target, [])
        languages = [
            {"code": code, "name": NAMES.get(code, code), "targets": sorted(targets[code])}
            for code in sorted(targets)
        ]
        return JSONResponse(languages)

    async def translate(self, request, content):
        fields = _fields(request, content)
        keys = [request.headers.get(name) for name in ("authorization", "x-api-key")]
        self.ingress.keys.check(*keys, fields.get("api_key"))
        q, format = fields.get("q"), fields.get("format") or "text"
        require(isinstance(q, str | list), "q must be a text or a list of texts.")
        require(format in ("text", "html"), "format must be text or html.")
        name, pair = self._model_for(fields.get("source"), fields.get("target"))
        glossary = self.ingress.glossary(fields.get("glossary"), pair)
        alternatives = fields.get("alternatives", 0)
        if isinstance(alternatives, str) and re.fullmatch("[0-9]{1,9}", alternatives):
            alternatives = int(alternatives)
        is_count = type(alternatives) is int and alternatives >= 0
        require(is_count, "alternatives must be a whole number.")
        info = self.engine.metadata(name)
        most = info.search.get("n_best", 1) - 1 if _N_BEST in info.signatures else 0
        require(alternatives <= most, f"This model has at most {most} alternatives.", TooLarge)
        coverage = fields.get("coverage", False) in (True, "true")
        require(not (alternatives and coverage), "With coverage there are no alternatives.")
        texts = [as_text(text) for text in (q if isinstance(q, list) else [q])]
        if alternatives:
            is_plain = format == "text" and glossary is None
            require(is_plain, "With format html or a glossary there are no alternatives.")
            rows = await self._n_best(name, texts, info.languages_into(pair[1]))
            reply = {
                "translatedText": [row[0] for row in rows],
                "alternatives": [row[1 : 1 + alternatives] for row in rows],
            }
        else:
            options = {"start": time.monotonic(), "coverage": coverage}
            documents = Documents(self.ingress, _PROTOCOL, info, pair, **options)
            texts = [text.decode("utf-8", "replace") for text in texts]
            pairs = await documents.translate(texts, format, glossary)
            reply = {"translatedText": [text for text, _ in pairs]}
            if coverage:
                # In a thread: other requests are answered meanwhile.
                rows = [asyncio.to_thread(documents.coverage_of, report) for _, report in pairs]
                reply["coverage"] = await asyncio.gather(*rows)
        if not isinstance(q, list):
            reply = {key: values[0] for key, values in reply.items()}
        return JSONResponse(reply)

    async def _n_best(self, name, texts, languages):
        """The hypotheses of each text, which the model must read whole, best first."""
        are_lines = all(len(text.splitlines()) <= 1 for text in texts)
        require(are_lines, "With alternatives a text has one line: leave alternatives out.")
        query = Request(name, texts, _N_BEST, target_languages=languages)
        reply = await self.ingress.answer(_PROTOCOL, query)
        message = "A text is longer than the model reads at once: leave alternatives out, or "
        require(not reply.outputs["truncated"].any(), f"{message}shorten it.", TooLarge)
        rows = reply.outputs["translations"]
        return [[text.decode("utf-8", "replace") for text in row] for row in rows]

    def _models(self):
        """Dict of pair of languages to the name of the first model that translates it."""
        models = {}
        for name, versions in self.engine.models().items():
            # A version that is being loaded does not know them yet.
            for pair in next((one.pairs for one in versions if one.pairs), ()):
                models.setdefault(pair, name)
        return models

    def _model_for(self, source, target):
        """The name of a model, and its pair of languages."""
        are_codes = isinstance(source, str) and isinstance(target, str)
        require(are_codes, "source and target must be codes of languages, such as en and de.")
        require(source != "auto", "source must be a language: auto is not supported.")
        models = self._models()
        pairs = ", ".join(map(" to ".join, list(models)[:_SHOWN])) or "none of known languages"
        more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
        message = f"There is no model from {shown(source)} to {shown(target)}, but {pairs}{more}."
        require((source, target) in models, message)
        return models[source, target], (source, target)


def _fields(request, content):
    """The fields of a request: of JSON, whatever its type is called, or of a form."""
    kind, pairs = media_type(request), None
    try:
        if kind == "multipart/form-data":
            pairs = _multipart(request.headers["content-type"], content)
        elif kind == "application/x-www-form-urlencoded" and content.lstrip()[:1] != b"{":
            text, options = content.decode("utf-8"), {"max_num_fields": _MOST_FIELDS}
            pairs = urllib.parse.parse_qsl(text, keep_blank_values=True, **options)
    except (ValueError, TypeError):
        raise InvalidRequest("The form cannot be read.") from None
    if pairs is None:
        return parse_json(content)
    texts = [value for name, value in pairs if name == "q"]
    return {**dict(pairs), **({"q": texts} if len(texts) > 1 else {})}


def _multipart(content_type, content):
    """Pairs of names and values. `ValueError` or `TypeError` if it is malformed."""
    boundary = re.search(r'boundary=("?)([^";]{1,70})\1', content_type)[2]
    _, *parts, end = (b"\r\n" + content).split(b"\r\n--" + boundary.strip().encode())
    if not (end.startswith(b"--") and 0 < len(parts) <= _MOST_FIELDS):
        raise ValueError
    heads, values = zip(*(part.split(b"\r\n\r\n", 1) for part in parts), strict=True)
    names = [re.search(rb'[; ]name="([^"]*)"', head)[1].decode() for head in heads]
    return list(zip(names, (value.decode() for value in values), strict=True))
