"""A folder for CTranslate2 behind the interface of a `Translator`."""

import pathlib

from kformer.export.ctranslate2 import FORMAT_VERSION, METADATA_FILE
from kformer.text import Tokenizer
from kformer.text.text_bound import source_rows
from kformer.training.machine import count_cores
from kformer.translating.translation import Hypothesis, Translation, Translations
from kformer.utils.checks import check_texts
from kformer.utils.files import check_format_version, read_json
from kformer_options.installed import check_extra
from kformer_options.text_files import check_same_length


class CTranslate2Translator:
    """Translates with a folder that `export_ctranslate2` wrote. CTranslate2 computes, on the CPU.

    Args:
        path: path. The folder.
        threads: int, default `None`, for one for each CPU core. Threads of a batch.
        replicas: int, default 1. Batches that are computed at the same time.

    Attributes:
        metadata: dict. What the export wrote into `kformer.json`.
        languages: list of str. The codes of the target languages among which a text may choose;
            empty for one direction.

    Call arguments:
        texts: list of str.
        **options: those of `translate`.

    Returns:
        List of str, the translations in the order of the texts.

    Raises:
        FileNotFoundError: there is no such folder, or it was not written by kformer.
        ValueError: it is of a newer version.
        ImportError: CTranslate2 is not installed.

    Example:
    ```python
    from kformer.export.ctranslate2_reader import CTranslate2Translator

    translator = kformer.Translator.load("runs/en-de")
    translator.export("exports/for-reading", format="ctranslate2")
    CTranslate2Translator("exports/for-reading")(["A man rides a horse."])
    # ["Ein Mann reitet auf einem Pferd."]
    ```
    """

    def __init__(self, path, threads=None, replicas=1):
        check_extra("A folder for CTranslate2", "ctranslate2")
        import ctranslate2

        path = pathlib.Path(path)
        self.metadata = read_json(path / METADATA_FILE)
        check_format_version(self.metadata, FORMAT_VERSION, path / METADATA_FILE, "export")
        self.tokenizer = Tokenizer.load(path / "tokenizer")
        places = self.metadata.get("language_places", {}).get("target", [])
        # The engine has one start token, and lists of tokens know no language behind the source.
        has_lists = self.metadata["translate_batch"].get("use_vmap")
        is_fixed = "start" in places or (has_lists and "source_prefix" not in places)
        self.languages = [] if not places or is_fixed else list(self.tokenizer.languages)
        self._engine = ctranslate2.Translator(
            str(path), inter_threads=replicas, intra_threads=threads or count_cores()
        )
        pieces = self.tokenizer.tokens(range(self.tokenizer.target_vocabulary_size), side="target")
        self._ids = {piece: i for i, piece in enumerate(pieces)}

    def __call__(self, texts, **options):
        return [result.text for result in self.translate(texts, **options)]

    def translate(
        self, texts, *, n_best=1, beam_size=None, target_language=None, batch_size=0, **options
    ):
        """Translates texts, and returns scores and truncation, too.

        Args:
            texts: list of str or bytes.
            n_best: int, default 1. The number of hypotheses of each text.
            beam_size: int, default `None`, for that of the run that was exported.
            target_language: str, or list with a str or `None` for each text, default `None`. Codes
                among `languages`; `None` for the model's own.
            batch_size: int, default 0, for all. The most texts that are computed at once.
            **options: further arguments of CTranslate2's `translate_batch`.

        Returns:
            List of `Translation`, in the order of the texts.
        """
        texts = check_texts(texts)
        is_one = target_language is None or isinstance(target_language, str)
        codes = [target_language] * len(texts) if is_one else list(target_language)
        check_same_length("the texts", len(texts), "target_language", len(codes))
        rows, prefixes, truncated = self._read(texts, codes)
        empty = [Hypothesis("", 0.0, None, None)] * n_best
        results = [Translation(empty, was_cut) for was_cut in truncated]
        indices = [i for i, row in enumerate(rows) if row]
        options = {
            "beam_size": beam_size or self.metadata["search"]["beam_size"],
            "max_batch_size": batch_size,
            **self.metadata["translate_batch"],
            **options,
        }
        outputs = self._engine.translate_batch(
            [rows[i] for i in indices],
            target_prefix=[prefixes[i] for i in indices],
            num_hypotheses=n_best,
            return_scores=True,
            **options,
        )
        penalty = options.get("length_penalty", 1)
        for i, output in zip(indices, outputs, strict=True):
            ids = [[self._ids[token] for token in row] for row in output.hypotheses]
            best = self.tokenizer.detokenize(ids)
            # The engine divides by the length, the end token included, to this power.
            lengths = [(1 + len(row)) ** penalty for row in output.hypotheses]
            scores = [score * length for score, length in zip(output.scores, lengths, strict=True)]
            hypotheses = [Hypothesis(*one, None, None) for one in zip(best, scores, strict=True)]
            results[i] = Translation(hypotheses, truncated[i])
        return Translations.of(texts, results)

    def _read(self, texts, codes):
        """The source tokens of each text (none for an empty one), the tokens that its translation
        begins with, and whether it was cut.
        """
        most = self.metadata["translate_batch"]["max_input_length"]
        max_bytes = self.metadata["search"].get("max_text_bytes")
        rows, prefixes, truncated = ([None] * len(texts) for _ in range(3))
        for code in set(codes):
            tokenizer, prefix = self.tokenizer, self.metadata["target_prefix"]
            if code is not None:
                tokenizer = tokenizer.for_languages(target=code)
                prefix = tokenizer.tokens(tokenizer.target_prefix, side="target") or prefix
            # The engine adds the end token itself where the export left it to it.
            end = None if self.metadata["source_suffix"] else -len(tokenizer.source_suffix) or None
            indices = [i for i, each in enumerate(codes) if each == code]
            ids, cut = source_rows(tokenizer, [texts[i] for i in indices], most, max_bytes)
            for i, row, was_cut in zip(indices, ids, cut, strict=True):
                rows[i] = tokenizer.tokens(row[:end], side="source") if row else []
                prefixes[i], truncated[i] = prefix, was_cut
        return rows, prefixes, truncated
