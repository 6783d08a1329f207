"""Word-level knowledge distillation: what teachers predict at each token of a training text."""

import keras
from keras import ops

from kformer.data import ParallelDataset
from kformer.data.soft_targets import SoftTargets, SoftTargetWriter
from kformer.models.ensemble import Ensemble
from kformer.utils import files
from kformer.utils.checks import check_whole
from kformer_options.model_folders import check_new_folder

# Classes of each token besides the token itself. The others share a few hundredths, most of which a
# teacher trained with label smoothing spreads evenly.
NUM_CLASSES = 8
# The most tokens of a batch: each teacher's probabilities of a batch are in memory at once.
_BATCH_TOKENS = 2048


def soft_targets(teachers, corpus, output, *, num_classes=NUM_CLASSES, progress=None):
    """Writes what teachers predict at each target token of a corpus into a folder.

    A student that learns from these distributions, instead of from the one token that the text has,
    also learns which other tokens would do, and how well: it learns more from the same text. The
    probabilities are the mean of all teachers. The teachers need the student's tokenizer, but may
    be of another size. The probabilities of the token itself and of the most probable others are
    stored; the rest is spread evenly over the vocabulary.

    Args:
        teachers: `kformer.Translator`, `kformer.Transformer` or `kformer.models.Ensemble`; or a
            list of models.
        corpus: `kformer.data.PreparedCorpus`, the student's training text, see
            `kformer.data.prepare`.
        output: path. The folder to make.
        num_classes: int, default 8. The classes that are stored for each token besides itself; less
            than the size of the vocabulary.
        progress: function, default `None`. It is called after each batch with the number of pairs
            done and the number of all pairs.

    Returns:
        `kformer.data.SoftTargets`, which `kformer.data.ParallelDataset` takes.

    Raises:
        FileExistsError: `output` exists.
        ValueError: `num_classes` is out of range; a teacher has other special tokens or fewer
            tokens than the corpus; or a translator has another tokenizer.

    Example:
    ```python
    tokenizer = kformer.Translator.load("runs/1").tokenizer
    teachers = [kformer.saving.load_run(run)[0] for run in ("runs/1", "runs/2")]
    corpus = kformer.data.prepare("train.en", "train.de", tokenizer, "data/train")
    targets = kformer.distillation.soft_targets(teachers, corpus, "data/train-taught")
    train = kformer.data.ParallelDataset.from_prepared(corpus, soft_targets=targets)
    ```

    References:
        Hinton et al. 2015, "Distilling the knowledge in a neural network".
        Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1.
    """
    if hasattr(teachers, "tokenizer"):
        corpus.check_tokenizer(teachers.tokenizer)
    model = getattr(teachers, "model", teachers)
    models = list(model) if isinstance(model, list | tuple) else getattr(model, "models", [model])
    model = Ensemble(models)  # It checks that the models fit together.
    for name in ("pad_id", "start_id", "end_id", "vocabulary_size", "target_vocabulary_size"):
        value, expected = getattr(model, name), getattr(corpus, name)
        if value < expected or (value > expected and name.endswith("_id")):
            raise ValueError(
                f"The teacher's {name} is {value}, but the corpus has {expected}: prepare it with "
                "the teacher's tokenizer."
            )
    # The token itself is one of the vocabulary, too.
    num_classes = check_whole("num_classes", num_classes, most=corpus.target_vocabulary_size - 1)
    check_new_folder(output)
    dataset = ParallelDataset.from_prepared(corpus, batch_tokens=_BATCH_TOKENS, shuffle=False)
    predictor = _Predictor(models, num_classes, corpus.target_vocabulary_size)
    done = 0
    with (
        files.new_folder(output) as folder,
        SoftTargetWriter(folder, corpus, 1 + num_classes) as writer,
    ):
        for step in range(dataset.steps_per_epoch):
            inputs, labels = dataset.batch_at(step)
            pairs = dataset.pairs_at(step)
            writer.write(pairs, *predictor.predict_on_batch({**inputs, "labels": labels}))
            done += len(pairs)
            if progress is not None:
                progress(done, corpus.num_pairs)
    return SoftTargets(output, corpus)


class _Predictor(keras.Model):
    """The mean probabilities of some models: of each label, and of the most probable other classes.

    It is a Keras model so that `predict_on_batch` compiles it.
    """

    def __init__(self, models, num_classes, vocabulary_size):
        super().__init__(name="teachers")
        self._models, self._num_classes = models, num_classes
        self._vocabulary_size = vocabulary_size

    def call(self, inputs):
        labels = ops.expand_dims(inputs["labels"], -1)
        pairs = {key: inputs[key] for key in ("source_ids", "target_ids")}
        # A teacher's table may be larger than the vocabulary; the rows beyond it have no token.
        size = self._vocabulary_size
        logits = (model(pairs, training=False)[..., :size] for model in self._models)
        mean = sum(ops.softmax(ops.cast(each, "float32")) for each in logits) / len(self._models)
        probabilities, ids = ops.top_k(mean, self._num_classes + 1)
        ids = ops.cast(ids, "int32")
        # Leave out the label where it is among the classes; the last class where it is not.
        is_label = ops.cast(ops.equal(ids, labels), "int32")
        is_behind = ops.greater(ops.cumsum(is_label, axis=-1)[..., :-1], 0)
        ids = ops.where(is_behind, ids[..., 1:], ids[..., :-1])
        probabilities = ops.where(is_behind, probabilities[..., 1:], probabilities[..., :-1])
        probabilities = [ops.take_along_axis(mean, labels, axis=-1), probabilities]
        return ops.concatenate([labels, ids], axis=-1), ops.concatenate(probabilities, axis=-1)
