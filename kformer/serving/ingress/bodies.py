"""Bodies of requests: read up to a limit, as JSON without surprises, while the client is there."""

import asyncio
import json
import re

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from kformer.serving.interface import InvalidRequest, TooLarge, require

_SECONDS_FOR_BODY = 30.0


def post_route(path, ingress, answer):
    """The route of requests with a body. Their work is cancelled when the client leaves.

    Args:
        path: str.
        ingress: `Ingress`, whose limit of bytes holds.
        answer: coroutine function of a request and its body, bytes, to a response.

    Returns:
        Starlette's route.
    """

    async def handler(request):
        if request.method != "POST":
            raise HTTPException(405, "This path takes POST.", {"allow": "POST"})
        content = await _body(request, ingress.settings.max_body_bytes)
        task = asyncio.ensure_future(answer(request, content))
        departure = asyncio.ensure_future(_departure(request))
        try:
            await asyncio.wait({task, departure}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientDisconnect
        finally:
            task.cancel()
            departure.cancel()
            await asyncio.gather(task, departure, return_exceptions=True)

    # Another path may match, too: `M:predict` could be a model's name.
    return Route(path, handler, methods=["POST", "GET", "PUT", "PATCH", "DELETE", "OPTIONS"])


async def _departure(request):
    """Returns when the client of a request, whose body was read, has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request, most):
    """The body of a request, of at most so many bytes; the rest of a longer one is not read."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    require(encoding == "identity", "A compressed body is not accepted: send it as it is.")
    length = request.headers.get("content-length", "0")
    require(length.isdecimal(), "Content-Length must be a number.")
    message = f"The body has {length[:20]} bytes, but at most {most} are allowed."
    require(len(length) <= 15 and int(length) <= most, message, TooLarge)
    content, message = bytearray(), f"The body has more than {most} bytes, which is the limit."
    try:
        async with asyncio.timeout(_SECONDS_FOR_BODY):
            async for block in request.stream():
                content += block
                require(len(content) <= most, message, TooLarge)
    except TimeoutError:
        headers = {"connection": "close"}
        raise HTTPException(408, "The body did not come in time.", headers) from None
    return bytes(content)


def parse_json(content):
    """A JSON object, as a dict.

    Args:
        content: bytes, UTF-8.

    Raises:
        InvalidRequest: it is not a JSON object, or nested too deep.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise InvalidRequest("The JSON is nested too deep.") from None
    except (ValueError, UnicodeError) as error:
        # The error's own message is about positions and signs, never about texts.
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it is not UTF-8"
        if not isinstance(error, json.JSONDecodeError | UnicodeError):
            reason = "a number has over 4,300 digits"
        raise InvalidRequest(f"The body is not JSON: {reason}.") from None
    require(isinstance(value, dict), "The body must be a JSON object.")
    return value


def as_text(value):
    """The bytes of a text in JSON.

    Args:
        value: any JSON value.

    Raises:
        InvalidRequest: it is not a string.
    """
    require(isinstance(value, str), "A text must be a string.")
    # Half of a surrogate pair, which JSON allows, is read as bytes that are not UTF-8 are.
    return value.encode("utf-8", "surrogatepass")


def path_model(request):
    """The model's name and the version, int or `None`, in the path of a request.

    Args:
        request: Starlette's request.

    Raises:
        InvalidRequest: the version is not a number.
    """
    name, version = request.path_params["model"], request.path_params.get("version")
    if version is None:
        return name, None
    require(re.fullmatch("[0-9]{1,18}", version), "A version is a whole number.")
    return name, int(version)


def media_type(request):
    """The type of a request's body, such as "application/json".

    Args:
        request: Starlette's request.
    """
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
