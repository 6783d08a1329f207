"""The Open Inference Protocol, version 2, with Triton's extension for binary tensors."""

import json
import re
import struct
from importlib import metadata

import numpy as np
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.serving.ingress.bodies import as_text, parse_json, path_model, post_route
from kformer.serving.ingress.ingress import Protocol
from kformer.serving.ingress.tensorflow_serving import plain
from kformer.serving.interface import AVAILABLE, DEFAULT_SIGNATURE, Request, require

_PROTOCOL = "open_inference"
_TYPES = {"string": "BYTES", "float32": "FP32", "bool": "BOOL", "int32": "INT32"}
_PLATFORMS = {"torch": "pytorch_keras", "ctranslate2": "ctranslate2"}
_HEADER_LENGTH = "inference-header-content-length"
_SIGNATURE = "signature_name"
# Of Triton's extensions: an answer without them would be another one than was asked for.
_UNSUPPORTED = ("sequence_id", "classification", "class_count")


def routes(ingress):
    """The routes of the protocol.

    Args:
        ingress: `Ingress`.

    Returns:
        List of Starlette routes.
    """
    protocol = _OpenInference(ingress)
    server = {"name": "kformer", "version": metadata.version("kformer")}
    server["extensions"] = ["binary_tensor_data"]
    model = "/v2/models/{model}"
    paths = (f"{model}/versions/{{version}}", model)
    return [
        Route("/v2/health/live", JSONResponse({"live": True}), methods=["GET"]),
        Route("/v2", JSONResponse(server), methods=["GET"]),
        *(Route(f"{path}/ready", protocol.ready) for path in (*paths, "/v2/health")),
        *(post_route(f"{path}/infer", ingress, protocol.infer) for path in paths),
        *(Route(path, protocol.metadata) for path in paths),
    ]


class _OpenInference(Protocol):
    async def ready(self, request):
        is_ready = self.ingress.is_ready
        content = {"ready": is_ready}
        if request.path_params:
            name = self.engine.metadata(*path_model(request)).name
            content = {"name": name, **content}
        return JSONResponse(content, 200 if is_ready else 503)

    async def metadata(self, request):
        info = self.engine.metadata(*path_model(request))
        signature = info.signatures[DEFAULT_SIGNATURE]
        versions = [one for one in self.engine.models()[info.name] if one.state == AVAILABLE]
        content = {"name": info.name, "versions": [str(one.version) for one in versions]}
        content["platform"] = _PLATFORMS.get(self.ingress.settings.engine, "tensorflow_savedmodel")
        content["inputs"] = [_tensor(tensor) for tensor in signature.inputs]
        content["outputs"] = [_tensor(tensor) for tensor in signature.outputs]
        return JSONResponse(content)

    async def infer(self, request, content):
        name, version = path_model(request)
        body, binary = _split(content, request.headers.get(_HEADER_LENGTH))
        parameters = _parameters(body)
        signature = parameters.get(_SIGNATURE, DEFAULT_SIGNATURE)
        require(isinstance(signature, str), f"The parameter {_SIGNATURE} must be a string.")
        info = self.engine.metadata(name, version).signature(signature)
        texts, languages = _read_inputs(body, binary, info)
        outputs = _requested_outputs(body, parameters, [output.name for output in info.outputs])
        query = Request(name, texts, signature, version, target_languages=languages)
        reply = await self.ingress.answer(_PROTOCOL, query)
        header = {"model_name": name, "model_version": str(reply.version)}
        if isinstance(body.get("id"), str):
            header["id"] = body["id"]
        return _response(header, reply.outputs, outputs)


def _tensor(info):
    datatype = _TYPES.get(info.dtype, "BYTES")
    return {"name": info.name, "datatype": datatype, "shape": list(info.shape)}


def _split(content, header_length):
    """The JSON of a body, and the bytes after it."""
    if header_length is None:
        return parse_json(content), b""
    is_number = re.fullmatch("[0-9]{1,12}", header_length)
    require(is_number, "Inference-Header-Content-Length must be a number.")
    length, end = int(header_length), "beyond the end of the body"
    require(length <= len(content), f"Inference-Header-Content-Length is {end}.")
    return parse_json(content[:length]), content[length:]


