"""What the graph of a SavedModel may do, which is known before it is loaded.

A SavedModel is code: its ops may read and write files. So a graph from somebody else may have the
ops that compute, and no others, unless its user trusts who made it.
"""

import re

from kformer_options.names import named

# Stateless ops of TensorFlow that read files, or that call what is outside the graph.
_REACHES_OUT = re.compile(
    "ReadFile|MatchingFiles|ImmutableConst|GenerateVocabRemapping|InitializeTableFromTextFile|"
    ".*Dataset.*|Debug.*|PyFuncStateless|XlaCustomCall.*|XlaLaunch.*|.*T[Pp][Uu].*"
)
# Ops with a state that stays in the process: control flow, checks, variables, tables, tokenizers,
# random numbers, arrays.
_STAYS_INSIDE = re.compile(
    "If|While|Case|StatefulPartitionedCall|Assert|CheckNumerics(V2)?|Empty|"
    "VarHandleOp|(Read|Assign|AssignAdd|AssignSub)VariableOp|VarIsInitializedOp|VariableShape|"
    "DisableCopyOnRead|DestroyResourceOp|ResourceGather(Nd)?|"
    "(Mutable|MutableDense)?HashTable(OfTensors)?V2|LookupTable[A-Z][a-z]+V2|"
    "Sentencepiece[A-Za-z]*Op|WordpieceTokenizeWithOffsets|"
    "Random(Uniform|UniformInt|StandardNormal|Gamma|PoissonV2|Shuffle)|TruncatedNormal|Multinomial|"
    "Stateful(StandardNormalV2|TruncatedNormal|Uniform|UniformInt)|RngReadAndSkip|"
    "StatelessRandomGetAlg|TensorArray[A-Za-z]*V3"
)
# Ops that only TensorFlow's own functions for saving and restoring variables may have.
_OF_THE_SAVER = frozenset(["MergeV2Checkpoints", "RestoreV2", "SaveV2"])


class UntrustedModelError(ValueError):
    """The graph of a SavedModel has an op that may reach out of it."""


def check_graph(content, folder):
    """Checks that a graph computes, and neither reads nor writes files (TensorFlow only).

    Args:
        content: bytes of the file `saved_model.pb`.
        folder: path. What the message calls the model.

    Raises:
        UntrustedModelError: it has another op.
        google.protobuf.message.DecodeError: the file is damaged.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    for graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        functions = {
            function.signature.name: function.node_def
            for function in graph.graph_def.library.function
        }
        of_the_saver = _functions_of_the_saver(graph, functions)
        for name, nodes in ((None, graph.graph_def.node), *functions.items()):
            for op in {node.op for node in nodes} - functions.keys():
                is_allowed = computes(op) or (op in _OF_THE_SAVER and name in of_the_saver)
                if not is_allowed:
                    raise UntrustedModelError(
                        f"The graph of {folder} has the op {op}, with which a model may do more "
                        "than translate, such as read or write files: if you trust who made it, "
                        f"give {named('trust_models')}."
                    )


def computes(op):
    """Returns whether an op only computes, by its name (bool). An unknown one does not."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    if definition is None or _REACHES_OUT.fullmatch(op):
        return False
    return not definition.is_stateful or _STAYS_INSIDE.fullmatch(op) is not None


def _functions_of_the_saver(graph, functions):
    """The names of the functions that save and restore variables, which nothing else calls."""
    saver, nodes = graph.saver_def, graph.graph_def.node
    ends = {saver.save_tensor_name.partition(":")[0], saver.restore_op_name}
    outputs = {name.lstrip("^").partition(":")[0] for node in nodes for name in node.input}
    for signature in graph.signature_def.values():
        sides = (*signature.inputs.values(), *signature.outputs.values())
        outputs |= {tensor.name.partition(":")[0] for tensor in sides}
    called = {gradient.gradient_func for gradient in graph.graph_def.library.gradient}
    for node in graph.object_graph_def.nodes:
        called |= {*node.function.concrete_functions}
        called.add(node.bare_concrete_function.concrete_function_name)
    by_the_saver = set()
    for name, body in ((None, nodes), *functions.items()):
        for node in body:
            names = {node.op}.union(*map(_functions_in, node.attr.values()))
            is_end = name is None and node.name in ends - outputs
            (by_the_saver if is_end else called).update(names)
    return by_the_saver - called


def _functions_in(attribute):
    """The names of the functions in an attribute of a node."""
    return {attribute.func.name, *(function.name for function in attribute.list.func)}
