"""The ASGI application: every protocol of HTTP, health, metrics and the page."""

import contextlib
import ipaddress
import math
import re
from importlib import metadata, resources

import yaml
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.serving.ingress import libretranslate, open_inference, tensorflow_serving
from kformer.serving.interface import Overloaded, ServingError, Unauthorized, require
from kformer.serving.page.routes import OPEN_PATHS, page_routes

_DESCRIPTION = "/openapi.json"
# Paths that orchestrators ask without a key, by any Host or none.
_HEALTH = {"/-/healthz", "/-/ready", "/v2/health/live", "/v2/health/ready"}
_PROTOCOLS = {
    "/v1/": "tensorflow_rest",
    "/v2": "open_inference",
    "/translate": "libretranslate",
    "/page/": "page",
}


def make_app(ingress):
    """Makes the application.

    Args:
        ingress: `Ingress`.

    Returns:
        ASGI application.
    """
    app = Starlette(
        routes=[
            Route("/-/healthz", Response("ok\n", media_type="text/plain"), methods=["GET"]),
            Route("/-/ready", _ready),
            Route("/metrics", _metrics),
            Route(_DESCRIPTION, JSONResponse(description()), methods=["GET"]),
            *tensorflow_serving.routes(ingress),
            *open_inference.routes(ingress),
            *libretranslate.routes(ingress),
            *page_routes(ingress),
        ],
        exception_handlers=dict.fromkeys(
            (ServingError, HTTPException, ClientDisconnect, Exception), _error_response
        ),
    )
    app.state.ingress = ingress
    # A key of LibreTranslate's protocol may stand in the body.
    return _Guard(app, ingress, _HEALTH.union(OPEN_PATHS, ["/translate", _DESCRIPTION]))


def description():
    """Returns what OpenAPI 3.1 tells of the routes, as a dict of JSON values."""
    text = (resources.files("kformer.serving") / "openapi.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    content["info"]["version"] = metadata.version("kformer")
    return content


async def _ready(request):
    is_ready = request.app.state.ingress.is_ready
    text, status = ("ready\n", 200) if is_ready else ("not ready\n", 503)
    return Response(text, status_code=status, media_type="text/plain")


async def _metrics(request):
    content, kind = await request.app.state.ingress.metrics.exposition()
    return Response(content, headers={"content-type": kind})


# ---- errors: the protocols share their shape, `{"error": "..."}` ----


def _refusal(ingress, path, model, error):
    """Counts a `ServingError` in the metrics, and returns its response."""
    protocol = next((name for start, name in _PROTOCOLS.items() if path.startswith(start)), "")
    ingress.metrics.failed(protocol, error.model or model, type(error).__name__)
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, error.codes[0], headers)


async def _error_response(request, error):
    if isinstance(error, ServingError):
        model = request.path_params.get("model", "")
        return _refusal(request.app.state.ingress, request.url.path, model, error)
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # Nobody reads it.
    return JSONResponse({"error": "The server failed; its log says why."}, 500)


# ---- who may ask ----


class _Guard:
    """Checks Host, Origin and the API key of each request before anything else."""

    def __init__(self, app, ingress, open_paths):
        self._app, self._ingress, self._open_paths = app, ingress, open_paths
        settings = ingress.settings
        self._hosts = {"localhost", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # A redirect would name http behind a proxy that has TLS.
        scope["path"] = scope["path"].rstrip("/") or "/"
        try:
            self._check(scope)
        except ServingError as error:
            refusal = _refusal(self._ingress, scope["path"], "", error)
            return await refusal(scope, receive, send)

        async def send_closing(message):
            """Tells a client of an ending server to ask elsewhere next."""
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_closing if self._ingress.is_draining else send)

    def _check(self, scope):
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        message = "The server is not known by this Host: start it with --allowed-host NAME."
        message = message if host else "The request has no Host."
        require(scope["path"] in _HEALTH or self._is_allowed(host.lower()), message)
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("//")[2] == headers.get("host")
        require(is_own, "Requests of other web pages are not answered.")
        if scope["path"] not in self._open_paths:
            self._ingress.keys.check(headers.get("authorization"), headers.get("x-api-key"))

    def _is_allowed(self, host):
        """Whether the server answers to the name in a header Host, with or without a port."""
        parts = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?", host)
        name = parts and (parts[1] or parts[2])
        if "*" in self._hosts or name in self._hosts:
            return True
        # An address, unlike a name, cannot be pointed at this server by somebody else.
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return False
