"""The graph of a translator's SavedModel: strings to ids, search, ids to strings."""

import dataclasses

import tensorflow as tf
from keras import ops

from kformer.decoding import RowConstraints, decoder_for
from kformer.decoding import search as run_search
from kformer.decoding.fast.decoder import FastNetwork
from kformer.decoding.fast.eligibility import why_not_fast
from kformer.decoding.fast.ops_stored import NO_INT8_PRODUCTS, XlaOps, has_int8_products, stored_ops
from kformer.decoding.run_search import SearchResult
from kformer.decoding.searcher import check_options
from kformer.export.saved_model.alignment import WordAlignment
from kformer.export.saved_model.constrained import RowSignatures
from kformer.export.saved_model.graph import (
    cut_texts,
    hypothesis_lengths,
    owning_module,
    padded_rows,
    signature,
    with_a_row,
)
from kformer.export.saved_model.lists import GraphLists
from kformer.export.saved_model.names import DEFAULT_SIGNATURE, INPUTS, TARGET_LANGUAGE
from kformer.models import Ensemble
from kformer.text.text_bound import byte_bound
from kformer.utils.backend import static_shapes
from kformer_options.names import named

# Where each length is compiled, sources are padded to a multiple of this number of tokens.
_LENGTHS = 16


class TranslationGraph:
    """The signatures of a translator, as methods that TensorFlow traces.

    Shape letters: B texts, S source tokens, T target tokens, N hypotheses.

    Args:
        model: `kformer.Transformer` or `kformer.models.Ensemble`, under the TensorFlow backend.
        graph_tokenizer: `GraphTokenizer` of `tokenizer`.
        tokenizer: `kformer.Tokenizer`.
        options: `SearchOptions`. `n_best` is for the signature of that name; the others search for
            one hypothesis.
        dtype: str, default `None`. How matrices are stored, as for `export_saved_model`.
        aligned_by: `AlignmentSource`, default `None`. The attention that the signature `alignment`
            reads; it needs one.
        languages: `GraphLanguages`, default `None`. The target languages of which each text may
            choose one; `None` for one direction.
        token_lists: `TokenLists`, default `None`. The target tokens that source tokens may need.

    Raises:
        ValueError: the options do not fit the model, or the model cannot be stored in that dtype.
        RuntimeError: this build of TensorFlow has no int8 products.
    """

    def __init__(
        self,
        model,
        graph_tokenizer,
        tokenizer,
        options,
        dtype=None,
        aligned_by=None,
        languages=None,
        token_lists=None,
    ):
        check_options(model, options)
        models = model.models if isinstance(model, Ensemble) else [model]
        self._why_not_fast = next(filter(None, map(why_not_fast, models)), None)
        is_fast = self._why_not_fast is None
        if not is_fast and dtype not in (None, model.policy_name):
            raise ValueError(
                f"The SavedModel cannot be stored in {dtype}: {self._why_not_fast}, and only a "
                "float32 model of the plain architecture can be converted. Export it without a "
                "dtype."
            )
        if dtype == "int8" and not has_int8_products():
            raise RuntimeError(NO_INT8_PRODUCTS + " export with the dtype float32 or bfloat16.")
        self.model = model
        self.tokenizer = graph_tokenizer
        self.options = options
        self.best_one = dataclasses.replace(options, n_best=1)
        self.max_text_bytes = byte_bound(model.max_length, options.max_text_bytes)
        self.dtype = dtype or model.policy_name
        self.ops = stored_ops(dtype or "float32") if is_fast else None
        self.decoder = decoder_for(model, self.ops)
        self.languages = languages
        self._suffix = list(tokenizer.source_suffix)
        self._num_special = len(tokenizer.source_prefix) + len(tokenizer.source_suffix)
        # Where a text may begin with a language tag, its tag is not translated either.
        self._tags = [] if tokenizer.source_prefix else sorted(set(tokenizer.tag_ids.values()))
        self._lists = None if token_lists is None else GraphLists(token_lists)
        rows = self._search_rows(tf.zeros([1], tf.int32))
        specs = {name: tf.TensorSpec.from_tensor(row, name) for name, row in rows.items()}
        if self._lists is not None:
            specs["rows"] = RowConstraints(listed=tf.TensorSpec([1, None], tf.int32))
        self._search_compiled = tf.function(
            self._search_in_static_shapes,
            input_signature=[
                tf.TensorSpec([1, None], tf.int32),
                tf.TensorSpec([1], tf.int32),
                specs,
            ],
            autograph=False,
            jit_compile=True,
        )
        self._aligned_by, self._own_tokenizer = aligned_by, tokenizer

    def build(self, single=False, names=None):
        """Traces the signatures.

        Args:
            single: bool, default `False`. Whether to make the signature `single`, which XLA
                compiles.
            names: sequence of str, default `None` for all. Which other signatures to make.

        Returns:
            `tf.Module`, which owns the variables that the graph reads, and a dict of name to
            concrete function.

        Raises:
            ValueError: the model cannot have the signature `single`.
        """
        if names is None:
            # In another dtype than the model's each one keeps matrices of its own in memory.
            is_cheap = self.dtype == self.model.policy_name and not isinstance(self.model, Ensemble)
            names = (DEFAULT_SIGNATURE, "n_best", *(("attention",) if is_cheap else ()))
        if self.dtype != "int8":  # Its products exist in graphs alone.
            # This makes the variables with the converted weights: a function that makes some is
            # traced twice, and XLA's graph needs them.
            self.translate(tf.constant([""]), tf.constant([""]), self.best_one)
        functions, language = {}, {TARGET_LANGUAGE: 1} if self.languages else {}
        for name in names:
            owner, ranks = self, {"text": 1}
            if name in INPUTS:
                owner = RowSignatures(self, self._own_tokenizer.vocabulary("target"))
                ranks = INPUTS[name]
            ranks = ranks | language
            inputs = {key: ([None] * rank, "string") for key, rank in ranks.items()}
            functions[name] = signature(getattr(owner, name), inputs)
        if single:
            if why := self._why_not_fast or (self.dtype != "float32" and f"dtype={self.dtype}"):
                raise ValueError(
                    "The signature for single texts is for a float32 model of the plain "
                    f"architecture, not for this one ({why}): export it without {named('single')}."
                )
            inputs = {key: ([1], "string") for key in ("text", *language)}
            functions["single"] = signature(self.single, inputs)
        module = owning_module(self.model, functions.values(), self.tokenizer)
        module.stored_variables = [] if self.ops is None else self.ops.variables
        module.token_lists = [] if self._lists is None else self._lists.variables
        return module, functions

    # ---- signatures ----
    #
    # Of a model of several target languages they have the input `target_language`, string `[B]`.

    def serving_default(self, text, target_language=None):
        """The best translation of each text.

        Args:
            text: string tensor `[B]`.

        Returns:
            Dict: `translation` string `[B]`, `score` float32 `[B]`, `truncated` boolean `[B]`.
        """
        return self.best(self.translate(text, target_language, self.best_one))

    def n_best(self, text, target_language=None):
        """Several translations of each text, best first.

        Args:
            text: string tensor `[B]`.

        Returns:
            Dict: as of `serving_default`, and `translations` string `[B, N]`, `scores` float32
            `[B, N]`.
        """
        result = self.translate(text, target_language, self.options)
        return {**self.best(result), "translations": result["texts"], "scores": result["scores"]}

    def attention(self, text, target_language=None):
        """The best translation of each text with the cross-attention behind it.

        Args:
            text: string tensor `[B]`.

        Returns:
            Dict: `translation` string `[B]`, `source_tokens` string `[B, S]`, `target_tokens`
            string `[B, T]` and `attention` float32 `[B, layers, heads, T, S]`.
        """
        result = self.translate(text, target_language, self.best_one)
        source_ids, ids = result["source_ids"], result["ids"][:, 0]
        is_padding = tf.range(tf.shape(ids)[1]) >= self._lengths(ids)[:, None]
        return {
            "translation": result["texts"][:, 0],
            "source_tokens": self._tokens(source_ids, "source", source_ids == self.model.pad_id),
            "target_tokens": self._tokens(ids, "target", is_padding),
            "attention": self.source_attention(source_ids, ids),
        }

    def source_attention(self, source_ids, ids):
        """The cross-attention behind translations `[B, T]` of sources `[B, S]`: float32 `[B,
        layers, heads, T, S]`.
        """
        # Row t of the weights is where the model looked when it predicted token t: its inputs are
        # the tokens before.
        starts = tf.fill([tf.shape(ids)[0], 1], self.model.start_id)
        target_ids = tf.concat([starts, ids[:, :-1]], axis=1)
        if self.dtype == self.model.policy_name:
            inspected = self.model.inspect({"source_ids": source_ids, "target_ids": target_ids})
            weights = ops.stack(inspected["cross_attention_scores"], axis=1)
        else:
            network = FastNetwork(self.model, 1, self.ops, self.options.shortlist or None)
            weights = network.source_attention(source_ids, target_ids)
        return tf.cast(weights, tf.float32)

    def alignment(self, text, target_language=None):
        """The best translation of each text with the source word of each of its words.

        Args:
            text: string tensor `[B]`.

        Returns:
            Dict: as `WordAlignment.of_translations`.
        """
        result = self.translate(text, target_language, self.best_one)
        words = WordAlignment(self._own_tokenizer, self._aligned_by)
        ids = result["source_ids"], result["ids"][:, 0]
        more = self._lengths(ids[1]), self.source_attention(*ids)
        return {**self.best(result), **words.of_translations(*ids, *more)}

    def single(self, text, target_language=None):
        """The best translation of one text, by a search that XLA compiles.

        Args:
            text: string tensor `[1]`.

        Returns:
            Dict: as of `serving_default`.
        """
        result = self.translate(text, target_language, self.best_one, self._search_single)
        return self.best(result)

    # ---- their parts ----

    def translate(self, text, target_language, options, search=None):
        """Everything that a signature may return, for texts `[B]` and codes `[B]`."""
        batch = tf.shape(text)[0]
        language = self.languages and self.languages.indices(target_language, text)
        # Before the text is tokenized: that takes time and memory in proportion to its length.
        text, was_cut = cut_texts(with_a_row(text), self.max_text_bytes)
        source_ids, lengths, truncated, is_empty = self._source_rows(text, language)
        # An empty text gets no steps: the others must not wait for what will be thrown away.
        limits = tf.where(is_empty, 0, self._limits(lengths, language))
        rows = self._search_rows(language)
        result = (search or self.search)(source_ids, limits, options, **rows)
        texts = tf.where(is_empty[:, None], "", self.tokenizer.detokenize(result.ids))
        scores = tf.where(is_empty[:, None], 0.0, result.scores)
        return {
            "source_ids": source_ids[:batch],
            "ids": result.ids[:batch],
            "texts": texts[:batch],
            "scores": scores[:batch],
            "truncated": (truncated | was_cut)[:batch],
        }

    def _source_rows(self, text, language):
        """Padded ids `[B, S]`, and of each row `[B]`: its number of tokens, whether it was
        truncated, whether it has nothing to translate.
        """
        prefixes = None if language is None else self.languages.source_prefixes(language)
        rows = self.tokenizer.tokenize(text, prefixes=prefixes)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        limit = self.model.max_length
        ids, truncated = padded_rows(rows, limit, self.model.pad_id, self._suffix)
        least = tf.fill(tf.shape(lengths), self._num_special)
        if prefixes is not None:
            least = len(self._suffix) + tf.reduce_sum(tf.cast(prefixes >= 0, tf.int32), axis=1)
        if self._tags:
            first = rows[:, :1].to_tensor(default_value=-1, shape=[None, 1])
            has_tag = tf.reduce_any(first == tf.constant([self._tags], tf.int32), axis=1)
            if prefixes is not None:
                has_tag &= tf.reduce_all(prefixes < 0, axis=1)
            least += tf.cast(has_tag, tf.int32)
        return ids, tf.minimum(lengths, limit), truncated, lengths <= least

    def _limits(self, lengths, language=None):
        """`SearchOptions.limits` for int32 lengths of any shape, in the same 64 bits.

        Without the languages of the rows no language has a higher one.
        """
        options = self.options
        ratio, offset = options.length_ratio, options.length_offset
        if self.languages is not None:
            ratio = self.languages.values("length_ratio", tf.float64, language)
            offset = self.languages.values("length_offset", tf.int64, language)
        largest = options.max_length
        ratio = tf.minimum(ratio, largest) if tf.is_tensor(ratio) else min(ratio, largest)
        relative = tf.cast(tf.cast(lengths, tf.float64) * ratio, tf.int64) + offset
        limits = tf.clip_by_value(relative, options.least_limit, options.max_length)
        return tf.cast(limits, tf.int32)

    def _search_rows(self, language):
        """What the search takes for rows of some languages `[B]`, as a dict; empty where all
        languages are searched alike.
        """
        if self.languages is None:
            return {}
        rows, penalties = {}, self.languages.values("length_penalty", tf.float32, language)
        if tf.is_tensor(penalties):
            rows["length_penalties"] = penalties
        if self.languages.forces_tokens:
            rows["prefix"] = self.languages.prefixes(language)
        return rows

    def search(self, source_ids, limits, options, **rows):
        """`SearchResult` for padded ids `[B, S]` and limits `[B]`; `rows` as of the search."""
        rows = self._with_lists(rows, source_ids)
        numbers, steps = tf.range(tf.shape(limits)[0]), tf.reduce_max(limits) + 1
        arguments = self.decoder, source_ids, limits, numbers
        return run_search(*arguments, options=options, steps=steps, **rows)[0]

    def _search_single(self, source_ids, limits, options, **rows):
        """As `search` for one row. XLA compiles once for each length, so that is rounded up."""
        length = tf.shape(source_ids)[1]
        rounded = tf.minimum(-(-length // _LENGTHS) * _LENGTHS, self.model.max_length)
        padding = [[0, 0], [0, tf.maximum(length, rounded) - length]]
        source_ids = tf.pad(source_ids, padding, constant_values=self.model.pad_id)
        rows = self._with_lists(rows, source_ids, is_static=True)
        return SearchResult(*self._search_compiled(source_ids, limits, rows))

    def _with_lists(self, rows, source_ids, is_static=False):
        """The arguments `rows` of a search, with the lists of sources `[B, S]` if there are any."""
        if self._lists is None:
            return rows
        listed = self._lists(source_ids, is_static)
        return {**rows, "rows": rows.get("rows", RowConstraints())._replace(listed=listed)}

    def _search_in_static_shapes(self, source_ids, limits, rows):
        # The capacity that the longest source of this shape may need depends on the shape alone.
        steps = self._limits(tf.shape(source_ids)[1]) + 1
        arguments = decoder_for(self.model, XlaOps(self.ops)), source_ids, limits, tf.range(1)
        with static_shapes():
            return tuple(run_search(*arguments, options=self.best_one, steps=steps, **rows)[0])

    def best(self, result):
        """What a signature with one translation for each text returns."""
        return {
            "translation": result["texts"][:, 0],
            "score": result["scores"][:, 0],
            "truncated": result["truncated"],
        }

    def _tokens(self, ids, side, is_padding):
        """Ids `[B, S]` as pieces, empty strings for padding."""
        return tf.where(is_padding, "", self.tokenizer.tokens(ids, side=side))

    def _lengths(self, ids):
        """The number of tokens of hypotheses `[B, T]`, int32 `[B]`."""
        return hypothesis_lengths(ids, self.model.end_id, self.model.pad_id)
