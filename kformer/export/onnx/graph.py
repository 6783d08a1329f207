"""The graphs of the export to ONNX, node by node. Only the export imports this module, since it
needs the `onnx` package.

Shape letters: B batch, T new target tokens, S source tokens, P target tokens so far, K keys, N
heads, H head size, D hidden size, V vocabulary."""

import math

import numpy as np
import onnx
from keras import ops
from onnx import TensorProto, helper, numpy_helper

from kformer.layers.relative_positions import rotary_frequencies

# The lowest that has LayerNormalization, and the file format of its time: old runtimes read them,
# too.
_OPSET = 17
_IR_VERSION = 8
_TYPES = {
    "bool": TensorProto.BOOL,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}
# Stands for minus infinity, as in MultiHeadAttention.
_MASKED = -1e30
# Offsets in the file of weights that every system can map into memory.
_ALIGNMENT = 65536


class WeightStore:
    """Where weights are put: into the graph that asks for them, or each once into a file that
    several graphs read.

    Args:
        dtype: `"float32"` or `"float16"`, what weights are stored and computed with.
        path: the file, in the folder of the graphs; `None` for the graphs themselves.
    """

    def __init__(self, dtype, path=None):
        self.dtype = dtype
        self._path = path
        self._file = None
        self._stored = {}

    def __enter__(self):
        if self._path is not None:
            self._file = open(self._path, "wb")
        return self

    def __exit__(self, *exception):
        if self._file is not None:
            self._file.close()

    def tensor(self, variable, name):
        """The `TensorProto` of a Keras variable."""
        if self._file is None:
            return numpy_helper.from_array(self._array(variable), name)
        if id(variable) not in self._stored:
            self._stored[id(variable)] = self._append(self._array(variable))
        place = self._stored[id(variable)]
        tensor = TensorProto(
            name=name,
            data_type=_TYPES[self.dtype],
            dims=variable.shape,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in {"location": self._path.name, **place}.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _array(self, variable):
        # By way of float32: NumPy has no bfloat16.
        return ops.convert_to_numpy(ops.cast(variable.value, "float32")).astype(self.dtype)

    def _append(self, array):
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        self._file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return {"offset": offset, "length": array.nbytes}


class Graph:
    """A graph under construction. Values are named by strings; calling it adds a node and returns
    the name of its output.

    Example:
        >>> doubled = graph("Add", x, x)
        >>> halves = graph("Split", x, outputs=2, axis=-1)
    """

    def __init__(self, name, weights):
        self.name = name
        self.dtype = weights.dtype
        self._weights = weights
        # Initializers by what they are, so that equal constants are one and no two weights are
        # taken for one another.
        self._nodes, self._initializers, self._inputs, self._outputs = [], {}, {}, {}

    def __call__(self, op, *inputs, outputs=1, **attributes):
        stem = f"{op}_{len(self._nodes)}"
        names = [stem] if outputs == 1 else [f"{stem}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=stem, **attributes))
        return names[0] if outputs == 1 else names

    def input(self, name, dtype, shape):
        """Declares an input; a size that is dynamic is a string."""
        self._inputs[name] = {"dtype": dtype, "shape": list(shape)}
        return name

    def output(self, name, value, dtype, shape):
        """Makes a value an output under a name of its own."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if other == value else other for other in names]
        self._outputs[name] = {"dtype": dtype, "shape": list(shape)}

    def constant(self, value, dtype):
        """A small array or number."""
        array = np.asarray(value, dtype=dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._initializers:
            self._initializers[key] = numpy_helper.from_array(
                array, f"constant_{len(self._initializers)}"
            )
        return self._initializers[key].name

    def weight(self, variable):
        """A Keras variable, under its path."""
        key = id(variable)
        if key not in self._initializers:
            self._initializers[key] = self._weights.tensor(variable, variable.path)
        return self._initializers[key].name

    def cast(self, value, dtype, source=None):
        """The value in another dtype; `source`, if it is known, is its dtype now."""
        return value if dtype == source else self("Cast", value, to=_TYPES[dtype])

    def size(self, value, axis):
        """The size of an axis, int64 scalar."""
        return self("Gather", self("Shape", value), self.constant(axis, "int64"), axis=0)

    def reshape(self, value, shape):
        """`value` in another shape: 0 keeps the size of that axis, -1 is what is left."""
        return self("Reshape", value, self.constant(shape, "int64"))

    def expand_dims(self, value, axes):
        return self("Unsqueeze", value, self.constant(axes, "int64"))

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
        graph = helper.make_graph(
            self._nodes, self.name, inputs, outputs, list(self._initializers.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=_IR_VERSION,
            producer_name="kformer",
        )
        onnx.save(model, path)


def build_encoder(network, weights):
    """The graph of `Network.encode` and of the cross-attention's keys and values.

    Args:
        network: `kformer.models.network.Network` of an exact `Transformer`.
        weights: `WeightStore`.
    """
    graph = Graph("encoder", weights)
    ids = graph.input("source_ids", "int64", ("batch", "source_length"))
    mask = graph("Not", graph("Equal", ids, graph.constant(network.pad_id, "int64")))
    keys_mask, attends = _padding(graph, mask)
    positions = graph(
        "Range", graph.constant(0, "int64"), graph.size(ids, 1), graph.constant(1, "int64")
    )
    x = _embed(graph, network.source_embedding, network.source_positions, ids, positions)
    factors = _rotary_factors(graph, network.encoder_layers[0].self_attention, positions)
    for layer in network.encoder_layers:

        def self_attention(x, attention=layer.self_attention):
            query, key, value = _heads(graph, attention, x, "query_key_value", 3)
            query, key = (_turn(graph, attention, part, factors) for part in (query, key))
            return _attend(graph, attention, query, key, value, keys_mask, attends)

        x = _residual(graph, layer, "self_attention", x, self_attention)
        x = _feed_forward(graph, layer, x)
    x = x if network.encoder.norm is None else _layer_norm(graph, network.encoder.norm, x)
    cross = [
        _heads(graph, layer.cross_attention, x, "key_value", 2) for layer in network.decoder_layers
    ]
    graph.output(
        "encoded", x, graph.dtype, ("batch", "source_length", network.source_embedding.hidden_dim)
    )
    graph.output("source_mask", mask, "bool", ("batch", "source_length"))
    for i, (layer, pair) in enumerate(zip(network.decoder_layers, cross, strict=True)):
        for name, value in zip(("key", "value"), pair, strict=True):
            graph.output(
                f"cross_{name}_{i}",
                value,
                graph.dtype,
                _cache_shape(layer.cross_attention, "source_length"),
            )
    return graph


def build_decoder_step(network, weights):
    """The graph of `Network.decode` with a growing cache, for one or several new tokens.

    Args:
        network: `kformer.models.network.Network` of an exact `Transformer`.
        weights: `WeightStore`.
    """
    graph = Graph("decoder_step", weights)
    ids = graph.input("target_ids", "int64", ("batch", "target_length"))
    caches = _declare_caches(graph, network.decoder_layers)
    source_mask = graph.input("source_mask", "bool", ("batch", "source_length"))
    keys_mask, attends = _padding(graph, source_mask)
    first = graph.size(caches[0]["past_key"], 2)
    end, one = graph("Add", first, graph.size(ids, 1)), graph.constant(1, "int64")
    positions = graph("Range", first, end, one)  # [T]
    all_positions = graph("Range", graph.constant(0, "int64"), end, one)  # [P + T]
    causal = graph("LessOrEqual", all_positions, graph.expand_dims(positions, [1]))  # [T, P + T]
    x = _embed(graph, network.target_embedding, network.target_positions, ids, positions)
    factors = _rotary_factors(graph, network.decoder_layers[0].self_attention, positions)
    present = []
    for layer, cache in zip(network.decoder_layers, caches, strict=True):

        def self_attention(x, attention=layer.self_attention, cache=cache):
            query, key, value = _heads(graph, attention, x, "query_key_value", 3)
            query, key = (_turn(graph, attention, part, factors) for part in (query, key))
            key = graph("Concat", cache["past_key"], key, axis=2)
            value = graph("Concat", cache["past_value"], value, axis=2)
            present.append((key, value))
            # Every query sees itself, so no row is empty.
            return _attend(graph, attention, query, key, value, causal, None)

        def cross_attention(x, attention=layer.cross_attention, cache=cache):
            query = _heads(graph, attention, x, "query", 1)
            return _attend(
                graph,
                attention,
                query,
                cache["cross_key"],
                cache["cross_value"],
                keys_mask,
                attends,
            )

        x = _residual(graph, layer, "self_attention", x, self_attention)
        x = _residual(graph, layer, "cross_attention", x, cross_attention)
        x = _feed_forward(graph, layer, x)
    x = x if network.decoder.norm is None else _layer_norm(graph, network.decoder.norm, x)
    graph.output(
        "logits",
        _project_output(graph, network, x, ids),
        "float32",
        ("batch", "target_length", _target_size(network)),
    )
    for i, (layer, pair) in enumerate(zip(network.decoder_layers, present, strict=True)):
        for name, value in zip(("key", "value"), pair, strict=True):
            graph.output(
                f"present_{name}_{i}",
                value,
                graph.dtype,
                _cache_shape(layer.self_attention, "past_length + target_length"),
            )
    return graph


def _declare_caches(graph, decoder_layers):
    """The inputs that hold keys and values: a dict for each layer, from its name without the
    number.
    """
    caches = [{} for _ in decoder_layers]
    for prefix, length in (("past", "past_length"), ("cross", "source_length")):
        for i, layer in enumerate(decoder_layers):
            for name in (f"{prefix}_key", f"{prefix}_value"):
                caches[i][name] = graph.input(
                    f"{name}_{i}", graph.dtype, _cache_shape(layer.self_attention, length)
                )
    return caches


def _cache_shape(attention, length):
    return ("batch", attention.num_heads, length, attention.head_size)


def _padding(graph, mask):
    """A padding mask `[B, S]` as a mask over keys `[B, 1, 1, S]`, and whether there is a key at
    all, `[B, 1, 1, 1]` with 1 or 0.
    """
    mask = graph.expand_dims(mask, [1, 2])
    attends = graph("ReduceMax", graph.cast(mask, "float32"), axes=[-1], keepdims=1)
    return mask, graph.cast(attends, graph.dtype, "float32")


def _embed(graph, embedding, normalized_positions, ids, positions):
    """Token vectors of ids `[B, T]` with the vectors of positions `[T]`: `[B, T, D]`."""
    x = graph("Gather", graph.weight(embedding.embeddings), ids, axis=0)
    if embedding.scale:
        x = graph("Mul", x, graph.constant(math.sqrt(embedding.hidden_dim), graph.dtype))
    x = _add_positions(graph, embedding, x, positions, embedding.hidden_dim)
    if normalized_positions is None:
        return x
    x = _add_positions(graph, normalized_positions, x, positions, embedding.hidden_dim)
    return _layer_norm(graph, normalized_positions.norm, x)


def _add_positions(graph, layer, x, positions, hidden_dim):
    if layer.position_encoding is None:
        return x
    if layer.position_offset:
        positions = graph("Add", positions, graph.constant(layer.position_offset, "int64"))
    if layer.position_encoding == "learned":
        vectors = graph("Gather", graph.weight(layer.position_embeddings), positions, axis=0)
    else:
        vectors = graph.cast(
            _sinusoids(graph, layer.position_encoding, positions, hidden_dim),
            graph.dtype,
            "float32",
        )
    return graph("Add", x, vectors)


def _sinusoids(graph, position_encoding, positions, hidden_dim):
    """What `kformer.layers.sinusoidal_positions` computes: float32 `[T, D]`."""
    if position_encoding == "sinusoidal_fairseq":
        exponents = np.arange(hidden_dim // 2) / max(hidden_dim // 2 - 1, 1)
    elif position_encoding in ("sinusoidal", "sinusoidal_halves"):
        exponents = np.arange(0, hidden_dim, 2) / hidden_dim
    else:
        raise ValueError(
            f"The position encoding {position_encoding!r} cannot be exported to ONNX; export a SavedModel."
        )
    angles = graph.expand_dims(graph.cast(positions, "float32"), [1])
    angles = graph("Mul", angles, graph.constant(10000.0**-exponents, "float32"))
    waves = graph("Sin", angles), graph("Cos", angles)
    if position_encoding == "sinusoidal":
        pairs = graph(
            "Concat", *(graph.expand_dims(wave, [2]) for wave in waves), axis=2
        )  # [T, ceil(D / 2), 2]
        vectors = graph.reshape(pairs, [-1, 2 * len(exponents)])
    else:
        vectors = graph("Concat", *waves, axis=1)
    missing = hidden_dim - 2 * len(
        exponents
    )  # An odd D drops the last cosine or, in fairseq's layout, ends with 0.
    if missing > 0:
        return graph("Pad", vectors, graph.constant([0, 0, 0, missing], "int64"))
    if missing < 0:
        return graph(
            "Slice", vectors, *(graph.constant([value], "int64") for value in (0, hidden_dim, 1))
        )
    return vectors


def _rotary_factors(graph, attention, positions):
    """What `kformer.layers.relative_positions.rotary_factors` computes: two float32 `[T, H]`;
    `None` without rotary positions.
    """
    if attention.rotary is None:
        return None
    frequencies = rotary_frequencies(attention.head_size, attention.rotary["base"])
    # Each angle twice, once for each number of its pair.
    is_interleaved = attention.rotary["interleaved"]
    frequencies, signs = (
        np.repeat(part, 2) if is_interleaved else np.tile(part, 2)
        for part in (frequencies, np.ones_like(frequencies))
    )
    signs[slice(0, None, 2) if is_interleaved else slice(0, len(signs) // 2)] = -1
    angles = graph.expand_dims(graph.cast(positions, "float32"), [1])
    angles = graph("Mul", angles, graph.constant(frequencies, "float32"))
    return graph("Cos", angles), graph(
        "Mul", graph("Sin", angles), graph.constant(signs, "float32")
    )


def _turn(graph, attention, x, factors):
    """Queries or keys `[B, N, T, H]`, turned by their positions; as they are without factors."""
    if factors is None:
        return x
    x = graph.cast(x, "float32", graph.dtype)
    size = attention.head_size
    pairs = graph.reshape(x, [0, 0, 0, size // 2, 2]) if attention.rotary["interleaved"] else x
    first, second = graph("Split", pairs, outputs=2, axis=-1)
    swapped = graph("Concat", second, first, axis=-1)
    swapped = (
        graph.reshape(swapped, [0, 0, 0, size]) if attention.rotary["interleaved"] else swapped
    )
    turned = graph("Add", graph("Mul", x, factors[0]), graph("Mul", swapped, factors[1]))
    return graph.cast(turned, graph.dtype, "float32")


def _layer_norm(graph, norm, x):
    # Its statistics are float32 whatever the dtype (stash_type).
    return graph(
        "LayerNormalization",
        x,
        graph.weight(norm.gamma),
        graph.weight(norm.beta),
        axis=-1,
        epsilon=norm.epsilon,
        stash_type=1,
    )


def _residual(graph, layer, name, x, sublayer):
    """A sub-layer with residual connection and norm, as `ResidualLayer` has it."""
    norm = getattr(layer, f"{name}_norm")
    x = graph("Add", x, sublayer(_layer_norm(graph, norm, x) if layer.normalize_first else x))
    return x if layer.normalize_first else _layer_norm(graph, norm, x)


def _linear(graph, x, kernel, bias):
    x = graph("MatMul", x, graph.weight(kernel))
    return x if bias is None else graph("Add", x, graph.weight(bias))


def _feed_forward(graph, layer, x):
    feed_forward = layer.feed_forward

    def sublayer(x):
        inner, outer = feed_forward.intermediate, feed_forward.output_projection
        x = _activate(graph, feed_forward.activation, _linear(graph, x, inner.kernel, inner.bias))
        return _linear(graph, x, outer.kernel, outer.bias)

    return _residual(graph, layer, "feed_forward", x, sublayer)


def _activate(graph, activation, x):
    if activation == "relu":
        return graph("Relu", x)
    if activation == "silu":
        return graph("Mul", x, graph("Sigmoid", x))
    if (
        activation == "gelu"
    ):  # x / 2 * (1 + erf(x / sqrt(2))), in the order of nodes in which runtimes recognise it.
        half, one, root = (graph.constant(value, graph.dtype) for value in (0.5, 1.0, math.sqrt(2)))
        erf = graph("Erf", graph("Div", x, root))
        return graph("Mul", graph("Mul", x, graph("Add", erf, one)), half)
    raise ValueError(
        f"The activation {activation!r} cannot be exported to ONNX; export a SavedModel."
    )


def _heads(graph, attention, x, name, parts):
    """Projects `[B, T, D]` by the weights `name` to `parts` tensors `[B, N, T, H]`; one alone comes
    without a list.
    """
    x = _linear(graph, x, getattr(attention, f"{name}_kernel"), getattr(attention, f"{name}_bias"))
    split = [x] if parts == 1 else graph("Split", x, outputs=parts, axis=-1)
    shape = [0, 0, attention.num_heads, attention.head_size]
    heads = [graph("Transpose", graph.reshape(part, shape), perm=[0, 2, 1, 3]) for part in split]
    return heads[0] if parts == 1 else heads


def _attend(graph, attention, query, key, value, mask, attends):
    """Attention over split heads, joined and projected: `[B, T, D]`.

    `mask` is broadcastable to `[B, N, T, K]`; `attends` is 0 where it leaves nothing, so that the
    context is zeros there, or `None`."""
    query, key = (graph.cast(x, "float32", graph.dtype) for x in (query, key))
    query = graph("Mul", query, graph.constant(attention.head_size**-0.5, "float32"))
    scores = graph("MatMul", query, graph("Transpose", key, perm=[0, 1, 3, 2]))  # [B, N, T, K]
    scores = graph("Where", mask, scores, graph.constant(_MASKED, "float32"))
    weights = graph.cast(graph("Softmax", scores, axis=-1), graph.dtype, "float32")
    context = graph("MatMul", weights, value)
    if attends is not None:
        context = graph("Mul", context, attends)
    context = graph("Transpose", context, perm=[0, 2, 1, 3])  # [B, T, N, H]
    context = graph.reshape(context, [0, 0, attention.num_heads * attention.head_size])
    return _linear(graph, context, attention.output_kernel, attention.output_bias)


def _target_size(network):
    return network.target_embedding.vocabulary_size


def _project_output(graph, network, x, ids):
    """Logits, float32 `[B, T, V]`. As Gemm on a matrix: it reads the embedding's table as it lies,
    without a transposed copy.
    """
    is_shared = network.output_projection is None
    table = network.target_embedding.embeddings if is_shared else network.output_projection.kernel
    bias = [] if network.output_bias is None else [graph.weight(network.output_bias.bias)]
    x = graph.reshape(x, [-1, network.target_embedding.hidden_dim])
    logits = graph("Gemm", x, graph.weight(table), *bias, transB=int(is_shared))
    shape = graph(
        "Concat", graph("Shape", ids), graph.constant([_target_size(network)], "int64"), axis=0
    )
    return graph.cast(graph("Reshape", logits, shape), "float32", graph.dtype)
