"""Translates with the files of this folder; needs numpy, onnxruntime and sentencepiece alone.

Example: `python translator.py < texts.txt`, or `from translator import Translator`."""

import json
import pathlib
import re
import sys

import numpy as np
import sentencepiece

SPACE_SIGN = "\u2581"


class Translator:
    """A translator: texts in, translations out, as `kformer.Translator` has them.

    Args:
        folder: path, default that of this file. The exported folder.
    """

    def __init__(self, folder=None):
        import onnxruntime

        folder = pathlib.Path(folder or __file__).resolve()
        folder = folder if folder.is_dir() else folder.parent
        self.metadata = json.loads((folder / "kformer.json").read_text(encoding="utf-8"))
        self.text = self.metadata["text"]
        if self.text is None:
            raise ValueError(
                "This folder holds no search, or its texts are split by another tokenizer: "
                "tokenize and search by encoder.onnx and decoder_step.onnx."
            )
        sides = self.text["sides"]
        self.vocabularies = {name: Vocabulary(folder, self.text, sides[name]) for name in sides}
        options = onnxruntime.SessionOptions()
        self.session = onnxruntime.InferenceSession(
            str(folder / "search.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, texts, target_language="", hypotheses=1, prefixes=None):
        """Translates each text.

        Args:
            texts: list of str.
            target_language: str, default "", for the translator's own. A code.
            hypotheses: int, default 1. With more than one, each result has as many `hypotheses`, a
                list of dicts with `translation` and `score`.
            prefixes: list of str, default `None`. How each translation begins.

        Returns:
            List of dicts with `translation`, `score` (the sum of log-probabilities) and
            `truncated`.
        """
        if prefixes is None:
            return [self.translate(text, target_language, hypotheses) for text in texts]
        pairs = zip(texts, prefixes, strict=True)
        return [self.translate(text, target_language, hypotheses, begin) for text, begin in pairs]

    def translate(self, text, target_language="", hypotheses=1, prefix=""):
        """Translates one text; arguments as of a call. Returns a dict."""
        languages, search = self.metadata["languages"], self.metadata["search"]
        if target_language not in languages:
            codes = ", ".join(filter(None, languages)) or "none: leave it out"
            raise ValueError(f"The language {target_language!r} is unknown; there are {codes}.")
        if not 1 <= hypotheses <= search["beam_size"]:
            raise ValueError(
                f"hypotheses is {hypotheses}, but must be between 1 and {search['beam_size']}, the "
                "width of the beam."
            )
        language, most = languages[target_language], search["max_length"]
        prefix_ids = self.vocabularies["target"].encode(prefix)
        others = search["shortlist"] and {*prefix_ids} - {*search["shortlist"]}
        if self.text["unknown_id"] in prefix_ids or others:
            raise ValueError(
                f"The vocabulary, or its shortlist, cannot write the prefix {prefix!r}."
            )
        prefix_ids = [*language["prefix_ids"], *prefix_ids]
        if len(prefix_ids) > most:
            raise ValueError(
                f"The prefix {prefix!r} has {len(prefix_ids)} tokens, but a translation has at "
                f"most {most}."
            )
        ids, truncated = self.source_ids(text, language)
        pairs = [("", 0.0)] * hypotheses
        if ids:
            ratio = min(language["length_ratio"], most)
            limit = int(len(ids) * ratio) + language["length_offset"]
            limit = min(max(limit, language["least_limit"], len(prefix_ids)), most)
            inputs = {
                "source_ids": np.array([ids]),
                "limits": np.array([limit]),
                "prefix": np.array(prefix_ids, "int64"),
                "length_penalty": np.array(language["length_penalty"], "float32"),
                "n_best": np.array(hypotheses),
            }
            rows, scores = (values[0] for values in self.session.run(None, inputs))
            decode = self.vocabularies["target"].decode
            rows = map(decode, rows.tolist()[:hypotheses])
            pairs = zip(rows, scores.tolist(), strict=False)
        results = [{"translation": text, "score": score} for text, score in pairs]
        result = {**results[0], "truncated": truncated}
        return result if hypotheses == 1 else {**result, "hypotheses": results}

    def source_ids(self, text, language=None):
        """The ids that the model reads, and whether the text was cut; none for an empty text."""
        language = self.metadata["languages"][""] if language is None else language
        text, truncated = _cut(_valid(text), self.text["max_bytes"])
        prefix, suffix = language["source_prefix"], language["source_suffix"]
        tags, least = self.text["tags"], len(prefix) + len(suffix)
        tag = re.match(r"(?s)>>.*?<<", text) if self.text["has_tags"] else None
        if tag and (tag[0] in tags or not self.text["only_known_tags"]):
            prefix, text = [tags.get(tag[0], self.text["unknown_id"])], text[tag.end() :]
            if not language["source_prefix"]:
                least += tag[0] in tags
        ids = [*prefix, *self.vocabularies["source"].encode(text), *suffix]
        if len(ids) <= least:
            return [], truncated
        most = self.metadata["max_length"]
        if len(ids) > most:
            return [*ids[: most - len(suffix)], *suffix], True
        return ids, truncated


class Vocabulary:
    """Text to ids and back for one side."""

    def __init__(self, folder, text, side):
        self.before, self.after, self.unknown = text["before"], text["after"], text["unknown_id"]
        self.strips, self.words = side["leading_space_signs"], side["added_words"]
        self.is_words = text["is_words"]
        model = (folder / "tokenizer" / side["model"]).read_bytes()
        self.processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        own = [processor.id_to_piece(i) for i in range(len(processor))]
        self.pieces = own
        if side["pieces"] is not None:
            path = folder / "tokenizer" / side["pieces"]
            self.pieces = json.loads(path.read_text(encoding="utf-8"))
        controls, ids = set(side["control_ids"]), {p: i for i, p in enumerate(self.pieces)}
        # SentencePiece's ids to the model's: no text becomes a control id.
        self.id_map = [
            self.unknown
            if processor.is_unknown(n) or (i in controls and not processor.is_control(n))
            else i
            for n, i in enumerate(ids.get(piece, self.unknown) for piece in own)
        ]
        known = {*own, *(self.pieces[i] for i in (self.unknown, *controls))}
        known |= {*(self.words["ids"] if self.words else ())}
        self.foreign = {piece: i for piece, i in ids.items() if piece not in known}
        if self.is_words:
            signs = {self.unknown, *controls}
            words = {piece: i for piece, i in ids.items() if i not in signs}
            self.foreign, self.word_ids = {}, {self._escape(p): i for p, i in words.items()}
        self.surfaces = [self._surface(i, controls) for i in range(len(self.pieces))]
        if self.words:
            self.patterns = {
                name: re.compile(f"({'|'.join(map(re.escape, words))})")
                for name, words in self.words["patterns"].items()
            }
            self.space_id = ids.get(SPACE_SIGN, self.unknown)

    def _surface(self, token_id, controls):
        piece, processor = self.pieces[token_id], self.processor
        number = processor.piece_to_id(piece)
        is_own = processor.id_to_piece(number) == piece
        if token_id in controls or (is_own and processor.is_control(number)):
            return b""
        if token_id == self.unknown or (is_own and processor.is_unknown(number)):
            return processor.decode([processor.unk_id()]).encode()
        if is_own and processor.is_byte(number):
            return bytes([int(piece[3:5], 16)])
        sign = SPACE_SIGN + self._escape(piece) if self.is_words else piece
        return sign.encode()

    def _escape(self, text):
        for literal, replacement in self.before:
            text = text.replace(literal, replacement)
        return text

    def encode(self, text):
        """The ids of a text, without special tokens."""
        text = self._escape(text)
        if not self.words:
            return self._segment(text)
        parts, ids = self._split(text), []
        for i, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._segment(part)
                ids += [self.space_id] * self._writes_space(parts, i)
        return ids

    def _segment(self, text):
        if self.is_words:
            get = self.word_ids.get
            return [get(word, self.unknown) for word in re.findall(r"[^ \t\n\v\f\r]+", text)]
        ids = [self.id_map[n] for n in self.processor.encode(text)]
        if not self.foreign or self.unknown not in ids:
            return ids
        pieces = self.processor.encode(text, out_type=str)
        return [
            self.foreign.get(piece, i) if i == self.unknown else i
            for i, piece in zip(ids, pieces, strict=True)
        ]

    def _normalize(self, text):
        text = self.processor.normalize(f"0{text}0").replace(SPACE_SIGN, " ")
        return text.strip(" ")[1:-1]

    def _split(self, text):
        parts = [text]
        for name, pattern in self.patterns.items():
            split = []
            for part in parts:
                if isinstance(part, int):
                    split.append(part)
                    continue
                pieces = pattern.split(part if name == "raw" else self._normalize(part))
                pieces = pieces if len(pieces) > 1 else [part]
                ids = self.words["ids"]
                split += [ids[piece] if i % 2 else piece for i, piece in enumerate(pieces)]
            parts = split
        return parts

    def _writes_space(self, parts, index):
        words, follower = self.words, parts[index + 1] if index + 1 < len(parts) else None
        if not words["keeps_spaces"] or follower is None or follower in words["lstrip"]:
            return False
        text = self._normalize(parts[index])
        is_stripped = index and parts[index - 1] in words["rstrip"] and not text.strip(" ")
        return text.endswith(" ") and not is_stripped

    def decode(self, ids):
        """The text of ids."""
        size, unknown = len(self.surfaces), self.surfaces[self.unknown]
        text = b"".join(self.surfaces[i] if i < size else unknown for i in ids)
        text = text.decode("utf-8", "replace")
        if self.strips:
            text = text.removeprefix(SPACE_SIGN) if self.strips == 1 else text.lstrip(SPACE_SIGN)
        text = text.replace(SPACE_SIGN, " ")
        for literal, replacement in self.after:
            text = text.replace(literal, replacement)
        return text


def _valid(text):
    """A text with three U+FFFD for each lone surrogate, as for its three invalid bytes."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _cut(text, bound):
    """A text cut to a number of bytes where a code point begins, and whether it was cut."""
    data = text.encode("utf-8")
    if len(data) <= bound:
        return text, False
    while data[bound] & 0xC0 == 0x80:
        bound -= 1
    return data[:bound].decode("utf-8"), True


if __name__ == "__main__":
    # A line ends at "\n" alone, whatever the locale.
    sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")
    sys.stdout.reconfigure(encoding="utf-8")
    translator = Translator()
    for line in sys.stdin:
        text = line.removesuffix("\n").removesuffix("\r")
        print(translator.translate(text)["translation"], flush=True)
