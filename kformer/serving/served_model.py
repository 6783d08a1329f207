"""One version of a SavedModel in memory: its signatures, their calls, and the warm-up."""

import time
from itertools import starmap

import numpy as np

from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.export.saved_model.reader import open_saved_model
from kformer.serving.interface import SignatureInfo, TensorInfo

_SERVING_TAG = "serve"
# What a warm-up translates: numbers of texts, and words of each.
_WARM_UP = ((1, 1), (1, 12), (8, 12), (32, 12))
_WORD = b"a "


class Served:
    """A loaded version of a model.

    Attributes:
        signatures: dict of name to `SignatureInfo`: those that take texts, and at most their
            target languages.
        metadata: dict. What the export wrote beside the graph.
        texts_per_second: float. The rate of the fastest call of the warm-up; 0 before it.
    """

    def __init__(self, signatures, metadata):
        self.signatures, self.metadata = signatures, metadata
        self.texts_per_second = 0.0

    def call(self, signature, texts, languages=None):
        """Computes a signature.

        Args:
            signature: str.
            texts: list of bytes.
            languages: list of bytes, default `None`. The target language of each text, for a
                signature that takes it.

        Returns:
            Dict of output name to NumPy array.
        """
        raise NotImplementedError

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
                languages = [b""] * count if info.has_languages else None
                start = time.monotonic()
                outputs = self.call(name, [_WORD * words] * count, languages)
                seconds = time.monotonic() - start
                if any(len(np.shape(rows)) < 1 or len(rows) != count for rows in outputs.values()):
                    raise ValueError(f"The signature {name} does not have a row for each text.")
                self.texts_per_second = max(self.texts_per_second, count / seconds)


class ServedModel(Served):
    """A loaded SavedModel. TensorFlow computes.

    Args:
        folder: `pathlib.Path`. The version's folder.
        trust_models: bool, default `False`. Whether its graph may have any op.

    Raises:
        ValueError: the SavedModel is damaged, no translator, was not exported by kformer, or has an
            op that may do more than compute.
        ImportError: TensorFlow or tensorflow_text is not installed.
        RuntimeError: the SavedModel needs int8 products, which this build of TensorFlow lacks.
    """

    def __init__(self, folder, trust_models=False):
        self._module, metadata = open_saved_model(folder, trust_models=trust_models)
        super().__init__(_read_signatures(folder), metadata)

    def call(self, signature, texts, languages=None):
        import tensorflow as tf

        inputs = {self.signatures[signature].text.name: texts}
        if languages is not None:
            inputs[TARGET_LANGUAGE] = languages
        inputs = {name: tf.constant(row, tf.string, [len(row)]) for name, row in inputs.items()}
        outputs = self._module.signatures[signature](**inputs)
        return {name: value.numpy() for name, value in outputs.items()}


def most_texts(info):
    """Maximum number of texts in a call: 1 for a signature of a single text, else `None`."""
    size = info.text.shape[0]
    return None if size < 0 else size


def joins_requests(info):
    """Whether one call of a signature may have texts of several requests.

    It may not if the shape of a row depends on other rows, as that of attention weights does: a
    request must not see the padding of another.
    """
    return all(size >= 0 for output in info.outputs for size in output.shape[1:])


def _read_signatures(folder):
    """Dict of name to `SignatureInfo`, from the file of the graph: those that take texts, and at
    most their target languages.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((folder / "saved_model.pb").read_bytes())
    graph = next(
        graph for graph in saved_model.meta_graphs if _SERVING_TAG in graph.meta_info_def.tags
    )

    def info(name, tensor):
        shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
        return TensorInfo(name, tf.as_dtype(tensor.dtype).name, shape, tensor.name)

    signatures = {}
    for name, signature in sorted(graph.signature_def.items()):
        if not name.startswith("__"):
            sides = (sorted(side.items()) for side in (signature.inputs, signature.outputs))
            inputs, outputs = (tuple(starmap(info, side)) for side in sides)
            others = [one for one in inputs if one.name != TARGET_LANGUAGE]
            takes_texts = [(one.dtype, len(one.shape)) for one in others] == [("string", 1)]
            if takes_texts and all(output.shape for output in outputs):
                signatures[name] = SignatureInfo(inputs, outputs)
    return signatures
