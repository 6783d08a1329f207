"""Parallel text as a Keras dataset."""

import operator
import pathlib
import shutil
import tempfile
import weakref

import keras
import numpy as np

from kformer.data.batching import BatchPlan
from kformer.data.corpus import PreparedCorpus
from kformer.data.noise import Noise, check_noise
from kformer.data.packing import PackedPlan, segment_numbers
from kformer.data.preparation import prepare, prepare_cached
from kformer.utils.checks import check_whole

# Batches whose tokens are remembered: more than any reader is ahead of the training.
_COUNTS_KEPT = 256


class ParallelDataset(keras.utils.PyDataset):
    """Pairs of sentences as batches for `fit`: length-bucketed, of a bounded number of tokens, in
    few shapes.

    The text is tokenized once, into ids on disk (see `kformer.data.prepare`, also for which pairs
    are left out and for the errors in bad files). Pairs of like length share a batch; the few
    shapes are chosen from the corpus before training, so a compiler meets at most `max_shapes` of
    them. Every pair is seen exactly once per epoch.

    A batch is a pure function of the seed, the global step and the host: `batch_at(step)`. Training
    that stopped at a step goes on with `from_step(step)` as if it had never stopped, and several
    hosts share an epoch without talking.

    The right shift of teacher forcing is done here and nowhere else: for target tokens `a b </s>`,
    `target_ids` is `<s> a b` and the label is `a b </s>`.

    Pass `shuffle=False` to the `fit` of a model of your own: Keras otherwise shuffles the order of
    the batches once more, outside the seed (`kformer.Transformer.fit` sees to that).

    Args:
        source: path of a UTF-8 text file with one sentence per line, or a list of strings.
        target: the same for the other side, with as many lines.
        tokenizer: a `kformer.Tokenizer`.
        batch_tokens: int. Most padded tokens on the longer side of a batch: a bucket of shape (S,
            T) takes `batch_tokens // max(S, T)` pairs at most, and always at least one.
        seed: int, not negative.
        shuffle: bool. False keeps the corpus's order inside each bucket, the same in every epoch.
        max_length: int. Pairs with more tokens on a side (special tokens counted) are left out, and
            reported.
        max_shapes: int. Most distinct batch shapes.
        packed: bool. True puts several pairs behind each other in each row of the one shape that
            all batches have, about as long as four average pairs and as the longest. Hardly
            anything is padding, and a compiler compiles once. `kformer.Transformer` keeps the pairs
            of a row apart by the segments that the batch tells.
        host, num_hosts: this process's number and the number of processes that train together. At
            each step all hosts have batches of the same shape, and no pair in common.
        cache_dir: folder in which prepared corpora are kept and found again. Without it the ids
            stand in a temporary folder (TMPDIR says where) until this dataset is garbage.
        num_threads, progress, report: see `kformer.data.prepare`.

    Items:
        `({"source_ids": int32 [B, S], "target_ids": int32 [B, T]}, labels)`, labels int32 [B, T],
        all padded with `pad_id`. Where a bucket's pairs do not divide evenly, a batch ends with a
        row of padding only.

        Packed, the inputs also have `source_segments` int32 [B, S] and `target_segments` int32 [B,
        T]: which pair of its row a token belongs to, counted from 1; 0 is padding. Source k and
        target k of a row are a pair, and each target is shifted by itself, with a start token of
        its own.

    Attributes:
        steps_per_epoch: int, batches in an epoch on this host.
        shapes: list of (B, S, T), at most `max_shapes`.
        num_pairs, num_too_long, num_empty: pairs in use, and pairs left out.
        num_tokens: real target tokens in an epoch over all hosts, end tokens included.
        longest: int, tokens of the longest side of a pair.
        fill, source_fill: real tokens over padded tokens, of the target and the source side.
        epoch: int, the epoch that `dataset[i]` reads; `fit` advances it at the end of each.

    Example:

    >>> train = ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=4096, seed=0)
    >>> model.fit(train, epochs=20, shuffle=False)
    >>> # Go on at step 1234, wherever in an epoch that is:
    >>> model.fit(train.from_step(1234), steps_per_epoch=train.steps_per_epoch, epochs=18)

    References:
        - Vaswani et al. 2017, "Attention is all you need", section 5.1: batches of pairs of about
          equal length, by number of tokens.
    """

    # Read by `Transformer.fit`: Keras is not to shuffle the batches once more.
    is_ordered = True
    _soft_targets = None

    def __init__(
        self,
        source,
        target,
        tokenizer,
        *,
        batch_tokens=4096,
        seed=0,
        shuffle=True,
        max_length=256,
        max_shapes=8,
        packed=False,
        subword_sampling=None,
        word_dropout=0.0,
        host=0,
        num_hosts=1,
        cache_dir=None,
        num_threads=None,
        progress=None,
        report=None,
    ):
        _check_options(batch_tokens, seed, max_shapes, host, num_hosts)
        check_noise(tokenizer, subword_sampling, word_dropout)  # Before the long work.
        options = dict(
            max_length=max_length, num_threads=num_threads, progress=progress, report=report
        )
        if cache_dir is not None:
            corpus = prepare_cached(source, target, tokenizer, cache_dir, **options)
        else:
            folder = tempfile.mkdtemp(prefix="kformer-data-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            corpus = prepare(source, target, tokenizer, pathlib.Path(folder) / "pairs", **options)
        noise = Noise(corpus, tokenizer, subword_sampling, word_dropout, seed)
        self._build(corpus, noise, batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts)

    @classmethod
    def from_prepared(
        cls,
        corpus,
        *,
        batch_tokens=4096,
        seed=0,
        shuffle=True,
        max_shapes=8,
        packed=False,
        tokenizer=None,
        subword_sampling=None,
        word_dropout=0.0,
        soft_targets=None,
        host=0,
        num_hosts=1,
    ):
        """A dataset over a corpus that `kformer.data.prepare` wrote.

        Args:
            corpus: a `PreparedCorpus`, or the path of its folder.
            tokenizer: the tokenizer that it was prepared with, which only subword sampling and word
                dropout need.
            soft_targets: the `SoftTargets` of the corpus, what teachers expect at each of its
                target tokens; the inputs of a batch then also have `soft_target_ids`, int32 `[B, T,
                K]`, and `soft_targets`, float32 `[B, T, K]`, from which a `kformer.Transformer`
                learns by `kformer.training.MaskedCrossentropy`. They belong to the words as they
                were cut once, so they do not go with subword sampling.
            batch_tokens, seed, shuffle, max_shapes, packed, subword_sampling, word_dropout, host,
                num_hosts: as for the class.

        Raises:
            ValueError: the soft targets are of another corpus, or there is subword sampling, too;
                the corpus was prepared with another tokenizer; or as for the class.
        """
        _check_options(batch_tokens, seed, max_shapes, host, num_hosts)
        dataset = cls.__new__(cls)
        corpus = corpus if isinstance(corpus, PreparedCorpus) else PreparedCorpus.load(corpus)
        if soft_targets is not None and subword_sampling:
            raise ValueError(
                "Soft targets belong to words as they were cut once: leave out subword_sampling, or soft_targets."
            )
        if (
            soft_targets is not None
            and soft_targets.corpus.folder.resolve() != corpus.folder.resolve()
        ):
            raise ValueError(
                f"The soft targets are those of '{soft_targets.corpus.folder}', not of '{corpus.folder}'."
            )
        noise = Noise(corpus, tokenizer, subword_sampling, word_dropout, seed)
        dataset._soft_targets = soft_targets
        dataset._build(
            corpus, noise, batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts
        )
        return dataset

    def _build(
        self, corpus, noise, batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts
    ):
        super().__init__()
        self.corpus = corpus
        self._noise = noise
        self.batch_tokens, self.seed, self.shuffle = int(batch_tokens), int(seed), bool(shuffle)
        self.host, self.num_hosts = int(host), int(num_hosts)
        self.packed = bool(packed)
        lengths = noise.planned_lengths("source"), noise.planned_lengths("target")
        self.longest = int(max(side.max() for side in lengths))
        order = {"num_hosts": self.num_hosts, "seed": self.seed, "shuffle": self.shuffle}
        if self.packed:
            self._plan = PackedPlan(*lengths, self.batch_tokens, **order)
        else:
            self._plan = BatchPlan(*lengths, self.batch_tokens, max_shapes=int(max_shapes), **order)
        self.buckets = self._plan.buckets
        self.shapes = [bucket.shape for bucket in self.buckets]
        self.steps_per_epoch = self._plan.steps_per_epoch
        self.pad_id, self.start_id, self.end_id = corpus.pad_id, corpus.start_id, corpus.end_id
        self.num_pairs, self.num_too_long, self.num_empty = (
            corpus.num_pairs,
            corpus.num_too_long,
            corpus.num_empty,
        )
        self.num_tokens = corpus.num_target_tokens
        self.fill = (
            noise.growth("target")
            * self.num_tokens
            / sum(b.num_batches * b.rows * b.target_length for b in self.buckets)
        )
        places = sum(b.num_batches * b.rows * b.source_length for b in self.buckets)
        self.source_fill = noise.growth("source") * corpus.num_source_tokens / places
        self._counts = {}
        self._epoch = 0
        self._fit_starts = False
        self._items_read = None

    @property
    def epoch(self):
        return self._epoch

    def set_epoch(self, epoch):
        """Makes `dataset[i]` read epoch `epoch` (counted from 0), for training that goes on at an
        epoch's start.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"The epoch must not be negative, but it is {epoch}.")
        self._epoch = epoch
        self._items_read = None

    def batch_at(self, step):
        """The batch of global step `step` (counted from 0 over all epochs) on this host, as an item
        of the dataset.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"The step must not be negative, but it is {step}.")
        inputs, labels = self._packed_batch(step) if self.packed else self._bucket_batch(step)
        self._counts[step] = int(np.count_nonzero(labels != self.pad_id))
        while len(self._counts) > _COUNTS_KEPT:
            self._counts.pop(next(iter(self._counts)), None)
        return self._noise.drop_words(inputs, step * self.num_hosts + self.host), labels

    def pairs_at(self, step):
        """The pairs of the corpus that stand in the batch of global step `step` on this host, in
        its order: int array.
        """
        return self._plan.batch(operator.index(step), self.host)[1]

    def count_tokens(self, step):
        """Real target tokens in the batch of global step `step`; at no cost soon after the batch
        was read.
        """
        if step not in self._counts:
            self.batch_at(step)
        return self._counts[step]

    def _bucket_batch(self, step):
        bucket, pairs = self._plan.batch(step, self.host)
        epoch = step // self.steps_per_epoch
        source_ids, _ = self._noise.gather(
            "source", pairs, (bucket.rows, bucket.source_length), epoch
        )
        labels, lengths = self._noise.gather(
            "target", pairs, (bucket.rows, bucket.target_length), epoch
        )
        # Shifted right by one: the last token of each row is predicted, never read.
        target_ids = np.full_like(labels, self.pad_id)
        target_ids[: len(pairs), 0] = self.start_id
        read = np.arange(1, bucket.target_length) < lengths[:, None]
        target_ids[: len(pairs), 1:] = np.where(read, labels[: len(pairs), :-1], self.pad_id)
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        if self._soft_targets is not None:
            inputs |= self._soft_targets.gather(pairs, labels.shape)
        return inputs, labels

    def _packed_batch(self, step):
        bucket, pairs, counts = self._plan.batch(step, self.host)
        shapes = {
            "source": (bucket.rows, bucket.source_length),
            "target": (bucket.rows, bucket.target_length),
        }
        ids, segments = {}, {}
        for side, shape in shapes.items():
            ids[side], lengths = self._noise.gather(
                side, pairs, shape, step // self.steps_per_epoch, counts
            )
            segments[side] = segment_numbers(lengths, counts, shape)
        labels, numbers = ids["target"], segments["target"]
        # Shifted right by one in each segment.
        target_ids = np.full_like(labels, self.pad_id)
        target_ids[:, 1:] = labels[:, :-1]
        target_ids[np.diff(numbers, axis=1, prepend=0) > 0] = self.start_id
        target_ids[numbers == 0] = self.pad_id
        inputs = {"source_ids": ids["source"], "target_ids": target_ids}
        inputs |= {"source_segments": segments["source"], "target_segments": numbers}
        if self._soft_targets is not None:
            inputs |= self._soft_targets.gather(pairs, labels.shape, counts)
        return inputs, labels

    def from_step(self, step):
        """An endless dataset whose item i is `batch_at(step + i)`, for training that goes on at any
        step.

        Give `fit` its `steps_per_epoch`. Keras does not shuffle endless datasets.
        """
        return _FromStep(self, step)

    def summary(self):
        """One line on what there is: pairs, batches, shapes, tokens and how full the batches are."""
        shapes = " ".join(f"{rows}x{source}x{target}" for rows, source, target in self.shapes)
        kinds = "packed into one shape" if self.packed else f"{len(self.shapes)} shapes"
        left_out = f"{self.num_too_long:,} too long and {self.num_empty:,} empty left out"
        more = 100 * (self._noise.growth("target") - 1)
        drawn = (
            f" (and {more:.0f} % more, as words are cut anew in every epoch)"
            if self._noise.samples
            else ""
        )
        return (
            f"{self.num_pairs:,} pairs ({left_out}), {self.steps_per_epoch:,} steps per epoch, {self.num_tokens:,} "
            f"target tokens{drawn}, {100 * self.fill:.1f} % full, {kinds} BxSxT: {shapes}"
        )

    def __len__(self):
        return self.steps_per_epoch

    def __getitem__(self, index):
        index = operator.index(index)
        if not 0 <= index < self.steps_per_epoch:
            raise IndexError(f"Item {index} is not in an epoch of {self.steps_per_epoch} steps.")
        if self._items_read is not None:
            self._items_read += 1
        return self.batch_at(self._epoch * self.steps_per_epoch + index)

    # Keras (3.15) calls `on_epoch_end` once before the first epoch of every `fit` and `evaluate`,
    # after a trial `on_epoch_begin` or none; and also in mid-epoch when `steps_per_epoch` is less
    # than the dataset has. Counting these calls would skip epochs and cut them short. So: whoever
    # builds Keras's adapter reads `workers` first; the next end of an epoch is the trial's; and an
    # epoch that Keras reads ends when all of its items were read.

    @property
    def workers(self):
        self._fit_starts = True
        self._items_read = None
        return 1

    def on_epoch_begin(self):
        if not self._fit_starts and self._items_read is None:
            self._items_read = 0

    def on_epoch_end(self):
        if self._fit_starts:
            self._fit_starts = False
        elif self._items_read is None or self._items_read >= self.steps_per_epoch:
            self._epoch += 1
            self._items_read = None


