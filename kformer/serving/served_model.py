"""One version of a SavedModel in memory: its signatures, their calls, and the warm-up.

TensorFlow only."""

import time

import numpy as np

from kformer.export.saved_model.reader import open_saved_model
from kformer.serving.interface import SignatureInfo, TensorInfo

_SERVING_TAG = "serve"
# What a warm-up translates: numbers of texts, and words of each.
_WARM_UP = ((1, 1), (1, 12), (8, 12), (32, 12))
_WORD = b"a "


class ServedModel:
    """A loaded version.

    Args:
        folder: `pathlib.Path`. The version's folder.

    Attributes:
        signatures: dict of name to `SignatureInfo`: those that take texts alone.
        metadata: dict. What the export wrote beside the graph.
        texts_per_second: float. The rate of the fastest call of the warm-up; 0 before it.

    Raises:
        ValueError: the SavedModel is damaged, no translator, or was not exported by kformer.
        ImportError: TensorFlow or tensorflow_text is not installed.
        RuntimeError: the SavedModel needs int8 products, which this build of TensorFlow lacks.
    """

    def __init__(self, folder):
        self._module, self.metadata = open_saved_model(folder)
        self.signatures = {
            name: info for name, info in _read_signatures(folder).items() if _takes_texts(info)
        }
        self.texts_per_second = 0.0

    def call(self, signature, texts):
        """Computes a signature.

        Args:
            signature: str.
            texts: list of bytes.

        Returns:
            Dict of output name to NumPy array.
        """
        import tensorflow as tf

        argument = self.signatures[signature].inputs[0].name
        outputs = self._module.signatures[signature](
            **{argument: tf.constant(texts, tf.string, [len(texts)])}
        )
        return {name: value.numpy() for name, value in outputs.items()}

    def warm_up(self, max_texts):
        """Calls each signature with the usual shapes, so that no request waits for its first call.

        Args:
            max_texts: int. The most texts of a batch.

        Raises:
            ValueError: a signature's outputs do not have a row for each text.
        """
        for name, info in self.signatures.items():
            for count, words in _WARM_UP:
                count = min(count, max_texts, most_texts(info) or max_texts)
                start = time.monotonic()
                outputs = self.call(name, [_WORD * words] * count)
                seconds = time.monotonic() - start
                if any(len(np.shape(rows)) < 1 or len(rows) != count for rows in outputs.values()):
                    raise ValueError(f"The signature {name} does not have a row for each text.")
                self.texts_per_second = max(self.texts_per_second, count / seconds)


def most_texts(info):
    """Maximum number of texts in a call: 1 for a signature of a single text, else `None`."""
    size = info.inputs[0].shape[0]
    return None if size < 0 else size


def joins_requests(info):
    """Whether one call of a signature may have texts of several requests.

    It may not if the shape of a row depends on other rows, as that of attention weights does: a
    request must not see the padding of another.
    """
    return all(size >= 0 for output in info.outputs for size in output.shape[1:])


def _takes_texts(info):
    return (
        len(info.inputs) == 1
        and info.inputs[0].dtype == "string"
        and len(info.inputs[0].shape) == 1
        and all(output.shape for output in info.outputs)
    )


def _read_signatures(folder):
    """Dict of name to `SignatureInfo`, from the file of the graph."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
    graph = next(
        graph for graph in saved_model.meta_graphs if _SERVING_TAG in graph.meta_info_def.tags
    )

    def infos(tensors):
        return tuple(
            TensorInfo(
                name,
                tf.as_dtype(tensor.dtype).name,
                tuple(dim.size for dim in tensor.tensor_shape.dim),
                tensor.name,
            )
            for name, tensor in sorted(tensors.items())
        )

    return {
        name: SignatureInfo(infos(signature.inputs), infos(signature.outputs))
        for name, signature in sorted(graph.signature_def.items())
        if not name.startswith("__")
    }
