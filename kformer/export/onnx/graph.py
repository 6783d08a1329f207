"""An ONNX graph under construction, and where its weights are stored.

Only the export imports this module, since it needs the `onnx` package."""

import os

import numpy as np
import onnx
from keras import ops
from onnx import TensorProto, helper, numpy_helper

from kformer.utils.checks import check_float16

# The lowest opset that has LayerNormalization, and the file format of its time, so that old
# runtimes read them.
_OPSET = 17
_IR_VERSION = 8
_TYPES = {
    "bool": TensorProto.BOOL,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
# Offsets in the file of weights that every system can map into memory.
_ALIGNMENT = 65536


class WeightStore:
    """Stores weights in the graph that asks for them, or each once in a file that several graphs
    read.

    Args:
        dtype: str, "float32" or "float16". What weights are stored and computed with.
        file: file opened for writing bytes, default `None`, for the graphs themselves. It is in
            the folder of the graphs.
    """

    def __init__(self, dtype, file=None):
        self.dtype, self._file, self._stored = dtype, file, {}

    def tensor(self, variable, name):
        """The `TensorProto` of a Keras variable."""
        if self._file is None:
            return numpy_helper.from_array(self._array(variable), name)
        if id(variable) not in self._stored:
            array = self._array(variable)
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            self._stored[id(variable)] = {"offset": self._file.tell(), "length": array.nbytes}
            self._file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        place = {"location": os.path.basename(self._file.name), **self._stored[id(variable)]}
        tensor = TensorProto(name=name, data_type=_TYPES[self.dtype], dims=variable.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _array(self, variable):
        # By way of float32: NumPy has no bfloat16.
        array = ops.convert_to_numpy(ops.cast(variable.value, "float32"))
        if self.dtype == "float16":
            check_float16(f"The weight {variable.path!r}", array, "export it in float32")
        return array.astype(self.dtype)


class Graph:
    """A graph under construction. Values are named by strings; calling it adds a node and returns
    the name of its output, or the list of names where it has several.

    Args:
        name: str.
        weights: `WeightStore`.

    Example: `graph("Split", graph("Add", x, x), outputs=2, axis=-1)` is two names.
    """

    def __init__(self, name, weights):
        self.name = name
        self.dtype = weights.dtype
        self._weights = weights
        # The keys of the initializers are a constant's value or a variable's id, so that equal
        # constants are stored once.
        self._nodes, self._initializers, self._inputs, self._outputs = [], {}, {}, {}

    def __call__(self, op, *inputs, outputs=1, **attributes):
        stem = f"{op}_{len(self._nodes)}"
        names = [stem] if outputs == 1 else [f"{stem}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=stem, **attributes))
        return names[0] if outputs == 1 else names

    def input(self, name, dtype, shape):
        """Declares an input; a dynamic size of its shape is a string."""
        self._inputs[name] = {"dtype": dtype, "shape": list(shape)}
        return name

    def output(self, name, value, dtype, shape):
        """Makes a value an output and renames it."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if other == value else other for other in names]
        self._outputs[name] = {"dtype": dtype, "shape": list(shape)}

    def constant(self, value, dtype):
        """A small array or number."""
        array = np.asarray(value, dtype=dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._initializers:
            name = f"constant_{len(self._initializers)}"
            self._initializers[key] = numpy_helper.from_array(array, name)
        return self._initializers[key].name

    def weight(self, variable):
        """The initializer of a Keras variable, named by its path."""
        key = id(variable)
        if key not in self._initializers:
            self._initializers[key] = self._weights.tensor(variable, variable.path)
        return self._initializers[key].name

    def cast(self, value, dtype, source=None):
        """The value in another dtype; `source` is its present dtype, if it is known."""
        return value if dtype == source else self("Cast", value, to=_TYPES[dtype])

    def size(self, value, axis):
        """The size of an axis, int64 scalar."""
        return self("Gather", self("Shape", value), self.constant(axis, "int64"), axis=0)

    def reshape(self, value, shape):
        """`value` in another shape: 0 keeps the size of that axis, -1 is inferred."""
        return self("Reshape", value, self.constant(shape, "int64"))

    def expand_dims(self, value, axes):
        return self("Unsqueeze", value, self.constant(axes, "int64"))

    def recurrence(self, state, factors, terms):
        """`state_t = factors_t state_(t-1) + terms_t` over the second axis, all float32.

        Args:
            state: value `[B, D]`, before the first.
            factors, terms: values `[B, T, D]`.

        Returns:
            The last state `[B, D]`, and all states `[B, T, D]`.
        """
        nodes = [
            helper.make_node("Mul", ["factor", "before"], ["product"]),
            helper.make_node("Add", ["product", "term"], ["after"]),
            helper.make_node("Identity", ["after"], ["output"]),
        ]
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
            for names in (("before", "factor", "term"), ("after", "output"))
        )
        return self(
            "Scan",
            *(state, factors, terms),
            outputs=2,
            body=helper.make_graph(nodes, "step", inputs, outputs),
            num_scan_inputs=2,
            scan_input_axes=[1, 1],
            scan_output_axes=[1],
        )

    def signature(self):
        """Names, types and shapes of inputs and outputs, in their order, as JSON values."""
        return {
            kind: [{"name": name, **described} for name, described in values.items()]
            for kind, values in (("inputs", self._inputs), ("outputs", self._outputs))
        }

    def save(self, path):
        """Writes the graph as a model."""
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, _TYPES[value["dtype"]], value["shape"])
                for name, value in values.items()
            ]
            for values in (self._inputs, self._outputs)
        )
        weights = list(self._initializers.values())
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        options = {"ir_version": _IR_VERSION, "producer_name": "kformer"}
        onnx.save(helper.make_model(graph, opset_imports=opsets, **options), path)
