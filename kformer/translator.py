"""Text in, text out: tokenizer, search and tokenizer again, on any backend."""

import collections
import dataclasses
import itertools
import re

import numpy as np
from keras import ops

from kformer.decoding import Scorer, Searcher, SearchOptions
from kformer.decoding.batching import batches_by_length
from kformer.decoding.searcher import check_options
from kformer.models import Ensemble
from kformer.saving import load_run, save_run
from kformer.translation import AttentionMap, Hypothesis, Translation
from kformer.utils.checks import check_same_length, check_whole

# How SentencePiece names the token of a byte.
_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


class Translator:
    """A model and its tokenizer.

    Args:
        model: a `kformer.Transformer`.
        tokenizer: the `kformer.Tokenizer` it was trained with.
        options: `kformer.decoding.SearchOptions`, the default of every call; `None` for a beam of
            4.
        config: dict of JSON values that `save` writes along, such as how the model was trained.

    Call arguments:
        texts: a list of strings, or one string.
        batch_size, batch_tokens: as for `translate`.
        **options: fields of `SearchOptions` that this call changes, such as `beam_size=1`.

    Returns:
        A list of translations in the order of the texts; for one string, one string. With `n_best`
        above 1 each translation is a list of strings, best first. An empty text gives an empty
        translation.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    translator(["A man rides a horse."], beam_size=4)
    ```
    """

    def __init__(self, model, tokenizer, options=None, config=None):
        for name, theirs, ours in (
            ("source", tokenizer.vocabulary_size, model.vocabulary_size),
            ("target", tokenizer.target_vocabulary_size, model.target_vocabulary_size),
        ):
            if theirs > ours:
                raise ValueError(
                    f"The tokenizer has {theirs} {name} tokens, but the model only {ours}: "
                    "this is not the tokenizer that the "
                    "model was made for."
                )
        self.model = model
        self.tokenizer = tokenizer
        options = (
            SearchOptions(max_length=max(1, model.max_length - 1)) if options is None else options
        )
        if tokenizer.target_language is not None:
            # The language is not for the search to choose.
            options = dataclasses.replace(options, prefix_ids=tokenizer.target_prefix)
        self.options = options
        self.config = dict(config or {})
        self._searchers = {}
        self._scorer = None

    def __call__(self, texts, *, batch_size=64, batch_tokens=4096, **options):
        single = isinstance(texts, str | bytes)
        results = self.translate(
            [texts] if single else texts,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            **options,
        )
        if options.get("n_best", self.options.n_best) > 1:
            results = [[hypothesis.text for hypothesis in result.hypotheses] for result in results]
        else:
            results = [result.text for result in results]
        return results[0] if single else results

    def translate(self, texts, *, batch_size=64, batch_tokens=4096, progress=None, **options):
        """Like a call, with everything that the search knows.

        Sentences are searched together with others of their length, and those that are done are not
        computed further; none changes another's translation.

        Args:
            texts: list of strings.
            batch_size: the most sentences searched at once.
            batch_tokens: the most source tokens searched at once, padding included; `None` for any
                number. It bounds the memory that long sentences take.
            progress: function that is called with the number of sentences done after each batch.
            **options: fields of `SearchOptions` that this call changes.

        Returns:
            List of `Translation`, in the order of the texts.
        """
        options = self.search_options(options)
        texts = _check_texts(texts)
        searcher = self._searcher(options)
        rows, truncated = self._source_rows(texts)
        nothing = Translation([Hypothesis("", 0.0, 0.0, []) for _ in range(options.n_best)], False)
        results = [nothing] * len(texts)
        lengths = [len(row) for row in rows]
        done = lengths.count(0)
        for batch in batches_by_length(lengths, batch_size, batch_tokens, self.model.max_length):
            found = searcher(
                self._pad([rows[i] for i in batch]), row_numbers=batch, options=options
            )
            for i, *hypotheses in zip(batch, found.ids, found.scores, found.ranks, strict=True):
                results[i] = Translation(self._hypotheses(*hypotheses), truncated[i])
            done += len(batch)
            if progress is not None:
                progress(done)
        return results

    def score(self, sources, targets, *, batch_size=32, progress=None):
        """The log-probability of given translations.

        Args:
            sources, targets: lists of strings of one length.
            batch_size: pairs scored at once.
            progress: function that is called with the number of pairs done after each batch.

        Returns:
            List of floats: the sum of the log-probabilities (natural logarithm) of each target's
            tokens and its end token, given the source; a target language that is put before it
            counts nothing. It equals the `score` of a search that found the same tokens.
        """
        sources, targets = _check_texts(sources), _check_texts(targets)
        check_same_length("the sources", len(sources), "the targets", len(targets))
        if self._scorer is None:
            self._scorer = Scorer(self.model)
        rows, _ = self._source_rows(sources, keep_empty=True)
        labels = self.tokenizer.tokenize(targets, side="target", special_tokens=True)
        # What a search is given counts nothing, and neither does what some models have behind the
        # end token.
        prefix, suffix = self.options.prefix_ids, self.tokenizer.target_suffix
        prefix = len(prefix) if prefix == self.tokenizer.target_prefix else 0
        behind = suffix[::-1].index(self.tokenizer.end_id) if self.tokenizer.end_id in suffix else 0
        for i, row in enumerate(labels):
            if len(row) > self.model.max_length:
                raise ValueError(
                    f"Target {i + 1} has {len(row)} tokens, more than the model's limit of "
                    f"{self.model.max_length}; split it."
                )
        scores = [0.0] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: -len(rows[i]) - len(labels[i]))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            chosen = [labels[i] for i in batch]
            lengths = np.array([len(row) - behind for row in chosen])
            found = self._scorer(
                self._pad([rows[i] for i in batch]), self._pad(chosen), lengths, prefix
            )
            for i, score in zip(batch, found, strict=True):
                scores[i] = float(score)
            if progress is not None:
                progress(start + len(batch))
        return scores

    def shortlist(self, texts, size=None):
        """The tokens that occur in texts: what to give as the option `shortlist`, so that a search
        computes no others.

        It pays where translations need a part of the vocabulary only, such as the target side of
        the training data, or one domain. Tokens that stand for a single byte are always among them,
        so that any text can still be written where a vocabulary has them.

        Args:
            texts: iterable of strings in the target language, such as an open text file.
            size: int, how many tokens to take, the most frequent; `None` for all that occur.

        Returns:
            Tuple of ids, sorted.

        Raises:
            ValueError: there is no token in the texts, or `size` is below 1.

        Example:
        ```python
        translator = kformer.Translator.load("runs/en-de")
        ids = translator.shortlist(open("train.de"))
        translator(["A man rides a horse."], shortlist=ids)
        ```
        """
        if isinstance(texts, str | bytes):
            raise TypeError("Give a list of texts, not one text: put it into a list, [text].")
        if size is not None:
            check_whole("size", size)
        counts, texts = collections.Counter(), iter(texts)
        while chunk := _check_texts(itertools.islice(texts, 10_000)):  # A file may be large.
            for row in self.tokenizer.tokenize(chunk, side="target"):
                counts.update(row)
        if not counts:
            raise ValueError(
                "There is no token in the texts of the shortlist; give text in the target language."
            )
        # Of equally frequent ones the first: the list must not depend on the order of the texts.
        found = sorted(counts, key=lambda token: (-counts[token], token))[:size]
        pieces = self.tokenizer.tokens(range(self.tokenizer.target_vocabulary_size), side="target")
        return tuple(
            sorted(
                {
                    *found,
                    *(token for token, piece in enumerate(pieces) if _BYTE_PIECE.fullmatch(piece)),
                }
            )
        )

    def attention(self, source, target=None, **options):
        """Where a translation looked: the cross-attention of every layer and head, from one forward
        pass.

        Args:
            source: a string.
            target: its translation; `None` for the one that the search finds.
            **options: fields of `SearchOptions` for that search.

        Returns:
            `AttentionMap`.
        """
        self._check_single("looked into")
        if target is None:
            labels = self.translate([source], **options)[0].hypotheses[0].ids
        else:
            labels = self.tokenizer.tokenize(target, side="target", special_tokens=True)
        (row,), _ = self._source_rows(_check_texts([source]), keep_empty=True)
        if not labels:
            labels = [self.tokenizer.end_id]
        inputs = {
            "source_ids": np.array([row]),
            "target_ids": np.array([[self.model.start_id, *labels[:-1]]]),
        }
        scores = self.model.inspect(inputs)["cross_attention_scores"]
        return AttentionMap(
            self.tokenizer.tokens(row, side="source"),
            self.tokenizer.tokens(labels, side="target"),
            np.stack([ops.convert_to_numpy(ops.cast(layer[0], "float32")) for layer in scores]),
        )

    def save(self, path):
        """Writes a run directory: model, tokenizer, configuration and search options. See
        `kformer.saving.save_run`.
        """
        self._check_single("saved")
        return save_run(
            path,
            self.model,
            self.tokenizer,
            {**self.config, "search": dataclasses.asdict(self.options)},
        )

    @classmethod
    def load(cls, path):
        """Reads a run directory that `save` or `kformer train` wrote, on whatever backend that was.

        Args:
            path: the run directory; or a list of such, whose models then translate together as a
                `kformer.models.Ensemble`, with the search options of the first.

        Raises:
            FileNotFoundError, ValueError: as `kformer.saving.load_run`; or the runs of an
                ensemble differ in their tokenizers.
        """
        if isinstance(path, list | tuple) and len(path) > 1:
            translators = [cls.load(each) for each in path]
            for other, name in zip(translators[1:], path[1:], strict=True):
                if not translators[0].tokenizer.writes_like(other.tokenizer):
                    raise ValueError(
                        f"{name} has another tokenizer than {path[0]}, and an ensemble needs "
                        "one: train its runs with one tokenizer "
                        "(kformer train --tokenizer)."
                    )
            first = translators[0]
            return cls(
                Ensemble([each.model for each in translators]),
                first.tokenizer,
                first.options,
                first.config,
            )
        if isinstance(path, list | tuple):
            (path,) = path
        model, tokenizer, config = load_run(path)
        search = config.pop("search", None)
        return cls(
            model, tokenizer, None if search is None else _options_from_config(search, path), config
        )

    def export(self, path, format="saved_model", **options):
        """Writes the model in a form that needs no kformer.

        Args:
            path: a folder; of the format "saved_model" the next version is written in it, of others
                there must be nothing yet.
            format: "saved_model" (strings in, strings out, `kformer.export.export_saved_model`),
                "ctranslate2" (`kformer.export.ctranslate2`), "hf" (a folder for `transformers`,
                `kformer.export.export_huggingface`) or "onnx" (`kformer.export.onnx`).
            **options: of the format's function.

        Returns:
            The path that was written.
        """
        self._check_single("exported")
        from kformer.export import export

        return export(self, path, format, **options)

    def _check_single(self, what):
        if isinstance(self.model, Ensemble):
            raise ValueError(
                f"An ensemble cannot be {what}: take one of its models, or train one to "
                "translate like it (kformer distill)."
            )

    def for_languages(self, source=None, target=None):
        """The translator of a multilingual model for other languages; the model is shared.

        Args:
            source, target: codes among `tokenizer.languages`, such as "eng_Latn"; `None` leaves a
                side as it is.

        Returns:
            `Translator`.

        Raises:
            ValueError: a code is unknown, or the model's start token is its language, which only a
                new import changes.
        """
        tokenizer = self.tokenizer.for_languages(source=source, target=target)
        if tokenizer.start_id != self.model.start_id:
            raise ValueError(
                "This model's start token is the target language, so it cannot change to "
                f"{target!r} here: import the checkpoint again "
                "with that target language."
            )
        return Translator(self.model, tokenizer, self.options, self.config)

    def search_options(self, changes):
        """The translator's `SearchOptions` with some fields changed; an unknown field is a
        `TypeError`.
        """
        unknown = set(changes) - {field.name for field in dataclasses.fields(SearchOptions)}
        if unknown:
            raise TypeError(
                f"Unknown search option {', '.join(sorted(unknown))}; "
                "kformer.decoding.SearchOptions lists them."
            )
        return dataclasses.replace(self.options, **changes) if changes else self.options

    def _searcher(self, options):
        """The searcher of some options; those that differ in what is told at each call share one,
        which is compiled once.
        """
        check_options(self.model, options)
        if (part := options.compiled_part) not in self._searchers:
            self._searchers[part] = Searcher(self.model, part)
        return self._searchers[part]

    def _source_rows(self, texts, keep_empty=False):
        """Ids of each text with special tokens, cut at the model's limit; an empty list for a text
        without tokens.
        """
        affixes = len(self.tokenizer.source_prefix) + len(self.tokenizer.source_suffix)
        suffix = list(self.tokenizer.source_suffix)
        limit = self.model.max_length
        rows = self.tokenizer.tokenize(texts, side="source", special_tokens=True)
        truncated = [len(row) > limit for row in rows]
        rows = [row[: limit - len(suffix)] + suffix if len(row) > limit else row for row in rows]
        if not keep_empty:
            # A language tag of the text's own is nothing to translate either.
            tags = set() if self.tokenizer.source_prefix else set(self.tokenizer.tag_ids.values())
            rows = [row if len(row) > affixes + (row[0] in tags) else [] for row in rows]
        return rows, truncated

    def _pad(self, rows):
        """Lists of ids as an array `[B, S]`, filled up with the padding id."""
        padded = np.full((len(rows), max(map(len, rows))), self.model.pad_id, dtype="int32")
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded

    def _hypotheses(self, ids, scores, ranks):
        """`Hypothesis` objects of one sentence, from arrays `[N, L]`, `[N]`, `[N]`."""
        rows = [
            self._ended(row) if np.isfinite(score) else []
            for row, score in zip(ids.tolist(), scores, strict=True)
        ]
        texts = self.tokenizer.detokenize(rows)
        return [
            Hypothesis(*parts)
            for parts in zip(texts, scores.tolist(), ranks.tolist(), rows, strict=True)
        ]

    def _ended(self, row):
        """A hypothesis' ids without the padding behind it."""
        end_id = self.tokenizer.end_id
        if end_id in row:
            return row[: row.index(end_id) + 1]
        while row and row[-1] == self.model.pad_id:
            row = row[:-1]
        return row


def _check_texts(texts):
    """The texts as a list; a string in their place, or anything among them that is no text, is an
    error.
    """
    if isinstance(texts, str | bytes):
        raise TypeError("Give a list of texts, not one text: put it into a list, [text].")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str | bytes):
            raise TypeError(f"Text {i + 1} is {type(text).__name__}, not a string: {text!r}.")
    return texts


def _options_from_config(config, path):
    try:
        return SearchOptions(**config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The search options in {path} cannot be used: {error}") from error
