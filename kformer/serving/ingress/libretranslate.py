"""LibreTranslate's protocol, for models that are named by their pair of languages."""

import time
import urllib.parse

from starlette.responses import JSONResponse
from starlette.routing import Route

from kformer.serving.ingress.bodies import (
    as_text,
    media_type,
    parse_json,
    read_body,
    while_connected,
)
from kformer.serving.ingress.documents import Documents
from kformer.serving.interface import InvalidRequest, TooLarge

_PROTOCOL = "libretranslate"
_MOST_FIELDS = 10_000
_N_BEST = "n_best"
# English names of the languages that translation models have most often.
_NAMES = dict(
    pair.split(":")
    for pair in (
        "af:Afrikaans ar:Arabic az:Azerbaijani bg:Bulgarian bn:Bengali ca:Catalan cs:Czech "
        "cy:Welsh da:Danish de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian "
        "eu:Basque fa:Persian fi:Finnish fr:French ga:Irish gl:Galician gu:Gujarati he:Hebrew "
        "hi:Hindi hr:Croatian hu:Hungarian hy:Armenian id:Indonesian is:Icelandic it:Italian "
        "ja:Japanese ka:Georgian kk:Kazakh ko:Korean lt:Lithuanian lv:Latvian mk:Macedonian "
        "mr:Marathi ms:Malay nl:Dutch no:Norwegian pl:Polish pt:Portuguese ro:Romanian "
        "ru:Russian sk:Slovak sl:Slovenian sq:Albanian sr:Serbian sv:Swedish sw:Swahili ta:Tamil "
        "te:Telugu th:Thai tl:Tagalog tr:Turkish uk:Ukrainian ur:Urdu vi:Vietnamese zh:Chinese"
    ).split()
)


def routes(ingress):
    """The routes of the protocol.

    Args:
        ingress: `Ingress`.

    Returns:
        List of Starlette routes.
    """
    protocol = _LibreTranslate(ingress)
    return [
        Route("/translate", protocol.translate, methods=["POST"]),
        Route("/languages", protocol.languages, methods=["GET"]),
    ]


class _LibreTranslate:
    def __init__(self, ingress):
        self._ingress = ingress

    async def languages(self, request):
        targets = {}
        for versions in self._ingress.engine.models().values():
            pair = versions[0].languages if versions else None
            if pair:
                targets.setdefault(pair[0], []).append(pair[1])
                targets.setdefault(pair[1], [])
        return JSONResponse(
            [
                {"code": code, "name": _NAMES.get(code, code), "targets": sorted(targets[code])}
                for code in sorted(targets)
            ]
        )

    async def translate(self, request):
        content = await read_body(request, self._ingress.settings.max_body_bytes)
        is_form = media_type(request) == "application/x-www-form-urlencoded"
        fields = _form(content) if is_form else parse_json(content)
        headers = request.headers
        self._ingress.keys.check(
            headers.get("authorization"), headers.get("x-api-key"), fields.get("api_key")
        )
        return await while_connected(request, self._translate(fields))

    async def _translate(self, fields):
        q = fields.get("q")
        if not isinstance(q, str | list):
            raise InvalidRequest("q must be a text or a list of texts.")
        format = fields.get("format") or "text"
        if format not in ("text", "html"):
            raise InvalidRequest("format must be text or html.")
        glossary = self._ingress.glossary(fields.get("glossary"))
        name = self._model_for(fields.get("source"), fields.get("target"))
        alternatives = _count(fields.get("alternatives", 0))
        info = self._ingress.engine.metadata(name)
        most = info.search.get("n_best", 1) - 1 if _N_BEST in info.signatures else 0
        if alternatives > most:
            raise TooLarge(f"This model has at most {most} alternatives.")
        texts = [as_text(text) for text in (q if isinstance(q, list) else [q])]
        if alternatives:
            if format != "text" or glossary is not None:
                raise InvalidRequest("With format html or a glossary there are no alternatives.")
            rows = await self._n_best(name, texts)
            reply = {
                "translatedText": [row[0] for row in rows],
                "alternatives": [row[1 : 1 + alternatives] for row in rows],
            }
        else:
            documents = Documents(self._ingress, _PROTOCOL, info, time.monotonic())
            texts = [text.decode("utf-8", "replace") for text in texts]
            pairs = await documents.translate(texts, format, glossary)
            reply = {"translatedText": [text for text, _ in pairs]}
        if not isinstance(q, list):
            reply = {key: values[0] for key, values in reply.items()}
        return JSONResponse(reply)

    async def _n_best(self, name, texts):
        """The hypotheses of each text, which the model must read whole, best first."""
        if any(len(text.splitlines()) > 1 for text in texts):
            raise InvalidRequest("With alternatives a text has one line: leave alternatives out.")
        reply = await self._ingress.answer(_PROTOCOL, name, texts, signature=_N_BEST)
        if reply.outputs["truncated"].any():
            raise TooLarge(
                "A text is longer than the model reads at once: leave alternatives out, or "
                "shorten it."
            )
        rows = reply.outputs["translations"]
        return [[text.decode("utf-8", "replace") for text in row] for row in rows]

    def _model_for(self, source, target):
        if not isinstance(source, str) or not isinstance(target, str):
            raise InvalidRequest("source and target must be codes of languages, such as en and de.")
        if source == "auto":
            raise InvalidRequest("source must be a language: auto is not supported.")
        for name, versions in self._ingress.engine.models().items():
            if versions and versions[0].languages == (source, target):
                return name
        raise InvalidRequest("There is no model from the language of source to that of target.")


def _form(content):
    try:
        pairs = urllib.parse.parse_qsl(
            content.decode("utf-8"), keep_blank_values=True, max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise InvalidRequest("The form cannot be read.") from None
    fields = dict(pairs)
    texts = [value for name, value in pairs if name == "q"]
    return {**fields, "q": texts} if len(texts) > 1 else fields


def _count(value):
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        value = int(value)
    if type(value) is not int or value < 0:
        raise InvalidRequest("alternatives must be a whole number.")
    return value
