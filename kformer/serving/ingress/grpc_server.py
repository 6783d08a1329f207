"""TensorFlow Serving's gRPC: `PredictionService` and `ModelService`.

The messages are those of the package tensorflow-serving-api. Only a server with a gRPC port imports
this module, since it needs gRPC and TensorFlow."""

import logging
import math

import grpc.aio
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import get_model_metadata_pb2 as metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2 as status_pb2
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse

from kformer.serving.ingress.ingress import CODES
from kformer.serving.interface import (
    DEFAULT_SIGNATURE,
    InvalidRequest,
    ModelFailed,
    ServingError,
    Unauthorized,
)

_PROTOCOL = "grpc"
_METHOD = "tensorflow/serving/predict"
_STATES = {"LOADING": 20, "AVAILABLE": 30, "UNLOADING": 40, "END": 50}
_logger = logging.getLogger(__name__)


def make_server(ingress):
    """Makes the server, which is started by the caller.

    Args:
        ingress: `Ingress`.

    Returns:
        `grpc.aio.Server`.
    """
    service = _Service(ingress)
    most = ingress.settings.max_body_bytes
    # Without the second option another server could take the same port, and half of the requests.
    server = grpc.aio.server(
        options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)],
        interceptors=[_Keys(ingress, service)],
    )

    services = {
        "PredictionService": {
            "Predict": (service.predict, PredictRequest),
            "GetModelMetadata": (service.metadata, metadata_pb2.GetModelMetadataRequest),
        },
        "ModelService": {"GetModelStatus": (service.status, status_pb2.GetModelStatusRequest)},
    }
    for name, methods in services.items():
        # Messages come as bytes: one that cannot be read is the client's error, not the server's.
        handlers = {
            key: grpc.unary_unary_rpc_method_handler(service.guarded(*method))
            for key, method in methods.items()
        }
        handler = grpc.method_handlers_generic_handler(f"tensorflow.serving.{name}", handlers)
        server.add_generic_rpc_handlers((handler,))
    return server


class _Keys(grpc.aio.ServerInterceptor):
    """Checks the key of each call, before its message is read."""

    def __init__(self, ingress, service):
        self._ingress, self._service = ingress, service

    async def intercept_service(self, continuation, details):
        metadata = dict(details.invocation_metadata or ())
        try:
            self._ingress.keys.check(metadata.get("authorization"), metadata.get("x-api-key"))
        except Unauthorized as error:
            return grpc.stream_unary_rpc_method_handler(self._service.refusing(error))
        return await continuation(details)


class _Service:
    def __init__(self, ingress):
        self._ingress = ingress

    def guarded(self, method, message_class):
        """A method on bytes: it reads the message, and names errors by code."""

        async def call(content, context):
            try:
                try:
                    message = message_class.FromString(content)
                except DecodeError:
                    raise InvalidRequest("The message cannot be read.") from None
                return (await method(message, context)).SerializeToString()
            except Exception as error:
                if not isinstance(error, ServingError):
                    _logger.exception("a request failed")
                    error = ModelFailed("The server failed; its log says why.")
                await self._abort(error, context)

        return call

    def refusing(self, error):
        """A method that reads no message."""

        async def call(messages, context):
            await self._abort(error, context)

        return call

    async def _abort(self, error, context):
        self._ingress.metrics.refused(_PROTOCOL, "", error)
        _, code = CODES.get(type(error), (500, "INTERNAL"))
        if hasattr(error, "retry_after"):
            seconds = str(math.ceil(error.retry_after))
            context.set_trailing_metadata((("retry-after", seconds),))
        await context.abort(getattr(grpc.StatusCode, code), str(error))

    async def predict(self, message, context):
        name, version = _model_of(message.model_spec)
        signature = message.model_spec.signature_name or DEFAULT_SIGNATURE
        info = self._ingress.engine.metadata(name, version).signature(signature)
        names = {output.name for output in info.outputs}
        outputs = set(message.output_filter) or names
        if not outputs <= names:
            raise InvalidRequest(f"output_filter must name outputs: {', '.join(sorted(names))}.")
        reply = await self._ingress.answer(
            _PROTOCOL,
            name,
            _read_texts(message.inputs, info.inputs[0].name),
            signature=signature,
            version=version,
            seconds_left=context.time_remaining(),
        )
        response = PredictResponse()
        _write_spec(response.model_spec, name, reply.version, signature)
        for output in sorted(outputs):
            _write_tensor(response.outputs[output], reply.outputs[output])
        return response

    async def metadata(self, message, context):
        name, version = _model_of(message.model_spec)
        if list(message.metadata_field) != ["signature_def"]:
            raise InvalidRequest("metadata_field must be signature_def.")
        info = self._ingress.engine.metadata(name, version)
        signatures = metadata_pb2.SignatureDefMap()
        for key, signature in info.signatures.items():
            written = signatures.signature_def[key]
            written.method_name = _METHOD
            for tensor in signature.inputs:
                _write_info(written.inputs[tensor.name], tensor)
            for tensor in signature.outputs:
                _write_info(written.outputs[tensor.name], tensor)
        response = metadata_pb2.GetModelMetadataResponse()
        _write_spec(response.model_spec, name, info.version, "")
        response.metadata["signature_def"].Pack(signatures)
        return response

    async def status(self, message, context):
        versions = self._ingress.engine.versions(*_model_of(message.model_spec))
        response = status_pb2.GetModelStatusResponse()
        for one in versions:
            status = response.model_version_status.add()
            status.version, status.state = one.version, _STATES[one.state]
            status.status.error_message = one.error
            status.status.error_code = 2 if one.error else 0
        return response


def _model_of(spec):
    if spec.version_label:
        raise InvalidRequest("Versions have no labels here: give a number.")
    return spec.name, spec.version.value if spec.HasField("version") else None


def _read_texts(inputs, name):
    if set(inputs) != {name}:
        raise InvalidRequest(f"The signature has the input {name} and no other.")
    tensor = inputs[name]
    if tensor.dtype != tf.string.as_datatype_enum:
        raise InvalidRequest(f"The input {name} must be of type DT_STRING.")
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    texts = list(tensor.string_val)
    if len(sizes) != 1 or tensor.tensor_shape.unknown_rank or sizes[0] < 0:
        raise InvalidRequest(f"The shape of {name} must be [texts].")
    if sizes[0] != len(texts):
        raise InvalidRequest(f"The shape has {sizes[0]} texts, the data {len(texts)}.")
    return texts


def _write_spec(spec, name, version, signature):
    spec.name, spec.signature_name = name, signature
    spec.version.value = version


def _write_tensor(tensor, rows):
    for size in rows.shape:
        tensor.tensor_shape.dim.add().size = size
    if rows.dtype == object:
        tensor.dtype = tf.string.as_datatype_enum
        tensor.string_val.extend(rows.ravel().tolist())
    else:
        tensor.dtype = tf.as_dtype(rows.dtype).as_datatype_enum
        tensor.tensor_content = np.ascontiguousarray(rows).tobytes()


def _write_info(written, info):
    written.name, written.dtype = info.tensor, tf.as_dtype(info.dtype).as_datatype_enum
    for size in info.shape:
        written.tensor_shape.dim.add().size = size
