"""The Open Inference Protocol, version 2, with Triton's extension for binary tensors."""

import json
import struct

import numpy as np
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.serving.ingress.bodies import (
    as_text,
    parse_json,
    path_model,
    read_body,
    while_connected,
)
from kformer.serving.ingress.tensorflow_serving import plain
from kformer.serving.interface import AVAILABLE, DEFAULT_SIGNATURE, InvalidRequest

_PROTOCOL = "open_inference"
_TYPES = {"string": "BYTES", "float32": "FP32", "bool": "BOOL", "int32": "INT32"}
_HEADER_LENGTH = "inference-header-content-length"
_SIGNATURE = "signature_name"


def routes(ingress):
    """The routes of the protocol.

    Args:
        ingress: `Ingress`.

    Returns:
        List of Starlette routes.
    """
    protocol = _OpenInference(ingress)
    model = "/v2/models/{model}"
    paths = (f"{model}/versions/{{version}}", model)
    return [
        Route("/v2/health/live", protocol.live, methods=["GET"]),
        Route("/v2/health/ready", protocol.ready, methods=["GET"]),
        Route("/v2", protocol.server, methods=["GET"]),
        *(Route(f"{path}/infer", protocol.infer, methods=["POST"]) for path in paths),
        *(Route(f"{path}/ready", protocol.model_ready, methods=["GET"]) for path in paths),
        *(Route(path, protocol.metadata, methods=["GET"]) for path in paths),
    ]


class _OpenInference:
    def __init__(self, ingress):
        self._ingress = ingress

    async def live(self, request):
        return Response(status_code=200)

    async def ready(self, request):
        return Response(status_code=200 if self._ingress.is_ready else 503)

    async def server(self, request):
        from importlib.metadata import version

        return JSONResponse(
            {"name": "kformer", "version": version("kformer"), "extensions": ["binary_tensor_data"]}
        )

    async def model_ready(self, request):
        self._ingress.engine.metadata(*path_model(request))
        return await self.ready(request)

    async def metadata(self, request):
        info = self._ingress.engine.metadata(*path_model(request))
        signature = info.signatures[DEFAULT_SIGNATURE]
        versions = self._ingress.engine.models()[info.name]
        return JSONResponse(
            {
                "name": info.name,
                "versions": [str(one.version) for one in versions if one.state == AVAILABLE],
                "platform": "tensorflow_savedmodel",
                "inputs": [_tensor(tensor) for tensor in signature.inputs],
                "outputs": [_tensor(tensor) for tensor in signature.outputs],
            }
        )

    async def infer(self, request):
        content = await read_body(request, self._ingress.settings.max_body_bytes)
        return await while_connected(request, self._infer(request, content))

    async def _infer(self, request, content):
        name, version = path_model(request)
        body, binary = _split(content, request.headers.get(_HEADER_LENGTH))
        parameters = _parameters(body)
        signature = parameters.get(_SIGNATURE, DEFAULT_SIGNATURE)
        if not isinstance(signature, str):
            raise InvalidRequest(f"The parameter {_SIGNATURE} must be a string.")
        info = self._ingress.engine.metadata(name, version).signature(signature)
        texts = _read_texts(body, binary, info.inputs[0].name)
        outputs = _requested_outputs(body, parameters, [output.name for output in info.outputs])
        reply = await self._ingress.answer(
            _PROTOCOL, name, texts, signature=signature, version=version
        )
        header = {"model_name": name, "model_version": str(reply.version)}
        if isinstance(body.get("id"), str):
            header["id"] = body["id"]
        return _response(header, reply.outputs, outputs)


def _tensor(info):
    return {
        "name": info.name,
        "datatype": _TYPES.get(info.dtype, "BYTES"),
        "shape": list(info.shape),
    }