class _FromStep(keras.utils.PyDataset):
    """`ParallelDataset.batch_at` from a step on, without end.

    TensorFlow's `fit` reads items 0 and 1 before it starts, only to learn which dimensions vary,
    and refuses any later batch that varies in another. In mid-epoch the next two batches may well
    be of one shape. So between the building of Keras's adapter (which reads `workers`) and the
    first `on_epoch_begin`, items 0 and 1 are padding in the smallest and the largest shape of the
    ladder, which differ in every dimension. Nothing is trained on those. Packed batches are of one
    shape."""

    def __init__(self, dataset, step):
        super().__init__()
        self.dataset = dataset
        self.step = operator.index(step)
        if self.step < 0:
            raise ValueError(f"The step must not be negative, but it is {self.step}.")
        self._fit_starts = False

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        if self._fit_starts and index in (0, 1) and not self.dataset.packed:
            rows, source_length, target_length = self.dataset.shapes[-index]
            source_ids = np.full((rows, source_length), self.dataset.pad_id, np.int32)
            labels = np.full((rows, target_length), self.dataset.pad_id, np.int32)
            soft_targets = self.dataset._soft_targets
            more = {} if soft_targets is None else soft_targets.empty(labels.shape)
            return {"source_ids": source_ids, "target_ids": labels, **more}, labels
        return self.dataset.batch_at(self.step + index)

    @property
    def workers(self):
        self._fit_starts = True
        return 1

    def on_epoch_begin(self):
        self._fit_starts = False

    def on_epoch_end(self):
        self._fit_starts = False


def _check_options(batch_tokens, seed, max_shapes, host, num_hosts):
    for name, value, least in (
        ("batch_tokens", batch_tokens, 1),
        ("seed", seed, 0),
        ("max_shapes", max_shapes, 1),
        ("num_hosts", num_hosts, 1),
        ("host", host, 0),
    ):
        check_whole(name, value, least)
    if host >= num_hosts:
        raise ValueError(
            f"host must be below num_hosts={num_hosts} (hosts count from 0), but it is {host}."
        )
