"""Parallel text as a Keras dataset."""

import operator
import pathlib
import shutil
import tempfile
import weakref

import numpy as np

from kformer.data.batching import BatchPlan, choose_batch_tokens, default_max_shapes, fill_rows
from kformer.data.corpus import SIDES, PreparedCorpus, check_fits
from kformer.data.endless_batches import EndlessBatches, FirstEpoch, OneReader
from kformer.data.noise import Noise, NoisyReader
from kformer.data.packing import PackedPlan, segment_numbers
from kformer.data.preparation import prepare, prepare_cached
from kformer.utils.checks import check_whole
from kformer.utils.rows import round_up
from kformer_options.wording import counted

# Batches whose token counts are kept: more than any reader is ahead of the training.
_COUNTS_KEPT = 256


class ParallelDataset(OneReader):
    """Pairs of sentences as batches for `fit`, bucketed by length, in few shapes.

    The text is tokenized once into ids on disk. `kformer.data.prepare` does it; see there for the
    pairs that are left out and for errors in the files. Pairs of similar length share a batch. The
    shapes are chosen from the corpus before training, so that a compiler meets at most `max_shapes`
    of them. Every pair occurs exactly once per epoch.

    A batch is a pure function of the seed, the global step and the host: `batch_at(step)`. A
    training that stopped at a step continues with `from_step(step)` as if it had never stopped, and
    several hosts share an epoch without communication.

    The right shift of teacher forcing happens here only: for the target tokens `a b </s>`,
    `target_ids` is `<s> a b` and the labels are `a b </s>`.

    `fit` of kformer's models reads the epochs in this order, and `evaluate`, `predict` and
    `validation_data` always read epoch 0. They do so through views, `for_fit()` and
    `first_epoch()`. `kformer.training.fit_from` does the same with any Keras model. Keras's own
    `fit`, given the dataset itself, reads whole epochs, but shuffles their batches (unless
    `shuffle=False`) and skips numbers of epochs.

    Args:
        source: path of a UTF-8 text file with one sentence per line, or list of str.
        target: the same for the other side, with as many lines.
        tokenizer: `kformer.Tokenizer`.
        batch_tokens: int or `None`, default `None`. The most tokens on the longer side of a batch,
            padding included: a bucket of shape (S, T) takes at most `batch_tokens // max(S, T)`
            pairs, and at least one. `None` means 4096, or less (at least 512) if an epoch had fewer
            than 200 batches.
        seed: int of at least 0, default 0.
        shuffle: bool, default True. False keeps the corpus's order within each bucket, in every
            epoch.
        max_length: int, default 256. Pairs with more tokens on a side (special tokens included) are
            left out and reported.
        max_shapes: int, default `None`. The most distinct batch shapes; `None` for 8, and for 3 on
            JAX, which compiles each. A number gives the same batches on every backend.
        packed: bool, default False. Whether rows hold several pairs, one after the other. All
            batches then have one shape, whose rows are as long as the longest pair and as about
            four average ones. Hardly anything is padding, and a compiler compiles once.
            `kformer.Transformer` keeps the pairs of a row apart by the segments in the batch.
        subword_sampling: float or `None`, default `None`. The strength of a
            `kformer.text.SubwordSampler` that resamples the segmentation of every sentence in every
            epoch; `None` or 0 for none.
        word_dropout: float in `[0, 1)`, default 0.0. The probability that an input token is
            replaced by the unknown token.
        host: int, default 0. The number of this process among those that train together.
        num_hosts: int, default 1. How many there are. At each step all hosts have batches of the
            same shape and no pair in common.
        num_devices: int, default 1. The devices that share each batch of this process. Rows of
            padding fill a batch up to a multiple of it, for
            `kformer.training.distribution`; they change no loss. Pairs and order are those of one
            device.
        cache_dir: path or `None`, default `None`. A folder in which prepared corpora are kept and
            found again. `None` keeps the ids in a temporary folder (see TMPDIR) as long as the
            dataset exists.
        num_threads: int or `None`, default `None`. See `kformer.data.prepare`.
        progress: callable or `None`, default `None`. See `kformer.data.prepare`.
        report: callable or `None`, default `None`. See `kformer.data.prepare`.

    Items:
        `({"source_ids": int32 [B, S], "target_ids": int32 [B, T]}, labels)` with labels int32
        [B, T], all padded with `pad_id`. A batch may end with rows of padding, if the pairs of a
        bucket do not divide evenly.

        Packed batches also have the inputs `source_segments` int32 [B, S] and `target_segments`
        int32 [B, T]: the number, from 1, of the pair in its row that a token belongs to, and 0 for
        padding. Source k and target k of a row are a pair. Each target is shifted by itself and has
        its own start token.

    Attributes:
        steps_per_epoch: int. The batches of an epoch on this host.
        shapes: list of (B, S, T), at most `max_shapes`.
        num_pairs, num_too_long, num_empty: int. The pairs in use, and those left out.
        num_tokens: int. The real target tokens of an epoch over all hosts, end tokens included.
        longest: int. The tokens of the longest side of a pair.
        fill, source_fill: float. Real tokens over all positions, on the target and the source side.
        epoch: int. The epoch that `dataset[i]` reads. `fit` advances it at the end of each epoch.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    inputs, labels = train.batch_at(0)
    # Continue a training at step 7, wherever in an epoch that is:
    rest = train.from_step(7)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 5.1: batches of pairs of about
        equal length, by number of tokens.
    """

    _soft_targets = _alignments = None

    def __init__(
        self,
        source,
        target,
        tokenizer,
        *,
        batch_tokens=None,
        seed=0,
        shuffle=True,
        max_length=256,
        max_shapes=None,
        packed=False,
        subword_sampling=None,
        word_dropout=0.0,
        host=0,
        num_hosts=1,
        num_devices=1,
        cache_dir=None,
        num_threads=None,
        progress=None,
        report=None,
    ):
        # Before the long work.
        hosts = host, num_hosts, num_devices
        self._set_order(batch_tokens, seed, shuffle, max_shapes, packed, *hosts)
        noise = Noise(tokenizer, subword_sampling, word_dropout, seed)
        options = {"max_length": max_length, "num_threads": num_threads}
        options |= {"progress": progress, "report": report}
        if cache_dir is not None:
            corpus = prepare_cached(source, target, tokenizer, cache_dir, **options)
        else:
            folder = tempfile.mkdtemp(prefix="kformer-data-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            corpus = prepare(source, target, tokenizer, pathlib.Path(folder) / "pairs", **options)
        self._build(NoisyReader(corpus, noise))

    @classmethod
    def from_prepared(
        cls,
        corpus,
        *,
        batch_tokens=None,
        seed=0,
        shuffle=True,
        max_shapes=None,
        packed=False,
        tokenizer=None,
        subword_sampling=None,
        word_dropout=0.0,
        soft_targets=None,
        alignments=None,
        host=0,
        num_hosts=1,
        num_devices=1,
    ):
        """A dataset over a corpus that `kformer.data.prepare` wrote.

        Args:
            corpus: `PreparedCorpus`, or the path of its folder.
            tokenizer: `kformer.Tokenizer` or `None`, default `None`. The tokenizer that the corpus
                was prepared with. Only subword sampling and word dropout need it.
            soft_targets: `SoftTargets` or `None`, default `None`. What teachers predict at each
                target token of the corpus. The inputs of a batch then also have `soft_target_ids`,
                int32 `[B, T, K]`, and `soft_targets`, float32 `[B, T, K]`, from which a
                `kformer.Transformer` learns with `kformer.training.MaskedCrossentropy`. They belong
                to one segmentation of the text, so they exclude subword sampling.
            alignments: `TokenAlignments` or `None`, default `None`. The inputs of a batch then also
                have `alignment`, float32 `[B, T, S]`, to which a head of a `kformer.Transformer`
                learns to attend. They exclude subword sampling, too.
            batch_tokens, seed, shuffle, max_shapes, packed, subword_sampling, word_dropout, host,
                num_hosts, num_devices: as for the class.

        Returns:
            `ParallelDataset`.

        Raises:
            ValueError: soft targets or alignments belong to another corpus or come with subword
                sampling; the corpus was prepared with another tokenizer; or as for the class.

        Example:
        ```python
        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"], vocabulary_size=400)
        corpus = kformer.data.prepare("train.en", "train.de", tokenizer, "prepared")
        train = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=512)
        ```
        """
        dataset = cls.__new__(cls)
        hosts = host, num_hosts, num_devices
        dataset._set_order(batch_tokens, seed, shuffle, max_shapes, packed, *hosts)
        corpus = corpus if isinstance(corpus, PreparedCorpus) else PreparedCorpus.load(corpus)
        check_fits("Soft targets", soft_targets, corpus, subword_sampling)
        check_fits("Alignments", alignments, corpus, subword_sampling)
        noise = Noise(tokenizer, subword_sampling, word_dropout, seed)
        dataset._soft_targets, dataset._alignments = soft_targets, alignments
        dataset._build(NoisyReader(corpus, noise))
        return dataset

    def _set_order(
        self, batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts, num_devices
    ):
        """Checks and sets the options that decide which pairs are in which batch."""
        super().__init__()
        if batch_tokens is not None:
            batch_tokens = check_whole("batch_tokens", batch_tokens)
        max_shapes = default_max_shapes() if max_shapes is None else max_shapes
        max_shapes = check_whole("max_shapes", max_shapes)
        self.batch_tokens, self.max_shapes = batch_tokens, 1 if packed else max_shapes
        self.seed = check_whole("seed", seed, least=0)
        self.shuffle, self.packed = bool(shuffle), bool(packed)
        self.num_hosts = check_whole("num_hosts", num_hosts)
        self.host = check_whole("host", host, least=0, most=self.num_hosts - 1)
        self.num_devices = check_whole("num_devices", num_devices)

    def _build(self, reader):
        """Plans the batches."""
        self._reader = reader
        self.corpus = corpus = reader.corpus
        self.batch_tokens = self.batch_tokens or choose_batch_tokens(corpus.longer_side)[0]
        self.subword_sampling = reader.noise.subword_sampling
        self.word_dropout = reader.noise.word_dropout
        lengths = [reader.planned_lengths(side) for side in SIDES]
        self.longest = int(max(side.max() for side in lengths))
        options = {"num_hosts": self.num_hosts, "seed": self.seed, "shuffle": self.shuffle}
        if not self.packed:
            options["max_shapes"] = self.max_shapes
        plan = PackedPlan if self.packed else BatchPlan
        self._plan = plan(*lengths, self.batch_tokens, **options)
        self.buckets = self._plan.buckets
        rows = [round_up(bucket.rows, self.num_devices) for bucket in self.buckets]
        self.shapes = [(n, *b.shape[1:]) for n, b in zip(rows, self.buckets, strict=True)]
        self.steps_per_epoch = self._plan.steps_per_epoch
        self.pad_id, self.start_id, self.end_id = corpus.pad_id, corpus.start_id, corpus.end_id
        self.num_pairs, self.num_tokens = corpus.num_pairs, corpus.num_target_tokens
        self.num_too_long, self.num_empty = corpus.num_too_long, corpus.num_empty
        # The positions of an epoch's batches: source and target.
        num_rows = np.array(rows) * [bucket.num_batches for bucket in self.buckets]
        positions = num_rows @ [bucket.shape[1:] for bucket in self.buckets]
        self.fill = float(reader.growth["target"] * self.num_tokens / positions[1])
        self.source_fill = float(reader.growth["source"] * corpus.num_source_tokens / positions[0])
        self._counts = {}
        self.epoch = 0

    def set_epoch(self, epoch):
        """Makes `dataset[i]` read another epoch, to continue a training at the start of an epoch.

        Args:
            epoch: int of at least 0. Epochs count from 0.

        Raises:
            ValueError: the epoch is negative.
        """
        self.epoch = check_whole("epoch", epoch, least=0)

    def batch_at(self, step):
        """The batch of a global step on this host.

        Args:
            step: int of at least 0. Steps count from 0 over all epochs.

        Returns:
            An item of the dataset.

        Raises:
            ValueError: the step is negative.
        """
        step = check_whole("step", step, least=0)
        inputs, labels = self._batch(step)
        self._counts[step] = int(np.count_nonzero(labels != self.pad_id))
        while len(self._counts) > _COUNTS_KEPT:
            self._counts.pop(next(iter(self._counts)), None)
        inputs = self._reader.drop_words(inputs, step * self.num_hosts + self.host)
        return fill_rows(inputs, labels, self.num_devices, self.pad_id)

    def pairs_at(self, step):
        """The indices in the corpus of the pairs of a batch, int array `[n]`, in its order.

        Args:
            step: int of at least 0. The global step.
        """
        pairs = self._plan.batch(step, self.host)[1]
        return self.corpus.in_epoch(pairs, step // self.steps_per_epoch)

    def count_tokens(self, step):
        """The number of real target tokens in a batch; free soon after the batch was read.

        Args:
            step: int of at least 0. The global step.
        """
        if step not in self._counts:
            self.batch_at(step)
        return self._counts[step]

    def _batch(self, step):
        bucket, pairs, *counts = self._plan.batch(step, self.host)
        # The pairs of each row: one, unless they are packed.
        counts = counts[0] if counts else np.ones(len(pairs), np.int64)
        epoch = step // self.steps_per_epoch
        pairs = self.corpus.in_epoch(pairs, epoch)
        ids, segments = {}, {}
        for side, length in zip(SIDES, bucket.shape[1:], strict=True):
            shape = (bucket.rows, length)
            ids[side], lengths = self._reader.gather(side, pairs, shape, epoch, counts)
            segments[side] = segment_numbers(lengths, counts, shape)
        labels, numbers = ids["target"], segments["target"]
        # Shifted right by one in each segment: its last token is predicted and never an input.
        target_ids = np.full_like(labels, self.pad_id)
        target_ids[:, 1:] = labels[:, :-1]
        target_ids[np.diff(numbers, axis=1, prepend=0) > 0] = self.start_id
        target_ids[numbers == 0] = self.pad_id
        inputs = {"source_ids": ids["source"], "target_ids": target_ids}
        if self.packed:
            inputs |= {f"{side}_segments": segments[side] for side in SIDES}
        return self.completed(inputs, labels, pairs, counts)

    def completed(self, inputs, labels, pairs, counts):
        """Returns a batch of pairs, with soft targets and alignments if there are any.

        Args:
            inputs, labels: as in the items of the dataset.
            pairs: int array [n] of pair indices.
            counts: int array. The number of pairs in each row.
        """
        if self._soft_targets is not None:
            inputs |= self._soft_targets.gather(pairs, labels.shape, counts)
        if self._alignments is not None:
            shape = inputs["source_ids"].shape
            inputs |= self._alignments.gather(pairs, shape, labels.shape, counts)
        return inputs, labels

    def from_step(self, step):
        """Returns an endless dataset whose item i is `batch_at(step + i)`, to continue at any step.

        Pass `steps_per_epoch` to `fit`. Keras does not shuffle endless datasets. The `fit` of a
        model that is not kformer's needs `from_step(step).for_fit()`, a new one for each call.

        Args:
            step: int of at least 0. The global step.

        Raises:
            ValueError: the step is negative.
        """
        return EndlessBatches(self, step)

    def for_fit(self):
        """Returns the endless dataset of the batches from `epoch` on, for one call of `fit`."""
        return self.from_step(self.epoch * self.steps_per_epoch).for_fit()

    def first_epoch(self):
        """Returns the dataset of the batches of epoch 0, for an evaluation."""
        return FirstEpoch(self)

    def summary(self):
        """One line about the pairs, batches, shapes and tokens, and how full the batches are."""
        shapes = " ".join(f"{rows}x{source}x{target}" for rows, source, target in self.shapes)
        kinds = "packed into one shape" if self.packed else counted(len(self.shapes), "shape")
        left_out = f"{self.num_too_long:,} too long and {self.num_empty:,} empty left out"
        growth = ""
        if self._reader.samples:
            more = 100 * (self._reader.growth["target"] - 1)
            growth = f" (and {more:.0f} % more, since the segmentation is resampled in every epoch)"
        return (
            f"{counted(self.num_pairs, 'pair')} ({left_out}), "
            f"{counted(self.steps_per_epoch, 'step')} per epoch, "
            f"{counted(self.num_tokens, 'target token')}{growth}, {100 * self.fill:.1f} % full, "
            f"{kinds} BxSxT: {shapes}"
        )

    def __repr__(self):
        return f"<{type(self).__name__}: {self.summary()}>"

    def __len__(self):
        return self.steps_per_epoch

    def __getitem__(self, index):
        index = operator.index(index)
        if not 0 <= index < self.steps_per_epoch:
            steps = counted(self.steps_per_epoch, "step")
            raise IndexError(f"Item {index} is not in an epoch of {steps}.")
        return self.batch_at(self.epoch * self.steps_per_epoch + index)

    def on_epoch_end(self):
        # Keras (3.15) calls it also before the first epoch of every `fit` and `evaluate`.
        self.epoch += 1
