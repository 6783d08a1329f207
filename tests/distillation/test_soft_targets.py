"""Soft targets: what teachers predict at each token, and the loss of their student."""

import json
import shutil

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.data.corpus import PreparedCorpus
from kformer.data.soft_targets import SoftTargets, SoftTargetWriter
from kformer.distillation.soft_targets import soft_targets
from kformer.models.ensemble import Ensemble
from kformer.trainer import train_run
from kformer.training import MaskedCrossentropy, paper_recipe
from kformer.training.losses import soft_crossentropy
from kformer.training.projected_loss import projected_crossentropy
from kformer.utils.checksums import with_checksum
from tests.gradients import gradients

V, K = 30, 4


def random_case(seed=0, batch=3, length=5, size=8):
    """Hidden states, a table, classes (the label first), their probabilities, weights."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(batch, length, size)).astype("float32")
    table = random.normal(size=(V, size)).astype("float32")
    ids = np.argsort(random.random((batch, length, V)), -1)[..., :K].astype("int32")
    shares = (random.dirichlet(np.ones(K + 1), (batch, length))[..., :K]).astype("float32")
    weights = (random.random((batch, length)) * (random.random((batch, length)) > 0.3)).astype(
        "float32"
    )
    return hidden, table, ids, shares, weights


def dense(ids, shares):
    """The distribution over all classes: the rest of the probability is spread evenly."""
    target = np.repeat((1 - shares.sum(-1, keepdims=True)) / V, V, -1)
    np.put_along_axis(target, ids, np.take_along_axis(target, ids, -1) + shares, -1)
    return target


def torch_losses(logits, target):
    """By PyTorch's own cross-entropy with probabilities of classes."""
    torch = pytest.importorskip("torch")
    logits, target = (
        torch.tensor(np.asarray(part, "float64").reshape(-1, V)) for part in (logits, target)
    )
    return torch.nn.functional.cross_entropy(logits, target, reduction="none").numpy()


