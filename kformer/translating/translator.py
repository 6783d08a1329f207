"""`Translator`: texts in, translations out, on any backend."""

import copy
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import AnyStr

import numpy as np

from kformer.data import align_words
from kformer.data.token_lists import FILE_NAME, TokenLists
from kformer.decoding import SearchOptions
from kformer.models import Ensemble
from kformer.saving import load_run, save_run
from kformer.text import Tokenizer
from kformer.text.frequent_tokens import frequent_tokens
from kformer.text.text_constraints import TextConstraints
from kformer.text.words import split_words
from kformer.translating import translation, word_alignment
from kformer.translating.alternatives import Alternatives
from kformer.translating.confidence import CONFIDENCE, confidences, fit_temperature
from kformer.translating.coverage import coverages, fit_coverage
from kformer.translating.minimum_risk import least_risk_translations
from kformer.translating.pairs import PairReader
from kformer.translating.search import TextSearch
from kformer.utils.checks import check_texts, check_whole
from kformer.utils.files import inside
from kformer.utils.types import Path, Progress, Texts
from kformer_options.search import read_options
from kformer_options.text_files import check_same_length

# Keys of `config` for several languages: the pairs that were trained, such as "en-de", and, by
# target language, what is chosen for its search.
DIRECTIONS, SEARCH_BY_LANGUAGE = "directions", "search_by_language"


