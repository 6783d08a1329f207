"""The scripts of languages, and the language of a text by py3langid."""

import collections
import functools
import re
import unicodedata

import numpy as np

from kformer.utils.lines import read_chunks
from kformer_options.installed import check_extra

# Codes of languages by their script. Those with two, such as Serbian, are not here.
_CODES = {
    "ARABIC": "ar arz ary fa ps ur ug sd ckb",
    "ARMENIAN": "hy",
    "BENGALI": "bn as",
    "CJK": "zh wuu yue",
    "CYRILLIC": "ru uk be bg mk mn ky tg tt ba",
    "DEVANAGARI": "hi mr ne sa gom mai",
    "ETHIOPIC": "am ti",
    "GEORGIAN": "ka",
    "GREEK": "el grc",
    "GUJARATI": "gu",
    "HANGUL": "ko",
    "HEBREW": "he yi",
    "KANNADA": "kn",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "af an br bs ca cs cy da de en eo es et eu fi fo fr fy ga gd gl ha hr ht hu id ig "
    "is it jv la lb lg ln lt lv mg ms mt nb nl nn no oc om pl pt qu ro rw sk sl sn so sq st sv sw "
    "tl tn tr ts vi wa wo xh yo zu",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo dz",
}
_SCRIPTS = {code: (script,) for script, codes in _CODES.items() for code in codes.split()}
_SCRIPTS["ja"] = ("CJK", "HIRAGANA", "KATAKANA")
# Codes of ISO 639-3, as NLLB's, and of older standards in the place of those of two letters.
_SAME = dict(
    pair.split(":")
    for pair in "afr:af als:sq amh:am arb:ar asm:as azj:az bel:be ben:bn bos:bs bul:bg cat:ca "
    "ces:cs cmn:zh cym:cy dan:da deu:de ekk:et ell:el eng:en epo:eo est:et eus:eu "
    "fas:fa fin:fi fra:fr gle:ga glg:gl guj:gu hat:ht heb:he hin:hi hrv:hr hun:hu "
    "hye:hy ind:id isl:is ita:it iw:he jav:jv jpn:ja kan:kn kat:ka kaz:kk khk:mn khm:km "
    "kin:rw kir:ky kmr:ku kor:ko lao:lo lat:la lit:lt ltz:lb lvs:lv mal:ml mar:mr "
    "mkd:mk mlt:mt mya:my nb:no nld:nl nno:nn nob:no npi:ne oci:oc ory:or pan:pa pbt:ps "
    "pes:fa plt:mg pol:pl por:pt quy:qu ron:ro rus:ru sin:si slk:sk slv:sl spa:es "
    "srp:sr swe:sv swh:sw tam:ta tel:te tgl:tl tha:th tur:tr uig:ug ukr:uk urd:ur "
    "uzn:uz vie:vi wol:wo xho:xh zho:zh zsm:ms zul:zu".split()
)
# Scripts as parts of codes: "sr_Latn", "uz@cyrillic", "kat_Geor".
_TAGS = dict(
    pair.split(":")
    for pair in "arab:ARABIC armn:ARMENIAN beng:BENGALI cyrillic:CYRILLIC cyrl:CYRILLIC "
    "deva:DEVANAGARI ethi:ETHIOPIC geor:GEORGIAN grek:GREEK gujr:GUJARATI guru:GURMUKHI "
    "hang:HANGUL hans:CJK hant:CJK hebr:HEBREW khmr:KHMER knda:KANNADA laoo:LAO latin:LATIN "
    "latn:LATIN mlym:MALAYALAM mymr:MYANMAR orya:ORIYA sinh:SINHALA taml:TAMIL telu:TELUGU "
    "thai:THAI tibt:TIBETAN".split()
)
# The languages that a text may be in besides the two of its pair.
_OTHERS = "en de fr es it pt nl pl ru zh ja ar sv cs tr ro hu fi id vi".split()
# The bytes of a text that are looked at.
_MOST_BYTES = 400
# The texts that are looked at together: what is computed for them stays within the caches.
_MOST_TEXTS = 1024


def base_code(code):
    """Returns the code of a language without its region or script: `"pt_BR"` is `"pt"`."""
    code = re.split("[-_@]", code.lower())[0]
    return _SAME.get(code, code)