@pytest.mark.parametrize("chunk_rows", [4, None])
def test_the_loss_is_that_of_the_whole_distribution(chunk_rows):
    hidden, table, ids, shares, weights = random_case()
    variables = [keras.Variable(hidden), keras.Variable(table)]
    target = dense(ids, shares)
    tensors = [ops.convert_to_tensor(part) for part in (ids, shares, weights)]

    def projected():
        values = [ops.convert_to_tensor(variable) for variable in variables]
        options = {"chunk_rows": chunk_rows, "soft_targets": tuple(tensors[:2])}
        return projected_crossentropy(*values, tensors[0][..., 0], tensors[2], 0.1, **options)

    def plain():
        logits = ops.matmul(variables[0], ops.transpose(variables[1]))
        losses = -ops.sum(
            ops.convert_to_tensor(target.astype("float32")) * ops.log_softmax(logits, axis=-1),
            axis=-1,
        )
        return ops.sum(losses * tensors[2])

    logits = hidden.astype("float64") @ table.astype("float64").T
    expected = torch_losses(logits, target)
    np.testing.assert_allclose(
        ops.convert_to_numpy(soft_crossentropy(logits, ids, shares)).reshape(-1),
        expected,
        rtol=1e-5,
    )
    found = ops.convert_to_numpy(ops.stop_gradient(projected()))
    nll = torch_losses(logits, np.eye(V)[ids[..., 0]])
    hits = logits.argmax(-1) == ids[..., 0]
    np.testing.assert_allclose(
        found,
        [(part.reshape(weights.shape) * weights).sum() for part in (expected, nll, hits)],
        rtol=1e-5,
    )
    for mine, other in zip(
        gradients(lambda: projected()[0] * 3.0, variables),
        gradients(lambda: plain() * 3.0, variables),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_a_teacher_that_is_sure_of_the_label_changes_no_loss():
    """A teacher that gives the label all probability changes no loss, at any teacher weight."""
    hidden, table, ids, shares, _ = random_case(1)
    shares[:] = [1.0, 0.0, 0.0, 0.0]
    labels, hidden, table = ids[..., 0], ops.convert_to_tensor(hidden), ops.convert_to_tensor(table)
    plain, _ = MaskedCrossentropy(pad_id=-1).of_projection(labels, hidden, table)
    taught = MaskedCrossentropy(pad_id=-1, teacher_weight=0.3)
    found, _ = taught.of_projection(labels, hidden, table, soft_targets=(ids, shares))
    assert float(ops.convert_to_numpy(ops.stop_gradient(found))) == pytest.approx(
        float(ops.convert_to_numpy(plain)), rel=1e-6
    )


def test_the_target_is_a_mixture_of_teachers_and_label():
    hidden, table, ids, shares, _ = random_case(2)
    loss = MaskedCrossentropy(label_smoothing=0.1, pad_id=-1, teacher_weight=0.7)
    logits = hidden @ table.T
    smoothed = 0.9 * np.eye(V)[ids[..., 0]] + 0.1 / V
    expected = torch_losses(logits, 0.7 * dense(ids, shares) + 0.3 * smoothed).mean()
    value, _ = loss.of_projection(
        ids[..., 0],
        ops.convert_to_tensor(hidden),
        ops.convert_to_tensor(table),
        soft_targets=(ids, shares),
    )
    assert float(ops.convert_to_numpy(ops.stop_gradient(value))) == pytest.approx(
        expected, rel=1e-5
    )
    value = loss.in_training(ids[..., 0], ops.convert_to_tensor(logits), soft_targets=(ids, shares))
    assert float(ops.convert_to_numpy(value)) == pytest.approx(expected, rel=1e-5)
    assert MaskedCrossentropy.from_config(loss.get_config()).teacher_weight == 0.7


def test_a_weight_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"teacher_weight must be from 0 to 1, but 1.5"):
        MaskedCrossentropy(teacher_weight=1.5)