class Translator:
    """A model and its tokenizer.

    Args:
        model: `kformer.Transformer`, or a `kformer.models.Ensemble` of several.
        tokenizer: `kformer.Tokenizer`, the one that the model was trained with.
        options: `kformer.decoding.SearchOptions`, default `None`. The search options, which a call
            may change for itself; `None` for a beam of 4.
        config: dict of JSON values, default `None`. Facts that `save` writes beside the model, such
            as how it was trained.
        dtype: str, default `None`. The type in which TensorFlow and PyTorch multiply matrices:
            "bfloat16" or "int8". The matrices are rounded once: after a change of the model's
            weights, make a new translator. With `None` or "float32" the weights themselves are
            multiplied, as `score` and `attention` always do.

    Call arguments:
        texts: list of str, or one str. For one str, `terms` and `forbidden_terms` are its terms,
            and `prefixes` its prefix.
        alignment, confidence, coverage: bool, default `False`. Whether to return the words of the
            translation, too, with the words of the text that they are aligned with, with the
            model's confidence in them, and with what was left out or added.
        **arguments: those of `translate`, such as `beam_size=1`.

    Returns:
        A list of str, the translations in the order of the texts; for one str, one str. With
        `n_best` above 1, or `alternatives`, each translation is a list of str, best first; with
        `alignment`, `confidence` or `coverage` it is an `AnnotatedTranslation`. An empty text has
        an empty translation.

    Attributes:
        token_lists: `kformer.data.TokenLists` or `None`. The target tokens that each source token
            may need, as `kformer shortlist` writes them into a run: searches compute no others,
            unless they sample or have a `shortlist`, and neither do exports as SavedModel or for
            CTranslate2. Set it to `None` to search among all tokens.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or other special tokens, or the
            model cannot translate in the dtype.

    Example:
    ```python
    translator = kformer.Translator.load("runs/en-de")
    translator(["A man rides a horse."], beam_size=4)
    ```
    """

    def __init__(self, model, tokenizer: Tokenizer, options=None, config=None, dtype=None):
        mistakes = []
        for name in ("vocabulary_size", "target_vocabulary_size"):
            if (size := getattr(tokenizer, name)) > (limit := getattr(model, name)):
                side = "target" if name.startswith("target") else "source"
                mistakes.append(f"has {size} {side} tokens, but the model only {limit}")
        for name in ("pad_id", "end_id"):
            if (token := getattr(tokenizer, name)) != (expected := getattr(model, name)):
                mistakes.append(f"has the {name} {token}, but the model {expected}")
        if mistakes:
            raise ValueError(f"The tokenizer {mistakes[0]}: the model was made for another one.")
        self.model = model
        if options is None:
            options = SearchOptions(max_length=max(1, model.max_length - 1))
        self.options = options
        self.config = dict(config or {})
        self.dtype = dtype
        self._search = TextSearch(model, tokenizer, dtype)
        self._reader = PairReader(model, tokenizer)
        self._set_tokenizer(tokenizer)

    def _set_tokenizer(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        if tokenizer.target_language is not None and tokenizer.target_prefix:
            # The search must not choose the language.
            self.options = dataclasses.replace(self.options, prefix_ids=tokenizer.target_prefix)
        # Copies, which share what is compiled.
        self._search, self._reader = copy.copy(self._search), copy.copy(self._reader)
        self._search.tokenizer = self._reader.tokenizer = tokenizer
        self._alternatives = Alternatives(self._search)

    @property
    def token_lists(self) -> TokenLists | None:
        return self._search.token_lists

    @token_lists.setter
    def token_lists(self, lists: TokenLists | None):
        self._search = copy.copy(self._search)  # Other translators may share it.
        self._search.token_lists = lists
        self._alternatives = Alternatives(self._search)

    def __repr__(self):
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self):
        return translation.html_table([(type(self).__name__, ""), *self._facts().items()])

    def _facts(self):
        """Returns the facts that `repr` shows: a dict of str to str."""
        options, facts = self.options, {}
        codes = self.tokenizer.source_language, self.tokenizer.target_language
        if self.tokenizer.languages:
            facts["languages"] = " → ".join(code or "?" for code in codes)
        facts["parameters"] = f"{sum(int(np.prod(each.shape)) for each in self.model.weights):,}"
        facts["vocabulary"] = f"{self.tokenizer.target_vocabulary_size:,}"
        changed = [
            f"{field.name}={value}"
            for field in dataclasses.fields(options)
            if (value := getattr(options, field.name)) != field.default or field.name == "beam_size"
        ]
        return {**facts, "search": ", ".join(changed)}

    def __call__(self, texts, **arguments):
        is_one = isinstance(texts, str | bytes)
        for name in ("terms", "forbidden_terms", "prefixes"):
            if is_one and arguments.get(name) is not None:
                arguments[name] = [arguments[name]]
        names = ("alignment", "confidence", "coverage")
        annotations = {name: arguments.pop(name, False) for name in names}
        language = arguments.get("target_language")
        if language is not None and not isinstance(language, str):
            arguments["target_language"] = language = list(language)  # It is read twice.
        texts = [texts] if is_one else check_texts(texts)
        has_lists = arguments.get("n_best", self.options.n_best) != 1
        has_lists = has_lists or arguments.get("alternatives") is not None
        if has_lists and any(annotations.values()):
            raise ValueError(
                "alignment, confidence and coverage need one translation: leave n_best and "
                "alternatives out."
            )
        results = self.translate(texts, **arguments)
        if any(annotations.values()):
            results = self.annotated(texts, results, **annotations, target_language=language)
        elif has_lists:
            results = [[hypothesis.text for hypothesis in result.hypotheses] for result in results]
        else:
            results = [result.text for result in results]
        return results[0] if is_one else results

    def translate(
        self,
        texts: Texts,
        *,
        terms: Sequence | None = None,
        forbidden_terms: Sequence | None = None,
        prefixes: Texts | None = None,
        alternatives: int | None = None,
        mbr: int | None = None,
        target_language: str | Sequence[str | None] | None = None,
        batch_size: int = 64,
        batch_tokens: int | None = 4096,
        first_index: int = 0,
        progress: Progress | None = None,
        **options,
    ) -> list[translation.Translation]:
        """Translates texts, and returns scores, tokens and truncation, too.

        Sentences of similar lengths are searched together. No sentence changes another's
        translation.

        Args:
            texts: list of str.
            terms: list with a list for each text, default `None`. The terms that its translation
                must contain: each a str, or a tuple of forms, one of which is enough, such as
                `("Hund", "Hunde")`. Terms need a beam. Where the limit of a translation is below
                `max_length`, its terms raise the limit.
            forbidden_terms: list with a list of str for each text, default `None`. The terms that
                its translation must not contain, unless `terms` has them.
            prefixes: list of str, default `None`. The beginning of each translation. It does not
                count in scores.
            alternatives: int, default `None`. The number of translations of each text. Each has
                another first token after the prefix: these are the most probable ones, best first.
            mbr: int, default `None`. The number of samples of each text for minimum Bayes risk
                decoding. It returns the sample that is most similar to the others by chrF, and the
                similarity as its `rank`. It uses the options of sampling and `n_best`, not
                `beam_size`.
            target_language: str, or list with a str or `None` for each text, default `None`. Codes
                among `tokenizer.languages`; `None` for the translator's own language.
            batch_size: int, default 64. The most sentences that are searched at once.
            batch_tokens: int, default 4096. The most source tokens that are searched at once,
                padding included; `None` for any number. It bounds the memory for long sentences.
            first_index: int, default 0. The index of the first text in a longer input that several
                calls translate. The random numbers of a sample depend on the seed and on the index
                of its text, so the calls return what one call would.
            progress: function, default `None`. It is called after each batch with the number of
                sentences done.
            **options: fields of `SearchOptions` that this call changes.

        Returns:
            List of `Translation`, in the order of the texts.

        Raises:
            ValueError: terms, prefix, `max_length` and other options do not fit together; or the
                model has no such language.
        """
        if mbr is not None and alternatives is not None:
            raise ValueError("mbr samples, alternatives are searched for: leave one out.")
        options = options if mbr is None else {**options, "sampling": True}
        texts = check_texts(texts)
        first_index = check_whole("first_index", first_index, least=0)
        rows = terms, forbidden_terms, prefixes
        constraints = TextConstraints(self.tokenizer, len(texts), *rows, first_index)
        done = 0

        def advance(count):
            progress(done + count)

        def translated(translator, chosen):
            nonlocal done
            part = [texts[i] for i in chosen], constraints.of(chosen)
            search = translator.search_options(options)
            indices = [first_index + i for i in chosen]
            batching = (batch_size, batch_tokens, indices, progress and advance)
            if mbr is not None:
                results = least_risk_translations(translator._search, *part, mbr, search, batching)
            elif alternatives is not None:
                results = translator._alternatives(*part, alternatives, search, batching)
            else:
                results = translator._search(*part, search, *batching)
            done += len(chosen)
            return results

        results = self._by_language(target_language, len(texts), translated)
        return translation.Translations.of(texts, results)

    def _by_language(self, target_language, count, run):
        """Returns the results for some texts, in their order, computed language by language.

        Args:
            target_language: as for `translate`.
            count: int. The number of texts.
            run: function of the translator of a language, and of the indices of its texts, to a
                list of their results.
        """
        if target_language is None:
            return run(self, range(count))
        if isinstance(target_language, str):
            return run(self.for_languages(target=target_language), range(count))
        languages = list(target_language)
        check_same_length("the texts", count, "target_language", len(languages))
        groups = {}
        for i, code in enumerate(languages):
            groups.setdefault(code, []).append(i)
        translators = {code: self.for_languages(target=code) for code in groups}
        results = [None] * count
        for code, indices in groups.items():
            for i, result in zip(indices, run(translators[code], indices), strict=True):
                results[i] = result
        return results

    def document(
        self,
        text: AnyStr,
        format: str = "text",
        *,
        glossary=None,
        source_language: str | None = None,
        target_language: str | None = None,
        **options,
    ) -> AnyStr:
        """Translates a document, sentence by sentence, and leaves all else as it is.

        `kformer.documents.translate_document` returns a report, too.

        Args:
            text: str, or bytes as they stand in a file.
            format: str, default `"text"`. `"text"`, `"html"`, `"markdown"`, `"srt"`, `"vtt"`,
                `"po"`, `"json"`, `"properties"`, `"strings"`, `"android"`, `"docx"`, `"pptx"`,
                `"odt"`, `"xliff"` or `"lines"`.
            glossary: `kformer.documents.Glossary`, default `None`. Terms and their translations.
            source_language: str, default `None`. The code of the document's language.
            target_language: str, default `None`. The code of the language to translate into; for a
                model of one direction, the code that is written into the document.
            **options: those of `translate`, such as `beam_size`.

        Returns:
            str, or bytes for bytes.

        Raises:
            ValueError: the format is unknown, or the document is not valid in it.
            ImportError: a package of the extra `documents` is not installed.

        Example:
        ```python
        translator = kformer.Translator.load("runs/en-de")
        translator.document("<p>A man rides a <b>horse</b>.</p>", format="html")
        ```
        """
        from kformer.documents import translate_document

        languages = {"source_language": source_language, "target_language": target_language}
        document = translate_document(self, text, format, glossary=glossary, **languages, **options)
        return document.text

    def score(self, sources, targets, *, batch_size=32, progress=None) -> list[translation.Score]:
        """Returns the log-probability of given translations.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are scored at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List of `Score`, which are floats: the sum of the log-probabilities (natural logarithm)
            of each target's tokens and its end token, given the source. The token of a target
            language does not count. The sum equals the `score` of a search that found the same
            tokens, unless the search changes probabilities: by `renormalize`, a shortlist, the
            lists of sentences (`token_lists`), a forced prefix, the `repetition_penalty` of a beam,
            or an end that is forced at no cost (mode "huggingface"). The attribute `truncated` of a
            score is `True` where the source was longer than the model's limit and was cut.

        Raises:
            ValueError: the sides differ in length, or a target is longer than the model's limit.
        """
        pairs = self._reader.tokenize(sources, targets, self.options)
        return self._reader.score(pairs, batch_size, progress)

    def align(self, sources, targets, *, batch_size=32, progress=None) -> list[list]:
        """Returns which source word each word of given translations came from.

        It reads the cross-attention that `calibrate` chose. Without that choice it reads the mean
        over the heads of the last layer or, with 4 layers or more, of the last but one. A word is a
        text between spaces, or one Chinese or Japanese character.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are read at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List with a list for each pair of texts: the pairs (source index, target index) of
            words, counted from 0, sorted.

        Raises:
            ValueError: as `score`; or the translator has an ensemble.
        """
        self._check_single("asked for alignments")
        pairs = self._reader.tokenize(sources, targets, self.options)
        words = word_alignment.WordPairs(self._reader, pairs)
        return words.align(word_alignment.stored_source(self), batch_size, progress)

    def confidence(
        self, sources, targets, *, batch_size=32, progress=None
    ) -> list[translation.Confidence]:
        """Returns how sure the model is of given translations and of each of their words.

        Log-probabilities are divided by the temperature that `calibrate` fitted.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are read at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List of `kformer.translating.translation.Confidence`.

        Raises:
            ValueError: as `score`.
        """
        pairs = self._reader.tokenize(sources, targets, self.options)
        return confidences(self._reader, pairs, self.config, batch_size, progress)

    def coverage(
        self, sources, targets, *, batch_size=32, progress=None
    ) -> list[translation.Coverage]:
        """Returns what given translations left out, and what they have without a source.

        A translation longer than the model reads is judged by what needs no model.

        Args:
            sources, targets: lists of str of one length.
            batch_size: int, default 32. The pairs that are read at once.
            progress: function, default `None`. It is called after each batch with the number of
                pairs done.

        Returns:
            List of `kformer.translating.translation.Coverage`.

        Raises:
            ValueError: the sides differ in length, or the translator has an ensemble.
        """
        self._check_single("asked for coverage")
        pairs = self._reader.tokenize(sources, targets, self.options, keep_long=True)
        return coverages(self, pairs, batch_size, progress)

    def calibrate(self, sources, targets, *, alignments=None, batch_size=32) -> dict:
        """Fits the temperature of `confidence`, chooses the attention of `align`, and fits the
        weights of `coverage`.

        `save` keeps them; `kformer calibrate` writes them into a run.

        Args:
            sources, targets: lists of str, such as a validation set.
            alignments: list with an alignment of words for each pair, default `None`; `None` for
                those that a statistical aligner finds in these texts.
            batch_size: int, default 32. The pairs that are read at once.

        Returns:
            Dict of dicts. `confidence` has `temperature`; `error_before` and `error`, the
            expected calibration errors without and with that temperature; and `tokens`, the number
            of tokens that were counted. `alignment` has `layer`, `head` and `after`, the chosen
            attention, and `error`, its alignment error rate. `coverage` has the weights of both
            faults, and the languages of both sides; it needs some hundred pairs, and is empty
            with less. An ensemble has no `alignment` and no `coverage`.

        Raises:
            ValueError: as `score`; or there is no token, or not an alignment for each pair.
        """
        pairs = self._reader.tokenize(sources, targets, self.options)
        results = {CONFIDENCE: fit_temperature(self._reader, pairs, batch_size)}
        self.config.update(results)
        if isinstance(self.model, Ensemble):
            return results
        if alignments is None:
            alignments = align_words(pairs.sources, pairs.targets)
        source = word_alignment.choose_source(self._reader, pairs, alignments, batch_size)
        results[word_alignment.ALIGNMENT] = self.config[word_alignment.ALIGNMENT] = source
        # It reads the attention that was chosen.
        weights = fit_coverage(self, pairs.sources, pairs.targets, alignments, batch_size)
        results[word_alignment.COVERAGE] = self.config[word_alignment.COVERAGE] = weights
        return results

    def attention(
        self, source, target=None, *, target_language=None, **options
    ) -> translation.AttentionMap:
        """Returns the cross-attention of every layer and head, from one forward pass.

        Args:
            source: str.
            target: str, default `None`. The translation; `None` for the one that the search finds.
            target_language: str, default `None`. A code among `tokenizer.languages`; `None` for
                the translator's own language.
            **options: fields of `SearchOptions` for that search.

        Returns:
            `AttentionMap`.

        Raises:
            ValueError: the translator has an ensemble, which has no attention of its own; or the
                model has no such language.
        """
        self._check_single("looked into")
        if target_language is not None:
            return self.for_languages(target=target_language).attention(source, target, **options)
        if target is None:
            labels = self.translate([source], **options)[0].hypotheses[0].ids
        else:
            labels = self.tokenizer.tokenize(target, side="target", special_tokens=True)
        return self._reader.attention(source, labels, self.options)

    def annotated(
        self,
        texts,
        results,
        *,
        alignment=False,
        confidence=False,
        coverage=False,
        target_language=None,
        batch_size=64,
    ):
        """Returns the best translations with their words.

        Args:
            texts: list of str, the sources.
            results: list of `Translation` of these texts.
            alignment: bool, default `False`. Whether to align the words.
            confidence: bool, default `False`. Whether to compute the confidence.
            coverage: bool, default `False`. Whether to find what was left out or added.
            target_language: as for `translate`.
            batch_size: int, default 64. The pairs that are read at once.

        Returns:
            List of `kformer.translating.translation.AnnotatedTranslation`.

        Raises:
            ValueError: an ensemble has no alignments and no coverage.
        """
        for name, is_needed in (("alignments", alignment), ("coverage", coverage)):
            if is_needed:
                self._check_single(f"asked for {name}")
        texts, settings = check_texts(texts), (alignment, confidence, coverage)

        def annotated(translator, chosen):
            rows = [texts[i] for i in chosen], [results[i] for i in chosen]
            return translator._annotated(*rows, *settings, batch_size)

        return self._by_language(target_language, len(texts), annotated)

    def _annotated(self, texts, results, alignment, confidence, coverage, batch_size):
        labels = [result.hypotheses[0].ids for result in results]
        targets = [result.text for result in results]
        pairs = self._reader.pairs(texts, targets, labels, self.options)
        alignments = word_confidences = word_coverages = [None] * len(targets)
        if alignment:
            words = word_alignment.WordPairs(self._reader, pairs)
            alignments = words.align(word_alignment.stored_source(self), batch_size)
        if confidence:
            word_confidences = confidences(self._reader, pairs, self.config, batch_size)
        if coverage:
            word_coverages = coverages(self, pairs, batch_size, only_unusual=True)
        notes = alignments, word_confidences, word_coverages
        words = (tuple(map(split_words, sides)) for sides in zip(texts, targets, strict=True))
        rows = zip(targets, words, *notes, strict=True)
        annotated = translation.AnnotatedTranslation
        return [annotated(text, *sides, *notes) for text, sides, *notes in rows]

    def shortlist(self, texts, size=None):
        """Returns the tokens that occur in texts, as a value of the option `shortlist`.

        A search with a shortlist computes no other tokens. That saves time where translations need
        only part of the vocabulary, such as the tokens of one domain or of the training data. The
        tokens of single bytes are always included: a vocabulary that has them can still write any
        text.

        Args:
            texts: iterable of str in the target language, such as an open text file.
            size: int, default `None`. The number of tokens, the most frequent ones; `None` for all
                that occur.

        Returns:
            Tuple of ids, sorted.

        Raises:
            ValueError: the texts have no token, or `size` is below 1.
            TypeError: `texts` is one text.

        Example:
        ```python
        translator = kformer.Translator.load("runs/en-de")
        ids = translator.shortlist(open("train.de"))
        translator(["A man rides a horse."], shortlist=ids)
        ```
        """
        return frequent_tokens(self.tokenizer, texts, size)

    def save(self, path: Path) -> pathlib.Path:
        """Writes a run directory: model, tokenizer, configuration and search options.

        Args:
            path: path of the directory, see `kformer.saving.save_run`.

        Returns:
            The path.

        Raises:
            ValueError: the translator has an ensemble, which cannot be saved.
        """
        self._check_single("saved")
        config = {**self.config, "search": dataclasses.asdict(self.options)}
        folder = save_run(path, self.model, self.tokenizer, config)
        if self.token_lists is not None:
            self.token_lists.save(folder / FILE_NAME, self.tokenizer)
        else:
            (folder / FILE_NAME).unlink(missing_ok=True)  # That of the run that was there.
        return folder

    @classmethod
    def from_pretrained(cls, name: Path, **options) -> "Translator":
        """Loads a published translation model by its name at the Hugging Face hub or from a folder.

        Args:
            name: str, such as "Helsinki-NLP/opus-mt-en-de"; or the path of a downloaded model.
            **options: as for `kformer.interop.load_checkpoint`, such as `revision` or `dtype`.

        Returns:
            `Translator`.

        Raises:
            FileNotFoundError, OSError, ValueError, ImportError: as `load_checkpoint`.

        Example:
        ```python
        translator = kformer.Translator.from_pretrained("opus-mt-en-de")
        ```
        """
        from kformer.interop import load_checkpoint

        return load_checkpoint(name, **options)

    @classmethod
    def load(cls, path: Path | Sequence[Path], dtype: str | None = None) -> "Translator":
        """Reads a run directory that `save` or `kformer train` wrote, on any backend.

        Args:
            path: path of the run directory; or a list of them, whose models then translate together
                as a `kformer.models.Ensemble`, with search options and token lists of the first.
            dtype: str, default `None`. As for `Translator`.

        Returns:
            `Translator`.

        Raises:
            FileNotFoundError: as `kformer.saving.load_run`.
            ValueError: as `kformer.saving.load_run` or `Translator`; or the runs of an ensemble
                differ in their tokenizers.
        """
        paths = path if isinstance(path, list | tuple) else [path]
        if len(paths) > 1:
            first, *others = translators = [cls.load(each) for each in paths]
            for other, name in zip(others, paths[1:], strict=True):
                if not first.tokenizer.writes_like(other.tokenizer):
                    raise ValueError(
                        f"{name} has another tokenizer than {paths[0]}, and an ensemble needs "
                        "one: train its runs with one tokenizer (kformer train --tokenizer)."
                    )
            model = Ensemble([each.model for each in translators])
            config = word_alignment.without_calibration(first.config)
            translator = cls(model, first.tokenizer, first.options, config, dtype)
            translator.token_lists = first.token_lists
            return translator
        model, tokenizer, config = load_run(paths[0])
        search = config.pop("search", None)
        options = None if search is None else read_options(search, paths[0])
        translator = cls(model, tokenizer, options, config, dtype)
        lists = inside(paths[0], FILE_NAME)
        if lists.is_file():
            translator.token_lists = TokenLists.load(lists, tokenizer)
        return translator

    def export(self, path: Path, format: str = "saved_model", **options) -> pathlib.Path:
        """Writes the model in a format that is used without kformer.

        Args:
            path: path of a folder. "saved_model" writes its next version into it; for the other
                formats it must not exist.
            format: str, default `"saved_model"`. `"saved_model"` (strings in, strings out,
                `kformer.export.export_saved_model`), `"ctranslate2"`
                (`kformer.export.ctranslate2`), `"hf"` (a folder for `transformers`,
                `kformer.export.export_huggingface`) or `"onnx"` (`kformer.export.onnx`).
            **options: options of the format's function.

        Returns:
            The path that was written.

        Raises:
            ValueError: the translator has an ensemble, which can be a SavedModel alone.
        """
        if format != "saved_model":
            self._check_single(f"exported as {format}")
        from kformer.export import export

        return export(self, path, format, **options)

    def _check_single(self, what):
        """Refuses an ensemble; `what` ends the message "An ensemble cannot be ..."."""
        if isinstance(self.model, Ensemble):
            raise ValueError(
                f"An ensemble cannot be {what}: take one of its models, or train one to "
                "translate like it (kformer distill)."
            )

    def for_languages(self, source=None, target=None) -> "Translator":
        """Returns a translator for other languages of a multilingual model.

        Both translators share the model. A search that was chosen for the target language, at the
        end of its training, takes the place of this translator's length penalty and limits. Token
        lists go along where the target language is a token of the source, as in models trained
        here.

        Args:
            source, target: str, default `None`. Codes among `tokenizer.languages`, such as
                `"eng_Latn"`; `None` keeps the language of that side.

        Returns:
            `Translator`.

        Raises:
            ValueError: a code is unknown; or the model's start token is its target language, which
                is chosen when a checkpoint is imported.
        """
        return self._with_tokenizer(self.tokenizer.for_languages(source=source, target=target))

    def for_direction(self, source: str | None, target: str | None) -> "Translator":
        """Returns a translator for a pair of languages, as `for_languages`; a language that the
        model does not read, such as that of the source, is left out. `None` keeps that of a side.
        """
        return self._with_tokenizer(self.tokenizer.for_direction(source, target))

    def _with_tokenizer(self, tokenizer):
        target = tokenizer.target_language
        if tokenizer.start_id != self.model.start_id:
            raise ValueError(
                "This model's start token is the target language, so it cannot change to "
                f"{target!r} here: import the checkpoint again with that target language."
            )
        other = copy.copy(self)
        other.config = dict(self.config)
        if target != self.tokenizer.target_language:
            changes = self.config.get(SEARCH_BY_LANGUAGE, {}).get(target, {})
            other.options = dataclasses.replace(self.options, **changes)
        other._set_tokenizer(tokenizer)
        directions = {
            (each.source_language, each.target_language) for each in (self.tokenizer, tokenizer)
        }
        if len(directions) > 1 and "source_prefix" not in tokenizer._language_places["target"]:
            other.token_lists = None  # No source token tells them the language.
        return other

    def search_options(self, changes):
        """Returns the translator's `SearchOptions` with some fields changed.

        Args:
            changes: dict of fields and their values.

        Returns:
            `SearchOptions`.

        Raises:
            TypeError: there is no such field.
            ValueError: as `SearchOptions`.
        """
        unknown = set(changes) - {field.name for field in dataclasses.fields(SearchOptions)}
        if unknown:
            raise TypeError(
                f"Unknown search option {', '.join(sorted(unknown))}; "
                "kformer.decoding.SearchOptions lists them."
            )
        return dataclasses.replace(self.options, **changes) if changes else self.options
