"""An ONNX graph under construction, and where its weights are stored.

Only the export imports this module, since it needs the `onnx` package."""

import itertools
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
    "int8": TensorProto.INT8,
}
# Offsets in the file of weights: those of large ones every system can map into memory.
_ALIGNMENT, _LARGE, _LARGE_ALIGNMENT = 64, 1 << 20, 65536


class WeightStore:
    """Stores each weight once in a file, which several graphs read.

    Args:
        dtype: str, "float32", "float16" or "int8". How weights are stored. In int8 a matrix has a
            float32 scale for each of its columns, or for each row of an embedding; vectors stay in
            float32.
        file: file opened for writing bytes, in the folder of the graphs.
    """

    def __init__(self, dtype, file):
        self.dtype, self._file, self._stored = dtype, file, {}

    def tensors(self, variable):
        """The `TensorProto`s of a Keras variable: its numbers and, in int8, their scales."""
        if id(variable) not in self._stored:
            arrays = self._arrays(variable)
            names = variable.path, f"{variable.path}/scale"
            self._stored[id(variable)] = [*map(self._tensor, arrays, names)]
        return self._stored[id(variable)]

    def _tensor(self, array, name):
        size, file = array.nbytes, self._file
        file.write(bytes(-file.tell() % (_LARGE_ALIGNMENT if size >= _LARGE else _ALIGNMENT)))
        tensor = TensorProto(name=name, data_type=_TYPES[str(array.dtype)], dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        location = os.path.basename(file.name)
        for key, value in (("location", location), ("offset", file.tell()), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return tensor

    def _arrays(self, variable):
        # By way of float32: NumPy has no bfloat16.
        array = ops.convert_to_numpy(ops.cast(variable.value, "float32"))
        if self.dtype == "float16":
            check_float16(f"The weight {variable.path!r}", array, "export it in float32")
            return [array.astype("float16")]
        if self.dtype == "float32" or array.ndim < 2:
            return [array]
        # Where a runtime looks rows up, each has its scale.
        axis = 1 if variable.path.endswith("embeddings") else 0
        scale = np.abs(array).max(axis=axis, keepdims=True) / np.float32(127)
        scale = np.where(scale == 0, np.float32(1), scale)
        return [np.rint(array / scale).astype("int8"), scale]


class Graph:
    """A graph under construction. Values are named by strings; calling it adds a node and returns
    the name of its output, or the list of names where it has several.

    Args:
        name: str.
        weights: `WeightStore`.
        dtype: str, default `None`. What is computed with, "float32" or "float16"; `None` for that
            of the weights, which is float32 for weights in int8.

    Attributes:
        dtype: str.
        root: `Graph`. The graph around a loop's body; else the graph itself.

    Example: `graph("Split", graph("Add", x, x), outputs=2, axis=-1)` is two names.
    """

    def __init__(self, name, weights, dtype=None):
        self.name = name
        self.dtype = dtype or ("float16" if weights.dtype == "float16" else "float32")
        self.root = self
        self._weights = weights
        # The keys of the initializers are a constant's value or a tensor's name, so that equal
        # constants are stored once. `_values` are the values of variables, by their ids.
        self._nodes, self._initializers, self._inputs, self._outputs = [], {}, {}, {}
        self._values, self._count = {}, itertools.count()

    def __call__(self, op, *inputs, outputs=1, **attributes):
        stem = f"{op}_{next(self.root._count)}"
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
        array, initializers = np.asarray(value, dtype=dtype), self.root._initializers
        key = (dtype, array.shape, array.tobytes())
        if key not in initializers:
            name = f"constant_{len(initializers)}"
            initializers[key] = numpy_helper.from_array(array, name)
        return initializers[key].name

    def weight(self, variable):
        """The value of a Keras variable, in the graph's dtype."""
        root = self.root
        if id(variable) not in root._values:
            tensors = self._weights.tensors(variable)
            root._initializers |= {tensor.name: tensor for tensor in tensors}
            value, *scales = (tensor.name for tensor in tensors)
            if tensors[0].data_type != _TYPES[self.dtype]:
                value = root.cast(value, self.dtype)
            root._values[id(variable)] = root("Mul", value, *scales) if scales else value
        return root._values[id(variable)]

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

    def loop(self, condition, state, step):
        """Repeats a step while a condition holds; returns the last values of a state, as a dict.

        Args:
            condition: boolean scalar value. Whether there is a first step.
            state: dict of name to a pair of value and dtype. The shape of a value may change.
            step: function of the body, a `Graph`, the step's number (int64 scalar) and a dict of
                name to value. Returns whether there is another step, and the new dict.
        """
        body = Graph("body", self._weights, self.dtype)
        body.root = self.root
        names = [f"{name}_{next(self.root._count)}" for name in ("step", "goes_on", *state)]
        dtypes = "int64", "bool", *(dtype for _, dtype in state.values())
        goes_on, values = step(body, names[0], dict(zip(state, names[2:], strict=True)))
        outputs = [body("Identity", each) for each in (goes_on, *map(values.get, state))]
        # onnxruntime wants to know that the first two are scalars.
        shapes = (), (), *(None for _ in state)
        inputs, outputs = (
            [
                helper.make_tensor_value_info(name, _TYPES[dtype], shape)
                for name, dtype, shape in zip(
                    each, dtypes[-len(each) :], shapes[-len(each) :], strict=True
                )
            ]
            for each in (names, outputs)
        )
        results = self(
            "Loop",
            *("", condition),
            *(value for value, _ in state.values()),
            outputs=len(state),
            body=helper.make_graph(body._nodes, "body", inputs, outputs),
        )
        return dict(zip(state, results, strict=True))

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
        # In the body of a loop, onnxruntime wants to know the rank.
        shape = "batch", "width"
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
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