def scripts_of(code):
    """Returns the names of the scripts of a language, or `()` where it is none alone."""
    for part in re.split("[-_@]", code.lower())[1:]:
        if part in _TAGS:
            return (_TAGS[part],)
    return _SCRIPTS.get(base_code(code), ())


class LanguageScores:
    """How well texts agree with each of some languages, by py3langid's model.

    The same scores as of `py3langid`, for many texts at once.

    Args:
        codes: iterable of str. The languages besides some twenty others. Those that the model does
            not know are left out.

    Attributes:
        languages: list of str, without region and script.

    Call arguments:
        texts: list of str. Their first 400 bytes are looked at.

    Returns:
        float32 array `[len(texts), len(languages)]`: logarithms of probabilities but for a constant
        of the text.
    """

    def __init__(self, codes):
        model = _model()
        codes = dict.fromkeys((*map(base_code, codes), *_OTHERS))
        self.languages = [code for code in codes if code in model.nb_classes]
        # Two languages stand there twice, once for each of their scripts.
        columns = [i for i, code in enumerate(model.nb_classes) if code in self.languages]
        self._of_language = [
            [n for n, i in enumerate(columns) if model.nb_classes[i] == code]
            for code in self.languages
        ]
        self._features = np.asarray(model.nb_ptc)[:, columns].astype("float32")
        self._prior = np.asarray(model.nb_pc)[columns].astype("float32")
        self._rows = np.asarray(model.tk_row, "int64") << 8
        self._next = np.frombuffer(model.tk_nextmove, f"u{model.tk_nextmove.itemsize}")
        self._outputs = np.asarray(model.tk_output, "int64")

    def __call__(self, texts):
        starts = range(0, len(texts), _MOST_TEXTS)
        batches = [self._batch(texts[start : start + _MOST_TEXTS]) for start in starts]
        return np.concatenate([np.zeros((0, len(self.languages)), "float32"), *batches])

    def _batch(self, texts):
        encoded = [_encoded(text) for text in texts]
        order = np.argsort([-len(text) for text in encoded], kind="stable")
        lengths = np.array([len(encoded[i]) for i in order])
        width = max(lengths, default=0)
        padded = b"".join(encoded[i].ljust(width, b"\0") for i in order)
        columns = np.frombuffer(padded, "uint8").reshape(len(texts), width).T.copy()
        # All texts walk through the automaton together, a byte at a time; the longest come first.
        counts = len(texts) - np.searchsorted(lengths[::-1], np.arange(width), side="right")
        states, keys = np.zeros(len(texts), "int64"), [np.zeros(0, "int64")]
        for column, count in zip(columns, counts, strict=True):
            states = self._next[self._rows[states[:count]] + column[:count]]
            outputs = self._outputs[states]
            rows = np.flatnonzero(outputs >= 0)
            keys.append(rows * len(self._features) + outputs[rows])
        keys, repeats = np.unique(np.concatenate(keys), return_counts=True)
        rows, features = np.divmod(keys, len(self._features))
        weighted = self._features[features] * np.log1p(repeats, dtype="float32")[:, None]
        scores = np.tile(self._prior, (len(texts), 1))
        if len(rows):
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            scores[order[rows[starts]]] += np.add.reduceat(weighted, starts)
        return np.stack([scores[:, columns].max(axis=1) for columns in self._of_language], axis=1)


@functools.cache
def _model():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _encoded(text):
    text = text[:_MOST_BYTES]
    text = unicodedata.normalize("NFC", text.lower() if text.isupper() else text)
    return text.encode("utf-8", "surrogatepass")[:_MOST_BYTES]


def language_of(path):
    """Returns the code of the language that most lines of a text are in, str.

    Args:
        path: path of the text, whose first 10,000 lines are looked at.

    Raises:
        ImportError: py3langid is not installed.
        ValueError: no line has four words.
    """
    check_extra("The language of a text", "corpora", ("py3langid",))
    import py3langid

    lines = next(read_chunks(path, "text", 10_000), [])
    long_lines = [line for line in lines if len(line.split()) >= 4 or len(line) >= 12]
    if not long_lines:
        raise ValueError(f"{path} has no line that is long enough to show its language.")
    codes = [py3langid.classify(line)[0] for line in long_lines[:500]]
    return collections.Counter(codes).most_common(1)[0][0]
