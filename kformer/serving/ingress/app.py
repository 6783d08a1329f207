"""The ASGI application: every protocol of HTTP, health, metrics and the page."""

import contextlib
import ipaddress
import logging
import math

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.serving.ingress import libretranslate, open_inference, tensorflow_serving
from kformer.serving.ingress.ingress import CODES
from kformer.serving.interface import InvalidRequest, Overloaded, ServingError, Unauthorized
from kformer.serving.page.routes import OPEN_PATHS, page_routes

# Paths that orchestrators ask without a key, and one whose key may stand in the body.
_WITHOUT_KEY = {"/-/healthz", "/-/ready", "/v2/health/live", "/v2/health/ready", "/translate"}
_PROTOCOLS = {
    "/v1/": "tensorflow_rest",
    "/v2": "open_inference",
    "/translate": "libretranslate",
    "/page/": "page",
}
_logger = logging.getLogger(__name__)


def make_app(ingress):
    """Makes the application.

    Args:
        ingress: `Ingress`.

    Returns:
        ASGI application.
    """
    app = Starlette(
        routes=[
            Route("/-/healthz", _healthz, methods=["GET"]),
            Route("/-/ready", _ready, methods=["GET"]),
            Route("/metrics", _metrics, methods=["GET"]),
            *tensorflow_serving.routes(ingress),
            *open_inference.routes(ingress),
            *libretranslate.routes(ingress),
            *page_routes(ingress),
        ],
        exception_handlers={
            ServingError: _serving_error,
            HTTPException: _http_error,
            ClientDisconnect: _left,
            Exception: _failure,
        },
    )
    app.state.ingress = ingress
    return _Guard(app, ingress, _WITHOUT_KEY.union(OPEN_PATHS))


async def _healthz(request):
    return Response("ok\n", media_type="text/plain")


async def _ready(request):
    is_ready = request.app.state.ingress.is_ready
    text, status = ("ready\n", 200) if is_ready else ("not ready\n", 503)
    return Response(text, status_code=status, media_type="text/plain")


async def _metrics(request):
    content, kind = await request.app.state.ingress.metrics.exposition()
    return Response(content, headers={"content-type": kind})


# ---- errors: the protocols share their shape ----


def error_response(error):
    """The response for a `ServingError`.

    Args:
        error: `ServingError`.

    Returns:
        Starlette's response: `{"error": "..."}`, as in each of the protocols.
    """
    status, _ = CODES.get(type(error), (500, ""))
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(math.ceil(error.retry_after))
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": str(error)}, status, headers)


async def _serving_error(request, error):
    model, metrics = request.path_params.get("model", ""), request.app.state.ingress.metrics
    metrics.refused(_protocol_of(request.url.path), model, error)
    return error_response(error)


def _protocol_of(path):
    """The protocol of a path, for the metrics."""
    return next((name for start, name in _PROTOCOLS.items() if path.startswith(start)), "")


async def _http_error(request, error):
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _left(request, error):
    return Response(status_code=499)  # Nobody reads it.


async def _failure(request, error):
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
        try:
            self._check(scope)
        except ServingError as error:
            self._ingress.metrics.refused(_protocol_of(scope["path"]), "", error)
            return await error_response(error)(scope, receive, send)

        async def send_closing(message):
            """Tells a client of an ending server to ask elsewhere next."""
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_closing if self._ingress.is_draining else send)

    def _check(self, scope):
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if not self._is_allowed(_host_name(headers.get("host", ""))):
            raise InvalidRequest(
                "The server is not known by this Host: start it with --allowed-host NAME."
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("//")[2] != headers.get("host"):
            raise InvalidRequest("Requests of other web pages are not answered.")
        if self._ingress.keys.are_needed and scope["path"] not in self._open_paths:
            self._ingress.keys.check(headers.get("authorization"), headers.get("x-api-key"))

    def _is_allowed(self, host):
        if "*" in self._hosts or host in self._hosts:
            return True
        # An address, unlike a name, cannot be pointed at this server by somebody else.
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host)
            return True
        return False


def _host_name(host):
    """The name in a header Host, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
