"""A SavedModel behind the interface of a `Translator`."""

import copy

from kformer.decoding.batching import batches_by_length
from kformer.decoding.fast.ops_stored import has_int8_products
from kformer.export.saved_model.folder import find_version, load_module, read_metadata
from kformer.export.saved_model.names import TARGET_LANGUAGE
from kformer.text.languages import find_language
from kformer.translating.translation import Hypothesis, Translation, Translations
from kformer.utils.checks import check_texts, shown
from kformer_options.installed import check_extra
from kformer_options.names import numbered
from kformer_options.text_files import check_same_length

# The signatures that have one more input, by that input.
_SIGNATURES = {"terms": "constrained", "prefix": "prefix"}


def open_saved_model(folder, *, trust_models=False):
    """Loads a translator's SavedModel, once it is known that this machine can run it.

    Args:
        folder: `pathlib.Path`. The version's folder.
        trust_models: bool, default `False`. As of `SavedModelTranslator`.

    Returns:
        What `tf.saved_model.load` returns, and the dict of `read_metadata`.

    Raises:
        ValueError, ImportError, RuntimeError: as `SavedModelTranslator`.
    """
    check_extra("A SavedModel", "tensorflow")
    import tensorflow_text  # noqa: F401 - it registers the ops of the tokenizer

    metadata = read_metadata(folder)
    if metadata.get("dtype") == "int8" and not has_int8_products():
        raise RuntimeError(
            f"{folder} needs int8 products, which this build of TensorFlow lacks (its Linux "
            "builds for x86-64 have them): export the run again with the dtype float32 or "
            "bfloat16."
        )
    return load_module(folder, metadata, trust_models=trust_models), metadata