SOURCES = [
    f"a {word} dog runs{' fast' * (n % 4)}"
    for n, word in enumerate(["red", "blue", "green", "old", "new"] * 8)
]
TARGETS = [
    f"ein {word} Hund rennt{' sehr schnell' * (n % 3)}"
    for n, word in enumerate(["roter", "blauer", "alter", "neuer"] * 10)
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    for name, lines in (("train.en", SOURCES), ("train.de", TARGETS)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    paths = [str(folder / name) for name in ("train.en", "train.de")]
    tokenizer = kformer.Tokenizer.train(
        paths, vocabulary_size=35, byte_fallback=False, model_type="unigram"
    )
    return folder, tokenizer, kformer.data.prepare(*paths, tokenizer, folder / "corpus")


def small_model(tokenizer, seed):
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "num_heads": 2,
    }
    ids = {"pad_id": tokenizer.pad_id, "start_id": tokenizer.start_id, "end_id": tokenizer.end_id}
    return kformer.Transformer(tokenizer.vocabulary_size, **sizes, **ids, dropout=0.0, seed=seed)


@pytest.mark.any_backend(quickest="torch")
def test_stored_probabilities_are_those_of_the_models(prepared, tmp_path):
    _, tokenizer, corpus = prepared
    models = [small_model(tokenizer, seed) for seed in (1, 2)]
    seen = []
    found = soft_targets(
        models,
        corpus,
        tmp_path / "soft",
        num_classes=3,
        progress=lambda *counts: seen.append(counts),
    )
    assert seen[-1] == (corpus.num_pairs, corpus.num_pairs)
    for packed in (False, True):
        dataset = kformer.data.ParallelDataset.from_prepared(
            corpus, batch_tokens=64, packed=packed, soft_targets=found
        )
        inputs, labels = dataset.batch_at(1)
        ids, probabilities = inputs["soft_target_ids"], inputs["soft_targets"]
        assert (
            ids.shape == (*labels.shape, 4)
            and ids.dtype == np.int32
            and probabilities.dtype == np.float32
        )
        given = {name: part for name, part in inputs.items() if not name.startswith("soft")}
        means = np.exp(np.asarray(ops.convert_to_numpy(_together(models, given)), "float64"))
        real = labels != corpus.pad_id
        assert (ids[..., 0] == labels)[real].all() and real.any() and not real.all()
        np.testing.assert_allclose(
            probabilities[real], np.take_along_axis(means, ids, -1)[real], atol=1e-3
        )
        means = means[real]
        means[np.arange(len(means)), labels[real]] = -1
        assert [set(row) for row in np.argsort(-means, -1)[:, :3].tolist()] == [
            set(row) for row in ids[real][:, 1:].tolist()
        ]
        assert not probabilities[~real].any()


@pytest.mark.any_backend
def test_probabilities_of_16_bits_do_not_sum_to_more_than_one(prepared, tmp_path):
    """Otherwise logits that all grow would lower the loss without end."""
    _, _, corpus = prepared
    pairs, shape = np.arange(corpus.num_pairs), (corpus.num_pairs, 60, 9)
    sure = np.array([0.99985, *[1.2e-5] * 8])
    with SoftTargetWriter(tmp_path, corpus, 9) as writer:
        writer.write(pairs, np.broadcast_to(np.arange(9), shape), np.broadcast_to(sure, shape))
    assert sure.astype("float16").astype("float64").sum() > 1.00005
    found = SoftTargets(tmp_path, corpus).gather(pairs, shape[:2])["soft_targets"]
    assert found.dtype == np.float32 and found.sum(-1).max() == pytest.approx(1, abs=2e-7)


@pytest.mark.any_backend
def test_a_disk_that_becomes_full_is_an_error(prepared, tmp_path):
    resource = pytest.importorskip("resource")
    corpus = prepared[2]
    pairs, values = np.arange(corpus.num_pairs), np.zeros((corpus.num_pairs, 60, 9), "int32")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with (
            pytest.raises(OSError, match="File too large"),
            SoftTargetWriter(tmp_path, corpus, 9) as writer,
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            writer.write(pairs, values, values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "meta.json").exists()


@pytest.mark.any_backend
def test_a_corpus_knows_its_tokenizer(prepared, tmp_path):
    folder, tokenizer, corpus = prepared
    lines = [
        line
        for side in ("en", "de")
        for line in (folder / f"train.{side}").read_text(encoding="utf-8").upper().splitlines()
    ]
    other = kformer.Tokenizer.train(
        texts=[*lines, "Q5 7"], vocabulary_size=35, byte_fallback=False, model_type="unigram"
    )
    assert other.vocabulary_size == tokenizer.vocabulary_size
    with pytest.raises(ValueError, match="was prepared with another tokenizer than the one given"):
        soft_targets(kformer.Translator(small_model(other, 1), other), corpus, tmp_path / "soft")
    assert not (tmp_path / "soft").exists()
    with pytest.raises(ValueError, match="was prepared with another tokenizer than the one given"):
        kformer.data.ParallelDataset.from_prepared(corpus, tokenizer=other, word_dropout=0.1)
    # The pieces of a tokenizer of another package are not known: nothing is checked.
    shutil.copytree(corpus.folder, tmp_path / "unknown")
    meta = json.loads((tmp_path / "unknown" / "meta.json").read_text(encoding="utf-8"))
    text = json.dumps(with_checksum({**meta, "vocabulary": None}))
    (tmp_path / "unknown" / "meta.json").write_text(text, encoding="utf-8")
    unknown = PreparedCorpus.load(tmp_path / "unknown")
    kformer.data.ParallelDataset.from_prepared(unknown, tokenizer=other, word_dropout=0.1)


def _together(models, inputs):
    """The logarithms of the mean probabilities, also of packed rows."""
    return Ensemble(models)(
        {name: ops.convert_to_tensor(part) for name, part in inputs.items()}, training=False
    )


@pytest.mark.any_backend(quickest="torch")
def test_arguments_that_do_not_fit_together_are_refused(prepared, tmp_path):
    _, tokenizer, corpus = prepared
    model = small_model(tokenizer, 1)
    found = soft_targets(
        kformer.Translator(model, tokenizer), corpus, tmp_path / "soft", num_classes=2
    )
    with pytest.raises(FileExistsError, match="something at .*soft already"):
        soft_targets(model, corpus, tmp_path / "soft", progress=lambda *counts: pytest.fail())
    with pytest.raises(ValueError, match="num_classes must be a whole number from 1 to 34"):
        soft_targets(model, corpus, tmp_path / "other", num_classes=35)
    with pytest.raises(ValueError, match="leave them out, or subword_sampling"):
        kformer.data.ParallelDataset.from_prepared(
            corpus, soft_targets=found, subword_sampling=0.1, tokenizer=tokenizer
        )
    config = {**model.get_config(), "end_id": 7}
    with pytest.raises(ValueError, match="teacher's end_id is 7, but the corpus has"):
        soft_targets(kformer.Transformer.from_config(config), corpus, tmp_path / "other")
    with pytest.raises(ValueError, match="teacher's vocabulary_size is 30, but the corpus has 35"):
        soft_targets(
            kformer.Transformer.from_config({**model.get_config(), "vocabulary_size": 30}),
            corpus,
            tmp_path / "other",
        )
    assert not (tmp_path / "other").exists()
    other = kformer.data.prepare(SOURCES[:10], TARGETS[:10], tokenizer, tmp_path / "corpus")
    with pytest.raises(ValueError, match="were made for another text"):
        kformer.data.SoftTargets(tmp_path / "soft", other)
    with pytest.raises(ValueError, match="not for"):
        kformer.data.ParallelDataset.from_prepared(other, soft_targets=found)
    with pytest.raises(FileNotFoundError, match="holds no soft targets"):
        kformer.data.SoftTargets(tmp_path / "corpus" / "none", corpus)


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("harm", ["cut", "flipped", "gone", "newer", "no json"])
def test_damaged_soft_targets_are_refused(prepared, tmp_path, harm):
    _, tokenizer, corpus = prepared
    soft_targets(small_model(tokenizer, 1), corpus, tmp_path / "soft", num_classes=2)
    meta, part = tmp_path / "soft" / "meta.json", tmp_path / "soft" / "classes.ids"
    message = {
        "cut": "bytes instead of",
        "flipped": "'classes.ids' has a wrong checksum",
        "gone": "is missing",
        "newer": "format version 9",
        "no json": "not the meta.json of any soft targets",
    }[harm]
    if harm == "cut":
        part.write_bytes(part.read_bytes()[:-2])
    elif harm == "flipped":
        part.write_bytes(bytes([part.read_bytes()[0] ^ 4]) + part.read_bytes()[1:])
    elif harm == "gone":
        part.unlink()
    elif harm == "newer":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "format_version": 9}))
    else:
        meta.write_text("{")
    with pytest.raises(ValueError, match=message):
        kformer.data.SoftTargets(tmp_path / "soft", corpus)