def _parameters(value):
    parameters = value.get("parameters", {})
    require(isinstance(parameters, dict), "parameters must be an object.")
    for name in _UNSUPPORTED:
        require(not parameters.get(name), f"This server has no {name}: leave it out.")
    return parameters


def _read_inputs(body, binary, info):
    """The texts of a request and their target languages or `None`, as bytes."""
    inputs = body.get("inputs")
    are_inputs = isinstance(inputs, list) and all(isinstance(one, dict) for one in inputs)
    require(are_inputs, "inputs must be a list of objects.")
    names = [str(tensor.get("name")) for tensor in inputs]
    info.check_inputs(names)
    require(len(set(names)) == len(names), "An input occurs twice.")
    columns, start = {}, 0
    for name, tensor in zip(names, inputs, strict=True):
        columns[name], start = _read_texts(name, tensor, binary, start)
    require(start == len(binary), "binary_data_size is not the number of bytes after the JSON.")
    return columns[info.text.name], columns.get(TARGET_LANGUAGE)


def _read_texts(name, tensor, binary, start):
    """The texts of an input, and where those of the next one start in the binary data."""
    require(tensor.get("datatype") == "BYTES", f"The datatype of {name} must be BYTES.")
    shape = tensor.get("shape")
    is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    is_shape = is_shape and len(shape) > 0 and shape[1:] in ([], [1])
    require(is_shape, f"The shape of {name} must be [texts].")
    size = _parameters(tensor).get("binary_data_size")
    if size is not None:
        is_size = type(size) is int and 0 <= size <= len(binary) - start
        require(is_size, "binary_data_size is not the number of bytes after the JSON.")
        texts, start = _read_bytes(binary[start : start + size]), start + size
    else:
        data = tensor.get("data")
        require(isinstance(data, list), "data must be a list of strings.")
        rows = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in data]
        texts = [as_text(row) for row in rows]
    require(len(texts) == shape[0], f"The shape has {shape[0]} texts, the data {len(texts)}.")
    return texts, start


def _read_bytes(content):
    """The elements of a binary tensor: four bytes of length, then the bytes, each."""
    texts, start = [], 0
    while start < len(content):
        begin = start + 4
        require(begin <= len(content), "The binary data ends within a length.")
        start = begin + int.from_bytes(content[start:begin], "little")
        require(start <= len(content), "The binary data ends within a text.")
        texts.append(content[begin:start])
    return texts


def _requested_outputs(body, parameters, names):
    """Dict of the names of the outputs to whether each is written in binary."""
    default = parameters.get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None or outputs == []:
        return dict.fromkeys(names, default)
    require(isinstance(outputs, list), "outputs must be a list.")
    requested = {}
    for output in outputs:
        name = output.get("name") if isinstance(output, dict) else None
        require(name in names, f"An output must be one of {', '.join(names)}.")
        requested[name] = _parameters(output).get("binary_data", default) is True
    return requested


def _response(header, arrays, outputs):
    tensors, blocks = [], []
    for name, is_binary in outputs.items():
        rows = arrays[name]
        kind = "string" if rows.dtype == object else rows.dtype.name
        tensor = {"name": name, "datatype": _TYPES[kind], "shape": list(rows.shape)}
        tensors.append(tensor)
        if not is_binary:
            tensor["data"] = plain(rows.ravel())
            continue
        if kind == "string":
            block = b"".join(struct.pack("<I", len(value)) + value for value in rows.ravel())
        else:
            block = np.ascontiguousarray(rows).astype(rows.dtype.newbyteorder("<")).tobytes()
        blocks.append(block)
        tensor["parameters"] = {"binary_data_size": len(block)}
    # All but ASCII is escaped, since an id may have half of a surrogate pair.
    content = json.dumps({**header, "outputs": tensors}).encode()
    if not blocks:
        return Response(content, media_type="application/json")
    headers = {_HEADER_LENGTH: str(len(content)), "content-type": "application/octet-stream"}
    return Response(b"".join([content, *blocks]), headers=headers)