def _split(content, header_length):
    """The JSON of a body, and the bytes after it."""
    if header_length is None:
        return parse_json(content), b""
    if not (header_length.isascii() and header_length.isdecimal()) or len(header_length) > 12:
        raise InvalidRequest("Inference-Header-Content-Length must be a number.")
    length = int(header_length)
    if length > len(content):
        raise InvalidRequest("Inference-Header-Content-Length is beyond the end of the body.")
    return parse_json(content[:length]), content[length:]


def _parameters(value):
    parameters = value.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("parameters must be an object.")
    return parameters


def _read_texts(body, binary, name):
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise InvalidRequest(f"The request must have one input, {name}.")
    tensor = inputs[0]
    if tensor.get("name") != name:
        raise InvalidRequest(f"The signature has the input {name} and no other.")
    if tensor.get("datatype") != "BYTES":
        raise InvalidRequest(f"The datatype of {name} must be BYTES.")
    count = _count(tensor.get("shape"), name)
    size = _parameters(tensor).get("binary_data_size")
    if size is not None:
        if type(size) is not int or size != len(binary):
            raise InvalidRequest("binary_data_size is not the number of bytes after the JSON.")
        texts = _read_bytes(binary)
    else:
        data = tensor.get("data")
        if not isinstance(data, list):
            raise InvalidRequest("data must be a list of strings.")
        rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in data]
        texts = [as_text(row) for row in rows]
    if len(texts) != count:
        raise InvalidRequest(f"The shape has {count} texts, the data {len(texts)}.")
    return texts


def _count(shape, name):
    """The number of texts of a shape `[B]` or `[B, 1]`."""
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or len(shape) not in (1, 2) or shape[1:] not in ([], [1]):
        raise InvalidRequest(f"The shape of {name} must be [texts].")
    return shape[0]


def _read_bytes(content):
    """The elements of a binary tensor: four bytes of length, then the bytes, each."""
    texts, start = [], 0
    while start < len(content):
        if start + 4 > len(content):
            raise InvalidRequest("The binary data ends within a length.")
        (size,) = struct.unpack_from("<I", content, start)
        start += 4
        if start + size > len(content):
            raise InvalidRequest("The binary data ends within a text.")
        texts.append(content[start : start + size])
        start += size
    return texts


def _requested_outputs(body, parameters, names):
    """Dict of the names of the outputs to whether each is written in binary."""
    default = parameters.get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None or outputs == []:
        return dict.fromkeys(names, default)
    if not isinstance(outputs, list):
        raise InvalidRequest("outputs must be a list.")
    requested = {}
    for output in outputs:
        name = output.get("name") if isinstance(output, dict) else None
        if not isinstance(name, str) or name not in names:
            raise InvalidRequest(f"An output must be one of {', '.join(names)}.")
        requested[name] = _parameters(output).get("binary_data", default) is True
    return requested


def _response(header, arrays, outputs):
    tensors, blocks = [], []
    for name, is_binary in outputs.items():
        rows = arrays[name]
        kind = "string" if rows.dtype == object else rows.dtype.name
        tensor = {"name": name, "datatype": _TYPES[kind], "shape": list(rows.shape)}
        if is_binary:
            blocks.append(_binary(rows))
            tensor["parameters"] = {"binary_data_size": len(blocks[-1])}
        else:
            tensor["data"] = plain(rows.ravel())
        tensors.append(tensor)
    # All but ASCII is escaped, since an id may have half of a surrogate pair.
    content = json.dumps({**header, "outputs": tensors}).encode()
    if not blocks:
        return Response(content, media_type="application/json")
    headers = {_HEADER_LENGTH: str(len(content)), "content-type": "application/octet-stream"}
    return Response(b"".join([content, *blocks]), headers=headers)


def _binary(rows):
    if rows.dtype == object:
        return b"".join(struct.pack("<I", len(value)) + value for value in rows.ravel())
    return np.ascontiguousarray(rows).astype(rows.dtype.newbyteorder("<")).tobytes()
