"""TensorFlow Serving's REST protocol."""

import base64

import numpy as np
from starlette.responses import JSONResponse
from starlette.routing import Route

from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.serving import interface
from kformer.serving.ingress.bodies import as_text, parse_json, path_model, post_route
from kformer.serving.ingress.ingress import Protocol
from kformer.serving.interface import DEFAULT_SIGNATURE, InvalidRequest, TooLarge, require

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
    paths = (model + "/versions/{version}", model)
    return [
        *(post_route(f"{path}:predict", ingress, rest.predict) for path in paths),
        *(Route(f"{path}/metadata", rest.metadata) for path in paths),
        *(Route(path, rest.status) for path in paths),
    ]


class _Rest(Protocol):
    async def predict(self, request, content):
        body, (name, version) = parse_json(content), path_model(request)
        signature = body.get("signature_name") or DEFAULT_SIGNATURE
        require(isinstance(signature, str), "signature_name must be a string.")
        info = self.engine.metadata(name, version).signature(signature)
        texts, languages = _read_inputs(body, info)
        options = {"target_languages": languages}
        query = interface.Request(name, texts, signature, version, **options)
        reply = await self.ingress.answer(_PROTOCOL, query)
        columns = {key: plain(rows) for key, rows in reply.outputs.items()}
        key = "predictions" if "instances" in body else "outputs"
        if len(columns) == 1:
            return JSONResponse({key: next(iter(columns.values()))})
        if key == "outputs":
            return JSONResponse({key: columns})
        rows = zip(*columns.values(), strict=True)
        return JSONResponse({key: [dict(zip(columns, row, strict=True)) for row in rows]})

    async def status(self, request):
        states = []
        for one in self.engine.versions(*path_model(request)):
            error = {"error_code": "UNKNOWN" if one.error else "OK", "error_message": one.error}
            states.append({"version": str(one.version), "state": one.state, "status": error})
        return JSONResponse({"model_version_status": states})

    async def metadata(self, request):
        info = self.engine.metadata(*path_model(request))
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


def _tensor(info):
    sizes = [{"size": str(size), "name": ""} for size in info.shape]
    shape = {"dim": sizes, "unknown_rank": False}
    dtype = _TYPES.get(info.dtype, "DT_INVALID")
    return {"dtype": dtype, "tensor_shape": shape, "name": info.tensor}


def _read_inputs(body, info):
    """The texts of a request and their target languages or `None`, as bytes: of its rows
    (`instances`) or its columns (`inputs`).
    """
    has_rows = "instances" in body
    message = "The request must have instances or inputs, and not both."
    require(has_rows != ("inputs" in body), message)
    if has_rows:
        require(isinstance(body["instances"], list), "instances must be a list.")
        rows = [_by_name(row, info) for row in body["instances"]]
        columns = {info.text.name: [row[info.text.name] for row in rows]}
        if any(TARGET_LANGUAGE in row for row in rows):
            columns[TARGET_LANGUAGE] = [row.get(TARGET_LANGUAGE, "") for row in rows]
    else:
        columns = _by_name(body["inputs"], info)
    columns = {
        name: [_text(value) for value in (column if isinstance(column, list) else [column])]
        for name, column in columns.items()
    }
    return columns[info.text.name], columns.get(TARGET_LANGUAGE)


def _by_name(value, info):
    """The inputs as a dict: a value that stands without a name is the text."""
    if not isinstance(value, dict) or "b64" in value:
        return {info.text.name: value}
    info.check_inputs(value)
    return value


def _text(value):
    if not isinstance(value, dict):
        return as_text(value)
    encoded = value.get("b64")
    is_text = len(value) == 1 and isinstance(encoded, str)
    require(is_text, 'A text in Base64 must be {"b64": "..."}.')
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise InvalidRequest("A text under b64 is not Base64.") from None


def plain(rows):
    """An array as JSON has it: lists of strings, numbers and booleans.

    Args:
        rows: array.

    Raises:
        TooLarge: it is too large for JSON.
    """
    message = f"An output has {rows.size} values, but JSON at most {_MOST_VALUES}: ask for fewer "
    message += "texts, or by gRPC or for binary tensors."
    require(rows.size <= _MOST_VALUES, message, TooLarge)
    if rows.dtype == object:
        texts = np.empty(rows.shape, object)
        texts.flat = [value.decode("utf-8", "replace") for value in rows.flat]
        return texts.tolist()
    if rows.dtype.kind == "f":
        rows = np.where(np.isfinite(rows), rows, np.finfo(np.float32).min)
    return rows.tolist()
