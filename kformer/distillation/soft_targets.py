"""Word-level knowledge distillation: what teachers expect at each token of a training text."""

import operator

import keras
from keras import ops

from kformer.data import ParallelDataset
from kformer.data.soft_targets import SoftTargets, SoftTargetWriter
from kformer.models.ensemble import Ensemble
from kformer.utils import files
from kformer.utils.checks import check_whole

# Classes of each token beside the token itself: what is left is a few hundredths, of which a
# smoothed teacher spreads most evenly.
NUM_CLASSES = 8
# Tokens of a batch whose probabilities stand in memory, for each teacher.
_BATCH_TOKENS = 2048


def soft_targets(teachers, corpus, output, *, num_classes=NUM_CLASSES, progress=None):
    """Asks teachers what they expect at each target token of a corpus, and writes their answers
    into a folder.

    A student that learns from these distributions, and not from the one word that the text has, is
    told at each token which other words would do and how well: it learns more from as many tokens.
    The teachers' mean probability counts; they need the student's tokenizer, but not its size. Each
    answer holds the token itself and the likeliest classes beside it; what is left is spread
    evenly.

    Args:
        teachers: `kformer.Translator`, `kformer.Transformer` or `kformer.models.Ensemble`; or a
            list of models.
        corpus: the `kformer.data.PreparedCorpus` of the student's training, which
            `kformer.data.prepare` makes of its texts.
        output: the folder to make.
        num_classes: int, classes of each token beside itself, less than the vocabulary has.
        progress: function that is called with the pairs done and the pairs in all after each batch.

    Returns:
        `kformer.data.SoftTargets`, which `kformer.data.ParallelDataset` takes.

    Raises:
        FileExistsError: there is something at `output`.
        ValueError: `num_classes` is no such number, or a teacher has other special tokens or fewer
            tokens than the corpus, or a translator's tokenizer is another.

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
    model = Ensemble(models)  # It also looks whether they go together.
    for name, fits in (
        *((name, operator.eq) for name in ("pad_id", "start_id", "end_id")),
        *((name, operator.ge) for name in ("vocabulary_size", "target_vocabulary_size")),
    ):
        theirs, own = getattr(model, name), getattr(corpus, name)
        if not fits(theirs, own):
            raise ValueError(
                f"The teacher's {name} is {theirs}, but the corpus has {own}: prepare it with "
                "the teacher's tokenizer."
            )
    # Fewer than the vocabulary has.
    num_classes = check_whole("num_classes", num_classes, most=corpus.target_vocabulary_size - 1)
    dataset = ParallelDataset.from_prepared(corpus, batch_tokens=_BATCH_TOKENS, shuffle=False)
    asked = _Asked(models, num_classes, corpus.target_vocabulary_size)
    done = 0
    with files.new_folder(output) as folder:
        writer = SoftTargetWriter(folder, corpus, 1 + num_classes)
        for step in range(dataset.steps_per_epoch):
            inputs, labels = dataset.batch_at(step)
            pairs = dataset.pairs_at(step)
            writer.write(pairs, *asked.predict_on_batch({**inputs, "labels": labels}))
            done += len(pairs)
            if progress is not None:
                progress(done, corpus.num_pairs)
        writer.close()
    return SoftTargets(output, corpus)


class _Asked(keras.Model):
    """The mean probabilities of some models, of each label and of the likeliest classes beside it;
    compiled as any model is.
    """

    def __init__(self, models, num_classes, vocabulary_size):
        super().__init__(name="teachers")
        self._models, self._num_classes, self._vocabulary_size = (
            models,
            num_classes,
            vocabulary_size,
        )

    def call(self, inputs):
        labels = ops.expand_dims(inputs["labels"], -1)
        given = {key: inputs[key] for key in ("source_ids", "target_ids")}
        # Rows of a table that is larger than the vocabulary stand for nothing.
        parts = [
            ops.softmax(
                ops.cast(model(given, training=False)[..., : self._vocabulary_size], "float32")
            )
            for model in self._models
        ]
        mean = sum(parts) / len(parts)
        probabilities, ids = ops.top_k(mean, self._num_classes + 1)
        ids = ops.cast(ids, "int32")
        # Without the label where it is among them, without the last where it is not.
        is_label = ops.cast(ops.equal(ids, labels), "int32")
        is_behind = ops.greater(ops.cumsum(is_label, axis=-1)[..., :-1], 0)
        ids = ops.where(is_behind, ids[..., 1:], ids[..., :-1])
        probabilities = ops.where(is_behind, probabilities[..., 1:], probabilities[..., :-1])
        own = ops.take_along_axis(mean, labels, axis=-1)
        return ops.concatenate([labels, ids], axis=-1), ops.concatenate(
            [own, probabilities], axis=-1
        )