class SavedModelTranslator:
    """Translates with an exported SavedModel. TensorFlow computes, on every Keras backend.

    Args:
        path: path. A version's folder, or the model's folder, of which the highest version is
            taken.
        warm_up: int, default 0. Above 0, the signature `single` is compiled for texts of up to this
            number of tokens, which takes seconds for each 16, and translates single texts from then
            on.
        trust_models: bool, default `False`. Whether the graph may have ops that do more than
            compute, such as read and write files. A SavedModel is code: with `True` it may do what
            this process may do.

    Attributes:
        path: `pathlib.Path`. The version's folder.
        options: dict. The search options that the model was exported with.
        languages: list of str. The codes of the target languages; empty for one direction.
        source_language: str or `None`. The code of the source language, of a model that reads it:
            the export fixed it.
        target_language: str or `None`. The code of the language into which it translates by
            default.

    Call arguments:
        texts: list of str, or one str.
        target_language: as for `translate`.
        batch_size: int, default 64. The number of texts of similar length in one call of the graph.

    Returns:
        List of str: translations, in the order of the texts. For one str, one str.

    Raises:
        FileNotFoundError: there is no SavedModel.
        ValueError: it was not exported by kformer, or by a newer version; a file is damaged; or it
            has no signature `single` to warm up.
        UntrustedModelError: (a ValueError) the graph has an op that may do more than compute.
        ImportError: TensorFlow or tensorflow_text is not installed.
        RuntimeError: the SavedModel needs int8 products, which this build of TensorFlow lacks.

    Example:

    ```python
    translator = kformer.export.SavedModelTranslator("saved_models/en-de")
    translator(["A man rides a horse."])
    # ["Ein Mann reitet auf einem Pferd."]
    ```
    """

    def __init__(self, path, warm_up=0, trust_models=False):
        self.path = find_version(path)
        self._module, metadata = open_saved_model(self.path, trust_models=trust_models)
        self.options = metadata["search"]
        self.languages = metadata.get("languages") or []
        self.source_language = metadata.get("source_language")
        self.target_language = metadata.get("target_language")
        self._default_code = ""  # The language that the graph has as its default.
        self._is_warm = warm_up > 0
        for words in range(0, warm_up, 8):  # A word has at least one token.
            texts = [" ".join(["a"] * words)]
            self._run("single", texts, 1, self._language_rows(None, 1))

    def _signature(self, name):
        if name not in self._module.signatures:
            names = f"--signatures serving_default,{name}"
            option = "single=True (--single)" if name == "single" else names
            raise ValueError(
                f"{self.path} has no signature {name}, which this needs: export it again with "
                f"{option}."
            )
        return self._module.signatures[name]

    @property
    def takes_terms(self):
        """Whether it has the signature `constrained`, so that `translate` takes `terms`."""
        return "constrained" in self._module.signatures

    def for_languages(self, source=None, target=None):
        """Returns a translator into another target language, which shares the loaded graph.

        Args:
            source: `None`. A SavedModel has no choice of source languages.
            target: str, default `None`. A code among `languages`; `None` keeps the language.

        Returns:
            `SavedModelTranslator`.

        Raises:
            ValueError: the model has no such language, or a source language is given.
        """
        if source is not None:
            raise self._fixed_source(source)
        other = copy.copy(self)
        if target is not None:
            other.target_language = other._default_code = self._language(target)
        return other

    def _language(self, code):
        return find_language(
            {code: code for code in self.languages}, {"target": self.languages}, "target", code
        )

    def for_direction(self, source, target):
        """Returns a translator for a pair of languages; itself if there is one direction.

        Raises:
            ValueError: the model has no such target language, or reads another source language.
        """
        if self.source_language is not None and source not in (None, self.source_language):
            raise self._fixed_source(source)
        return self.for_languages(target=target) if self.languages else self

    def _fixed_source(self, code):
        fixed = "fixed" if self.source_language is None else f"fixed, {self.source_language}"
        return ValueError(
            f"The source language of the SavedModel {self.path} is {fixed}: leave out {code!r}."
        )

    def _language_rows(self, target_language, count):
        """The input that chooses the languages of texts, as a dict; empty for one direction."""
        is_one = target_language is None or isinstance(target_language, str)
        codes = [target_language] * count if is_one else list(target_language)
        check_same_length("the texts", count, TARGET_LANGUAGE, len(codes))
        known = {code: self._language(code) for code in {*codes} - {None}}
        codes = [known.get(code, self._default_code) for code in codes]
        return {TARGET_LANGUAGE: codes} if self.languages else {}

    def __call__(self, texts, *, target_language=None, batch_size=64):
        arguments = {"target_language": target_language, "batch_size": batch_size}
        if isinstance(texts, str | bytes):
            return self([texts], **arguments)[0]
        return [result.text for result in self.translate(texts, **arguments)]

    def translate(
        self,
        texts,
        *,
        terms=None,
        prefixes=None,
        target_language=None,
        batch_size=64,
        n_best=1,
        first_index=0,
        progress=None,
        require_terms=True,
    ):
        """Translates with scores.

        Args:
            texts: list of str.
            terms: list with a list for each text, default `None`. As of `Translator.translate`, of
                one form each. The SavedModel must have the signature `constrained`.
            prefixes: list of str, default `None`. How each translation begins; with the signature
                `prefix`.
            target_language: str, or list with a str or `None` for each text, default `None`. Codes
                among `languages`; `None` for the translator's own language. A tag at the beginning
                of a text, such as `>>de<<`, counts more, if the model was trained with tags.
            batch_size: int, default 64. The number of texts in one call of the graph.
            n_best: int, default 1. Hypotheses per text; at most the number that the model was
                exported with.
            first_index: int, default 0. The index of the first text in a longer input, for what an
                error says.
            progress: function, default `None`. Called after each batch with the number of texts
                that are done.
            require_terms: bool, default `True`. With `False` a translation may lack terms, or a
                prefix, that the vocabulary cannot write or that do not fit.

        Returns:
            List of `kformer.translating.translation.Translation`, in the order of the texts.

        Raises:
            ValueError: `n_best` is more than the model was exported with, it has no signature for
                what is asked, or no such language; or a translation cannot have its terms or its
                prefix.
            TypeError: `texts` is one text.
        """
        texts = check_texts(texts)
        if n_best > self.options["n_best"]:
            raise ValueError(
                f"{self.path} was exported with the {self.options['n_best']} best; export it again "
                f"with n_best={n_best} to get more."
            )
        rows = self._rows(len(texts), n_best, terms=terms, prefix=prefixes)
        if rows:
            name = _SIGNATURES[next(iter(rows))]
        elif n_best > 1:
            name = "n_best"
        else:
            name = "single" if self._is_warm and len(texts) == 1 else "serving_default"
        self._signature(name)  # Also for no text.
        rows |= self._language_rows(target_language, len(texts))
        texts = list(map(_encoded, texts))
        results, done = [None] * len(texts), 0
        # Only the graph knows how many tokens a text has, so texts are sorted by bytes. An empty
        # text must have a result, too.
        for batch in batches_by_length([1 + len(text) for text in texts], batch_size):
            inputs = {key: [row[index] for index in batch] for key, row in rows.items()}
            pairs = self._run(name, [texts[index] for index in batch], n_best, inputs)
            for index, (translation, has_all) in zip(batch, pairs, strict=True):
                if require_terms and not has_all:
                    raise ValueError(
                        f"The {name.replace('constrained', 'terms')} of "
                        f"{numbered(first_index + index + 1)} cannot be written: the vocabulary "
                        "lacks a character, or the longest translation is shorter; leave some out."
                    )
                results[index] = translation
            done += len(batch)
            if progress is not None:
                progress(done)
        return Translations.of(texts, results)

    def document(self, text, format="text", **options):
        """Translates a document; arguments and returns are those of `Translator.document`."""
        from kformer.documents import translate_document

        return translate_document(self, text, format, **options).text

    def _rows(self, count, n_best, **rows):
        """The input of a signature that has one besides the texts, as a dict: a list for each text
        of terms, or prefixes.
        """
        rows = {
            name: list(row) if name == "terms" else list(map(_encoded, check_texts(row)))
            for name, row in rows.items()
            if row is not None
        }
        for name, row in rows.items():
            check_same_length("the texts", count, name, len(row))
        if len(rows) > 1 or (rows and n_best > 1):
            raise ValueError(
                "A SavedModel takes terms or prefixes, not both, and gives one translation with "
                "them; ask for less, or translate with the run."
            )
        if "terms" in rows:
            rows["terms"] = [[_encoded(_only_form(term)) for term in row] for row in rows["terms"]]
        return rows

    def _run(self, name, texts, n_best, inputs):
        """One call of a signature: of each text a `Translation`, and whether it has its terms."""
        import tensorflow as tf

        if "terms" in inputs:
            most = max(map(len, inputs["terms"]))
            padded = [[*row, *[""] * (most - len(row))] for row in inputs["terms"]]
            padded = tf.constant(padded, tf.string, shape=[len(texts), most])
            inputs = {**inputs, "terms": padded}
        inputs = {key: tf.constant(value) for key, value in inputs.items()}
        outputs = self._signature(name)(text=tf.constant(texts), **inputs)
        arrays = {key: value.numpy() for key, value in outputs.items()}
        if n_best == 1:
            arrays["translations"] = arrays["translation"][:, None]
            arrays["scores"] = arrays["score"][:, None]
        results = []
        for i, truncated in enumerate(arrays["truncated"]):
            texts, scores = arrays["translations"][i], arrays["scores"][i]
            pairs = zip(texts[:n_best], scores[:n_best], strict=True)
            best = [Hypothesis(text.decode(), float(score), None, None) for text, score in pairs]
            has_all = [arrays[key][i] for key in ("has_terms", "has_prefix") if key in arrays]
            results.append((Translation(best, bool(truncated)), all(has_all)))
        return results


def _encoded(text):
    """The bytes of a text, which may have surrogates: the graph makes them valid."""
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _only_form(term):
    """The form of a term of `Translator.translate`; a ValueError if there are several."""
    forms = [term] if isinstance(term, str) else list(term)
    if len(forms) != 1:
        raise ValueError(
            f"A SavedModel takes one form of each term, but {shown(forms)} was given; translate "
            "with the run."
        )
    return forms[0]
