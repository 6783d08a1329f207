"""A SavedModel is code: what its graph may do is known before it is loaded."""

import numpy as np
import pytest

from kformer.export import SavedModelTranslator
from kformer.export.saved_model.folder import GRAPH_FILE, write_metadata
from kformer.export.saved_model.trust import UntrustedModelError, check_graph, computes
from kformer.serving.served_model import ServedModel

pytestmark = pytest.mark.any_backend(quickest="tensorflow")
pytest.importorskip("tensorflow_text")


def save(folder, translate, table=None):
    """Saves a model whose translation of texts is what the function `translate` returns."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(np.ones((3, 4), "float32"))
            self.table = table

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def serving(self, text):
            rows = tf.shape(text)[0]
            scores = tf.fill([rows], tf.reduce_sum(self.weight))
            cut = tf.fill([rows], False)
            return {"translation": translate(text), "score": scores, "truncated": cut}

    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.serving})
    write_metadata(folder, {"search": {"n_best": 1}})
    return folder


def test_a_graph_that_writes_or_reads_a_file_is_refused_before_it_is_loaded(tmp_path):
    import tensorflow as tf

    secret, written = tmp_path / "key", tmp_path / "written"
    secret.write_text("very secret")

    def leak(text):
        with tf.control_dependencies([tf.io.write_file(str(written), text[0])]):
            return tf.fill(tf.shape(text), tf.io.read_file(str(secret)))

    folder = save(tmp_path / "model" / "1", leak)
    for load in (SavedModelTranslator, ServedModel):
        with pytest.raises(UntrustedModelError, match=r"op (Read|Write)File, .* give trust_models"):
            load(folder)
    assert not written.exists()
    assert SavedModelTranslator(folder, trust_models=True)(["noon"]) == ["very secret"]
    assert ServedModel(folder, trust_models=True).signatures and written.exists()


def test_what_own_layers_need_passes(tmp_path):
    """Random numbers, tables, loops, checks."""
    import tensorflow as tf

    keys = tf.constant(["noon", "night"])
    initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.range(2, dtype=tf.int64))
    table = tf.lookup.StaticVocabularyTable(initializer, 1)

    def translate(text):
        number = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])[0]
        with tf.control_dependencies([tf.debugging.assert_greater(number, 0)]):
            noise = tf.random.uniform([])
        return tf.strings.join([text, tf.as_string(table.lookup(text)), tf.as_string(noise > 2)])

    assert SavedModelTranslator(save(tmp_path / "1", translate, table))(["noon"]) == ["noon0false"]


@pytest.mark.parametrize("place", ["node", "call", "signature", "control"])
def test_the_saver_may_only_save(tmp_path, place):
    """Its functions write files, so nothing but TensorFlow's own saver may run them."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (save(tmp_path / "1", lambda text: text) / GRAPH_FILE).read_bytes()
    check_graph(content, "model")
    model = saved_model_pb2.SavedModel.FromString(content)
    (graph,) = model.meta_graphs
    saver = graph.saver_def.save_tensor_name.partition(":")[0]
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    (node,) = (node for node in graph.graph_def.node if node.name == saver)
    (called,) = (
        function for name, function in functions.items() if name == node.attr["f"].func.name
    )
    serving = next(function for name, function in functions.items() if "serving" in name)
    if place == "node":
        (save_node,) = (each for each in called.node_def if each.op == "SaveV2")
        serving.node_def.add().CopyFrom(save_node)
    elif place == "call":
        serving.node_def.add().CopyFrom(node)
    elif place == "signature":
        outputs = graph.signature_def["serving_default"].outputs
        outputs["translation"].name = f"{saver}:0"
    else:
        graph.graph_def.node.add(name="after", op="NoOp").input.append(f"^{saver}")
    with pytest.raises(UntrustedModelError, match="op (SaveV2|MergeV2Checkpoints)"):
        check_graph(model.SerializeToString(), "model")


def test_ops_that_reach_out_are_known_by_name():
    """Stateless ones, too: TensorFlow marks neither ReadFile nor MatchingFiles as stateful."""
    reaches_out = """ReadFile WriteFile MatchingFiles SaveV2 RestoreV2 Save Restore PyFunc
        EagerPyFunc PyFuncStateless PrintV2 Print ImmutableConst InitializeTableFromTextFile
        InitializeTableFromTextFileV2 GenerateVocabRemapping LoadAndRemapMatrix DebugIdentity
        DebugIdentityV2 DebugNanCount TextLineDataset TFRecordDataset CacheDataset SnapshotDataset
        DatasetFromGraph SqlDataset LMDBDataset WholeFileReaderV2 TextLineReaderV2 RemoteCall
        RpcCall RpcServer Send Recv XlaCustomCallV2 XlaLaunch CreateSummaryFileWriter WriteSummary
        FileSystemSetConfiguration FixedUnigramCandidateSampler DumpTensor RegisterDataset
        TPUPartitionedCall NoSuchOp""".split()
    assert [op for op in reaches_out if computes(op)] == []
    needed = """MatMul If While StatelessWhile StatefulPartitionedCall PartitionedCall VarHandleOp
        ReadVariableOp HashTableV2 LookupTableFindV2 SentencepieceOp
        TFText>FastSentencepieceTokenize
        RandomUniform StatelessRandomUniformV2 TensorArrayV3 TensorListReserve Assert""".split()
    assert [op for op in needed if not computes(op)] == []
