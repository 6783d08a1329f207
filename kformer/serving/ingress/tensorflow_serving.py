"""TensorFlow Serving's REST protocol."""

import base64
import binascii

import numpy as np
from starlette.responses import JSONResponse
from starlette.routing import Route

from kformer.serving.ingress.bodies import (
    as_text,
    parse_json,
    path_model,
    read_body,
    while_connected,
)
from kformer.serving.interface import DEFAULT_SIGNATURE, InvalidRequest, TooLarge

_PROTOCOL = "tensorflow_rest"
_TYPES = {"string": "DT_STRING", "float32": "DT_FLOAT", "bool": "DT_BOOL", "int32": "DT_INT32"}
# The values of an output in JSON. To write so many takes about a second, in which nothing else is
# answered.
_MOST_VALUES = 2**20


def routes(ingress):
    """The routes of the protocol.

    Args:
        ingress: `Ingress`.

    Returns:
        List of Starlette routes.
    """
    rest = _Rest(ingress)
    model = "/v1/models/{model}"
    version = model + "/versions/{version}"
    return [
        *(Route(f"{path}:predict", rest.predict, methods=["POST"]) for path in (version, model)),
        *(Route(f"{path}/metadata", rest.metadata, methods=["GET"]) for path in (version, model)),
        *(Route(path, rest.status, methods=["GET"]) for path in (version, model)),
    ]


class _Rest:
    def __init__(self, ingress):
        self._ingress = ingress

    async def predict(self, request):
        content = await read_body(request, self._ingress.settings.max_body_bytes)
        return await while_connected(request, self._predict(request, content))

    async def _predict(self, request, content):
        body, (name, version) = parse_json(content), path_model(request)
        signature = body.get("signature_name", DEFAULT_SIGNATURE) or DEFAULT_SIGNATURE
        if not isinstance(signature, str):
            raise InvalidRequest("signature_name must be a string.")
        info = self._ingress.engine.metadata(name, version).signature(signature)
        texts, is_rows = _read_texts(body, info.inputs[0].name)
        options = {"signature": signature, "version": version}
        reply = await self._ingress.answer(_PROTOCOL, name, texts, **options)
        return JSONResponse(_reply(reply.outputs, is_rows))

    async def status(self, request):
        versions = self._ingress.engine.versions(*path_model(request))
        return JSONResponse({"model_version_status": [_status(one) for one in versions]})

    async def metadata(self, request):
        info = self._ingress.engine.metadata(*path_model(request))
        signatures = {
            key: {
                "inputs": {tensor.name: _tensor(tensor) for tensor in signature.inputs},
                "outputs": {tensor.name: _tensor(tensor) for tensor in signature.outputs},
                "method_name": "tensorflow/serving/predict",
                "defaults": {},
            }
            for key, signature in info.signatures.items()
        }
        spec = {"name": info.name, "signature_name": "", "version": str(info.version)}
        metadata = {"signature_def": {"signature_def": signatures}}
        return JSONResponse({"model_spec": spec, "metadata": metadata})


def _status(info):
    code = "UNKNOWN" if info.error else "OK"
    status = {"error_code": code, "error_message": info.error}
    return {"version": str(info.version), "state": info.state, "status": status}


def _tensor(info):
    sizes = [{"size": str(size), "name": ""} for size in info.shape]
    shape = {"dim": sizes, "unknown_rank": False}
    dtype = _TYPES.get(info.dtype, "DT_INVALID")
    return {"dtype": dtype, "tensor_shape": shape, "name": info.tensor}


def _read_texts(body, name):
    """The texts of a request, as bytes, and whether they came in rows (`instances`)."""
    has_rows, has_columns = "instances" in body, "inputs" in body
    if has_rows == has_columns:
        raise InvalidRequest("The request must have instances or inputs, and not both.")
    if has_rows:
        rows = body["instances"]
        if not isinstance(rows, list):
            raise InvalidRequest("instances must be a list.")
        return [_text(_only_input(row, name)) for row in rows], True
    column = _only_input(body["inputs"], name)
    values = column if isinstance(column, list) else [column]
    return [_text(value) for value in values], False


def _only_input(value, name):
    """The value of the only input, which may stand under its name."""
    if not isinstance(value, dict) or "b64" in value:
        return value
    if set(value) != {name}:
        raise InvalidRequest(f"The signature has the input {name} and no other.")
    return value[name]


def _text(value):
    if not isinstance(value, dict):
        return as_text(value)
    encoded = value.get("b64")
    if len(value) != 1 or not isinstance(encoded, str):
        raise InvalidRequest('A text in Base64 must be {"b64": "..."}.')
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("A text under b64 is not Base64.") from None


def plain(rows):
    """An array as JSON has it: lists of strings, numbers and booleans.

    Args:
        rows: array.

    Raises:
        TooLarge: it is too large for JSON.
    """
    if rows.size > _MOST_VALUES:
        raise TooLarge(
            f"An output has {rows.size} values, but JSON at most {_MOST_VALUES}: ask for fewer "
            "texts, or by gRPC or for binary tensors."
        )
    if rows.dtype == object:
        texts = np.empty(rows.shape, object)
        texts.flat = [value.decode("utf-8", "replace") for value in rows.flat]
        return texts.tolist()
    if rows.dtype.kind == "f":
        rows = np.where(np.isfinite(rows), rows, np.finfo(np.float32).min)
    return rows.tolist()


def _reply(outputs, is_rows):
    columns = {name: plain(rows) for name, rows in outputs.items()}
    key = "predictions" if is_rows else "outputs"
    if len(columns) == 1:
        return {key: next(iter(columns.values()))}
    if not is_rows:
        return {key: columns}
    rows = zip(*columns.values(), strict=True)
    return {key: [dict(zip(columns, row, strict=True)) for row in rows]}
