"""TensorFlow Serving's gRPC: `PredictionService` and `ModelService`.

The messages are those of the package tensorflow-serving-api. Only a server with a gRPC port imports
this module, since it needs gRPC and TensorFlow."""

import logging
import math
import time

import grpc.aio
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from tensorflow_serving.apis import get_model_metadata_pb2 as metadata_pb2
from tensorflow_serving.apis import get_model_status_pb2 as status_pb2
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse

from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.serving import interface
from kformer.serving.ingress.ingress import Protocol
from kformer.serving.interface import DEFAULT_SIGNATURE, ServingError, require

_PROTOCOL = "grpc"
# Of the protocol of health checks, whose messages have one field each, as the wrappers have.
_HEALTH, _IS_SERVING, _IS_NOT_SERVING = "grpc.health.v1.Health", 1, 2
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
        interceptors=[service],
    )
    services = {
        _HEALTH: {"Check": (service.health, StringValue)},
        "tensorflow.serving.PredictionService": {
            "Predict": (service.predict, PredictRequest),
            "GetModelMetadata": (service.metadata, metadata_pb2.GetModelMetadataRequest),
        },
        "tensorflow.serving.ModelService": {
            "GetModelStatus": (service.status, status_pb2.GetModelStatusRequest)
        },
    }
    service.names = ("", *services)
    for name, methods in services.items():
        # Messages come as bytes: one that cannot be read is the client's error, not the server's.
        handlers = {
            key: grpc.unary_unary_rpc_method_handler(service.guarded(*method))
            for key, method in methods.items()
        }
        handler = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((handler,))
    return server


class _Service(Protocol, grpc.aio.ServerInterceptor):
    async def intercept_service(self, continuation, details):
        """Checks the key of each call, before its message is read."""
        if details.method.startswith(f"/{_HEALTH}/"):
            return await continuation(details)
        metadata = dict(details.invocation_metadata or ())
        try:
            self.ingress.keys.check(metadata.get("authorization"), metadata.get("x-api-key"))
        except interface.Unauthorized as error:
            return grpc.stream_unary_rpc_method_handler(self._refusing(error))
        return await continuation(details)

    def _refusing(self, error):
        """A method that reads no message."""

        async def call(messages, context):
            await self._abort(error, context)

        return call

    def guarded(self, method, message_class):
        """A method on bytes: it reads the message, and names errors by code."""

        async def call(content, context):
            try:
                try:
                    message = message_class.FromString(content)
                except DecodeError:
                    raise interface.InvalidRequest("The message cannot be read.") from None
                return (await method(message, context)).SerializeToString()
            except Exception as error:
                if not isinstance(error, ServingError):
                    _logger.exception("a request failed")
                    error = interface.ModelFailed("The server failed; its log says why.")
                await self._abort(error, context)

        return call

    async def _abort(self, error, context):
        self.ingress.metrics.failed(_PROTOCOL, error.model, type(error).__name__)
        if hasattr(error, "retry_after"):
            seconds = str(math.ceil(error.retry_after))
            context.set_trailing_metadata((("retry-after", seconds),))
        await context.abort(getattr(grpc.StatusCode, error.codes[1]), str(error))

    async def health(self, message, context):
        known = f"There is no such service, but {', '.join(self.names[1:])}."
        require(message.value in self.names, known, interface.UnknownModel)
        return Int32Value(value=_IS_SERVING if self.ingress.is_ready else _IS_NOT_SERVING)

    async def predict(self, message, context):
        name, version = _model_of(message.model_spec)
        signature = message.model_spec.signature_name or DEFAULT_SIGNATURE
        info = self.engine.metadata(name, version).signature(signature)
        names = {output.name for output in info.outputs}
        outputs = set(message.output_filter) or names
        require(outputs <= names, f"output_filter must name outputs: {', '.join(sorted(names))}.")
        info.check_inputs(message.inputs)
        columns = {name: _read_texts(name, tensor) for name, tensor in message.inputs.items()}
        texts, languages = columns[info.text.name], columns.get(TARGET_LANGUAGE)
        seconds = context.time_remaining()
        deadline = None if seconds is None else time.monotonic() + seconds
        query = interface.Request(name, texts, signature, version, deadline, languages)
        reply = await self.ingress.answer(_PROTOCOL, query)
        response = PredictResponse()
        spec = response.model_spec
        spec.name, spec.signature_name, spec.version.value = name, signature, reply.version
        for output in sorted(outputs):
            _write_tensor(response.outputs[output], reply.outputs[output])
        return response

    async def metadata(self, message, context):
        name, version = _model_of(message.model_spec)
        is_known = list(message.metadata_field) == ["signature_def"]
        require(is_known, "metadata_field must be signature_def.")
        info = self.engine.metadata(name, version)
        signatures = metadata_pb2.SignatureDefMap()
        for key, signature in info.signatures.items():
            written = signatures.signature_def[key]
            written.method_name = "tensorflow/serving/predict"
            for side in ("inputs", "outputs"):
                for one in getattr(signature, side):
                    tensor = getattr(written, side)[one.name]
                    tensor.name, tensor.dtype = one.tensor, tf.as_dtype(one.dtype).as_datatype_enum
                    _write_shape(tensor.tensor_shape, one.shape)
        response = metadata_pb2.GetModelMetadataResponse()
        spec = response.model_spec
        spec.name, spec.version.value = name, info.version
        response.metadata["signature_def"].Pack(signatures)
        return response

    async def status(self, message, context):
        response = status_pb2.GetModelStatusResponse()
        for one in self.engine.versions(*_model_of(message.model_spec)):
            status = response.model_version_status.add()
            status.version, status.state = one.version, _STATES[one.state]
            status.status.error_message = one.error
            status.status.error_code = 2 if one.error else 0
        return response


def _model_of(spec):
    require(not spec.version_label, "Versions have no labels here: give a number.")
    return spec.name, spec.version.value if spec.HasField("version") else None


def _read_texts(name, tensor):
    is_text = tensor.dtype == tf.string.as_datatype_enum
    require(is_text, f"The input {name} must be of type DT_STRING.")
    sizes, texts = [dim.size for dim in tensor.tensor_shape.dim], list(tensor.string_val)
    is_shape = len(sizes) == 1 and not tensor.tensor_shape.unknown_rank and sizes[0] >= 0
    require(is_shape, f"The shape of {name} must be [texts].")
    require(sizes[0] == len(texts), f"The shape has {sizes[0]} texts, the data {len(texts)}.")
    return texts


def _write_tensor(tensor, rows):
    _write_shape(tensor.tensor_shape, rows.shape)
    if rows.dtype == object:
        tensor.dtype = tf.string.as_datatype_enum
        tensor.string_val.extend(rows.ravel().tolist())
    else:
        tensor.dtype = tf.as_dtype(rows.dtype).as_datatype_enum
        tensor.tensor_content = np.ascontiguousarray(rows).tobytes()


def _write_shape(shape, sizes):
    for size in sizes:
        shape.dim.add().size = size
