"""Bodies of requests: read up to a limit, as JSON without surprises, while the client is there."""

import asyncio
import json

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from kformer.serving.interface import InvalidRequest, TooLarge

_SECONDS_FOR_BODY = 30.0


async def read_body(request, most):
    """The body of a request.

    Args:
        request: Starlette's request.
        most: int. The most bytes.

    Raises:
        TooLarge: it is longer. The rest is not read.
        InvalidRequest: it is compressed, or its length is not a number.
        HTTPException: it did not come in time.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidRequest("A compressed body is not accepted: send it as it is.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal():
        raise InvalidRequest("Content-Length must be a number.")
    if len(length) > 15 or int(length) > most:
        raise TooLarge(f"The body has {length[:20]} bytes, but at most {most} are allowed.")
    content = bytearray()
    try:
        async with asyncio.timeout(_SECONDS_FOR_BODY):
            async for block in request.stream():
                content += block
                if len(content) > most:
                    raise TooLarge(f"The body has more than {most} bytes, which is the limit.")
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
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it is not UTF-8 JSON"
        raise InvalidRequest(f"The body is not JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return value


def as_text(value):
    """The bytes of a text in JSON.

    Args:
        value: any JSON value.

    Raises:
        InvalidRequest: it is not a string.
    """
    if not isinstance(value, str):
        raise InvalidRequest("A text must be a string.")
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
    if not (version.isascii() and version.isdecimal() and len(version) <= 18):
        raise InvalidRequest("A version is a whole number.")
    return name, int(version)


def media_type(request):
    """The type of a request's body, such as "application/json".

    Args:
        request: Starlette's request.
    """
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def while_connected(request, work):
    """The response of `work`, which is cancelled when the client leaves.

    Args:
        request: Starlette's request, whose body was read.
        work: coroutine.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=499)  # Nobody reads it.
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(request):
    try:
        while (await request.receive())["type"] != "http.disconnect":
            pass
    except ClientDisconnect:
        pass