class WithLogits(kformer.Transformer):
    """A model with its own `compute_loss` computes its loss from the logits."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_student_learns_alike_with_and_without_logits(prepared, tmp_path):
    _, tokenizer, corpus = prepared
    teacher = small_model(tokenizer, 5)
    found = soft_targets(teacher, corpus, tmp_path / "soft")
    losses = {}
    for kind in (kformer.Transformer, WithLogits):
        dataset = kformer.data.ParallelDataset.from_prepared(
            corpus, batch_tokens=64, max_shapes=1, soft_targets=found
        )
        student = kind.from_config(small_model(tokenizer, 7).get_config())
        student.compile(**paper_recipe(student, learning_rate=1e-3, teacher_weight=0.6))
        losses[kind] = student.fit(dataset, epochs=2, verbose=0).history["loss"]
    assert losses[WithLogits] == pytest.approx(losses[kformer.Transformer], rel=1e-4)
    plain = small_model(tokenizer, 7)
    plain.compile(**paper_recipe(plain, learning_rate=1e-3))
    labels_alone = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=64, max_shapes=1)
    without = plain.fit(labels_alone, epochs=2, verbose=0).history["loss"]
    assert without != pytest.approx(losses[kformer.Transformer], rel=1e-3)
    other = small_model(tokenizer, 7)
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="needs kformer.training.MaskedCrossentropy"):
        other.fit(dataset, verbose=0)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_a_run_learns_from_teachers_and_goes_on(prepared, tmp_path):
    """A resumed run has the losses of one that was not stopped, and needs its teachers no more."""
    folder, tokenizer, _ = prepared
    for seed in (1, 2):
        kformer.saving.save_run(
            tmp_path / f"teacher-{seed}", small_model(tokenizer, seed), tokenizer
        )
    given = {
        "train_source": str(folder / "train.en"),
        "train_target": str(folder / "train.de"),
        "show_progress": False,
    }
    given |= {
        "teachers": [tmp_path / "teacher-1", tmp_path / "teacher-2"],
        "batch_tokens": 128,
        "cooldown": 0.0,
        "checkpoint_every": 3,
    }
    given["max_shapes"] = 1  # Each costs a compilation on JAX.
    reported = []
    whole = train_run(tmp_path / "whole", **given, steps=8, report=reported.append)
    assert any("asking 2 teachers" in line for line in reported) and any(
        "targets: 0.8 of each" in line for line in reported
    )
    train_run(tmp_path / "parts", **given, steps=5, report=reported.append)
    for seed in (1, 2):
        shutil.rmtree(tmp_path / f"teacher-{seed}")
    parts = train_run(tmp_path / "parts", resume=True, steps=8, report=reported.append)
    histories = [(run.path / "history.csv").read_text().splitlines() for run in (whole, parts)]
    losses = [[line.split(",")[2] for line in history] for history in histories]
    assert len(losses[0]) == 9 and losses[0] == losses[1]
    assert kformer.saving.read_config(whole.path)["training"]["teacher_weight"] == 0.8


@pytest.mark.any_backend(quickest="torch")
def test_a_teacher_with_another_tokenizer_is_refused(prepared, tmp_path):
    folder, tokenizer, _ = prepared
    other = kformer.Tokenizer.train(
        [str(folder / "train.de")], vocabulary_size=23, byte_fallback=False, model_type="unigram"
    )
    kformer.saving.save_run(tmp_path / "teacher", small_model(tokenizer, 1), tokenizer)
    other.save(tmp_path / "tokenizer")
    given = {
        "train_source": str(folder / "train.en"),
        "train_target": str(folder / "train.de"),
        "teachers": [str(tmp_path / "teacher")],
    }
    with pytest.raises(ValueError, match="has another tokenizer than the model"):
        train_run(
            tmp_path / "run",
            **given,
            tokenizer=str(tmp_path / "tokenizer"),
            steps=1,
            report=print,
            show_progress=False,
        )
    assert not (tmp_path / "run").exists()
    for options, message in (
        (
            {"teachers": None, "teacher_weight": 0.5},
            "teacher_weight is about what teachers predict",
        ),
        ({"subword_sampling": 0.1}, "leave out subword_sampling"),
        ({"vocabulary_size": 100}, "leave the vocabulary options out"),
        ({"teacher_weight": 2}, "from 0 to 1"),
        ({"teachers": "run"}, "a list of run directories"),
    ):
        with pytest.raises(ValueError, match=message):
            train_run(tmp_path / "run", **{**given, **options}, steps=1, show_progress=False)
