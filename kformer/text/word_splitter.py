"""OpenNMT's tokenizer in front of a vocabulary of tokens: it splits texts, and joins tokens."""

import pathlib
import tempfile

from kformer.utils.checks import shown
from kformer_options.installed import check_extra

# The settings that a model may have, with their types. Those that are missing here need more than
# tokens (features of case), read further files, or sample.
_FLAGS = (
    "joiner_annotate joiner_new spacer_annotate spacer_new case_markup soft_case_regions "
    "no_substitution allow_isolated_marks preserve_placeholders preserve_segmented_tokens "
    "segment_case segment_numbers segment_alphabet_change support_prior_joiners"
)
_TYPES = {"mode": str, "joiner": str, "lang": str, "segment_alphabet": list}
_TYPES |= dict.fromkeys(_FLAGS.split(), bool)


class WordSplitter:
    """Splits texts into tokens and joins them, as the package pyonmttok does.

    Args:
        settings: dict. Arguments of `pyonmttok.Tokenizer`, such as
            `{"mode": "aggressive", "joiner_annotate": True}`.
        codes: bytes or `None`, default `None`. The merges of a BPE model, as subword-nmt or
            pyonmttok writes them.

    Attributes:
        state: tuple of both.

    Raises:
        ImportError: pyonmttok is not installed.
        ValueError: a setting is unknown or wrong, or the codes cannot be read.

    References:
        https://github.com/OpenNMT/Tokenizer
    """

    def __init__(self, settings, codes=None):
        self.state = dict(settings), codes
        for name, value in settings.items():
            if not isinstance(value, _TYPES.get(name, ())):
                raise ValueError(
                    f"OpenNMT's tokenizer has the setting {shown(name)}: {shown(value)}, which "
                    "kformer does not follow."
                )
        check_extra("OpenNMT's tokenizer", "opennmt")
        import pyonmttok

        files = {}
        with tempfile.TemporaryDirectory() as folder:
            if codes is not None:
                path = pathlib.Path(folder, "codes")
                path.write_bytes(codes)
                files["bpe_model_path"] = str(path)
            try:
                self._tokenizer = pyonmttok.Tokenizer(**{"mode": "none", **settings, **files})
            except (ValueError, TypeError, RuntimeError) as error:
                reason = shown(" ".join(str(error).split()))
                message = f"OpenNMT's tokenizer cannot take its settings or codes ({reason})."
                raise ValueError(message) from None

    def __reduce__(self):
        return WordSplitter, self.state

    def split(self, text):
        """Returns a text as tokens with spaces between them."""
        return " ".join(self._tokenizer.tokenize(text)[0])

    def join(self, text):
        """Returns the text of tokens with spaces between them."""
        return self._tokenizer.detokenize(text.split())
