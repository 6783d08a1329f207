"""One side of a tokenizer: a SentencePiece model, and the translation model's ids of its pieces."""

import contextlib
import os
import re
import sys

import sentencepiece

from kformer.text.added_words import AddedWords
from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text
from kformer.text.word_splitter import WordSplitter

# Starting threads costs more than it gains on fewer texts.
_THREADED_BATCH = 64
# The words of a text of tokens; a graph splits them at the same spaces.
words = re.compile(r"[^ \t\n\v\f\r]+").findall


class Vocabulary:
    """Text to ids and back for one side.

    Most models use SentencePiece's own ids. A published model may have others (Marian's
    `vocab.json`, NLLB's shifted ids). Then `pieces` lists every piece by its id. It maps
    SentencePiece's ids to the model's by the piece's string, and back, and may have pieces that the
    SentencePiece model lacks. Such a piece is found if SentencePiece returns it as one unknown
    piece, such as a letter of the target language in a source text. The published models were
    trained on ids that were looked up in this way.

    Ids are decoded here and not by SentencePiece: `surfaces` has the bytes of each id, one list for
    Python and for the graph. SentencePiece releases join pieces differently (the one inside
    tensorflow-text drops more leading spaces), and fail on an id from a padded output layer.

    Args:
        model: bytes. A serialized SentencePiece model.
        pieces: list of str or `None`. Every piece in the order of its id; `None` means
            SentencePiece's own ids.
        control_ids: sequence of int. Ids that never come from text and are decoded to nothing.
        normalization: `Normalization`.
        unknown_id: int. The id of the unknown token.
        added_words: dict or `None`, default `None`. The settings of `AddedWords`.
        splitter: tuple or `None`, default `None`. The arguments of a `WordSplitter`, which comes
            before a vocabulary of tokens.

    Raises:
        ValueError: the model cannot be read, or the ids do not fit it.
    """

    def __init__(
        self,
        model,
        pieces,
        control_ids,
        normalization,
        unknown_id,
        added_words=None,
        splitter=None,
    ):
        self.splitter = None if splitter is None else WordSplitter(*splitter)
        self.model = bytes(model)
        self.normalization = normalization
        self.processor = load_sentencepiece(self.model)
        own_pieces = model_pieces(self.processor)
        self.custom_pieces = None if pieces is None else tuple(pieces)
        self.pieces = own_pieces if pieces is None else self.custom_pieces
        self.unknown_id = unknown_id
        self.control_ids = tuple(sorted(set(control_ids)))
        ids = {}
        for i, piece in enumerate(self.pieces):
            is_new = ids.setdefault(piece, i) == i
            if not is_new or valid_text(piece) != piece:
                fault = ", which is not valid Unicode text" if is_new else " twice"
                raise ValueError(f"The vocabulary has the piece {piece!r}{fault}.")
        self.check_ids((self.unknown_id, *self.control_ids))
        added = AddedWords(added_words, ids, self.processor) if added_words else None
        self.added_words = added
        # The translation model's id for each SentencePiece id; None if both are the same.
        self.id_map = self._map_ids(ids)
        # The ids of escaped words, for texts of tokens.
        self.word_ids = {}
        if normalization.name == "tokens":
            before, signs = normalization.before, {unknown_id, *self.control_ids}
            self.word_ids = {replace_all(t, before): i for t, i in ids.items() if i not in signs}
        # Pieces that only `pieces` has, with their ids.
        known = {*own_pieces, *(self.pieces[i] for i in (unknown_id, *self.control_ids))}
        known |= {*(added.ids if added else ())}
        self.foreign_pieces = {piece: i for piece, i in ids.items() if piece not in known}
        if self.word_ids:
            self.foreign_pieces = {}
        self.space_id = ids.get(SPACE_SIGN, unknown_id)
        # The bytes that each id writes; at the end those of all ids outside of the vocabulary.
        self.surfaces = self._write_surfaces()
        # SentencePiece's Python interface does not expose its normalizer settings, so a text is
        # normalized to see them.
        probe = self.processor.normalize("x  x")
        if probe.endswith(SPACE_SIGN):
            raise ValueError("The SentencePiece model writes spaces after words: not supported.")
        self.leading_space_signs = 1 if probe.startswith(SPACE_SIGN) else 0
        if SPACE_SIGN * 2 not in probe:  # Extra spaces are removed, including all leading ones.
            self.leading_space_signs = sys.maxsize

    def __len__(self):
        return len(self.pieces)

    def check_ids(self, ids, name="id"):
        """Checks that ids are those of pieces; a message calls them by `name`."""
        size = len(self.pieces)
        for i in ids:
            if not 0 <= i < size:
                raise ValueError(f"The {name} {i} is outside of the vocabulary of {size} pieces.")

    def _map_ids(self, ids):
        processor, control_ids = self.processor, set(self.control_ids)
        numbers = range(len(processor))
        own_controls = {n for n in numbers if processor.is_control(n)}
        if self.custom_pieces is not None:
            id_map = [ids.get(processor.id_to_piece(n), self.unknown_id) for n in numbers]
        # No text may become a control id: where such an id is an ordinary piece of SentencePiece,
        # the unknown id replaces it.
        elif control_ids - own_controls or self.unknown_id != processor.unk_id():
            id_map = list(numbers)
        else:
            return None
        id_map[processor.unk_id()] = self.unknown_id
        return tuple(
            self.unknown_id if i in control_ids and n not in own_controls else i
            for n, i in enumerate(id_map)
        )

    def _write_surfaces(self):
        processor = self.processor
        unknown = processor.decode([processor.unk_id()]).encode("utf-8")
        surfaces, escaped = [], {i: word for word, i in self.word_ids.items()}
        for token_id, piece in enumerate(self.pieces):
            number = processor.piece_to_id(piece)
            is_known = processor.id_to_piece(number) == piece
            if token_id in self.control_ids or (is_known and processor.is_control(number)):
                surfaces.append(b"")
            elif token_id == self.unknown_id or (is_known and processor.is_unknown(number)):
                surfaces.append(unknown)
            elif is_known and processor.is_byte(number):
                surfaces.append(bytes([int(piece[3:5], 16)]))  # "<0x41>"
            elif token_id in escaped:
                surfaces.append((SPACE_SIGN + escaped[token_id]).encode("utf-8"))
            else:
                surfaces.append(piece.encode("utf-8"))
        return (*surfaces, unknown)

    def encode(self, texts, num_threads=None):
        """Returns the ids of each text, without special tokens.

        Args:
            texts: iterable of str or bytes.
            num_threads: int or `None`, default `None`. `None` chooses by the number of texts.

        Returns:
            list of list of int.
        """
        before = self.normalization.before
        texts = map(valid_text, texts)
        if self.splitter is not None:
            texts = map(self.splitter.split, texts)
        texts = [replace_all(text, before) for text in texts]
        if (added := self.added_words) is None:
            return self._segment(texts, num_threads)
        rows = [added.split(text) for text in texts]
        segments = [part for parts in rows for part in parts if isinstance(part, str)]
        segments = iter(self._segment(segments, num_threads))
        space = [self.space_id]
        return [
            [
                token_id
                for i, part in enumerate(parts)
                for token_id in (
                    next(segments) + space * added.writes_space(parts, i)
                    if isinstance(part, str)
                    else [part]
                )
            ]
            for parts in rows
        ]

    def _segment(self, texts, num_threads):
        if self.normalization.name == "tokens":
            get_id, unknown = self.word_ids.get, self.unknown_id
            return [[get_id(word, unknown) for word in words(text)] for text in texts]
        if num_threads is None:
            num_threads = 1
            if len(texts) >= _THREADED_BATCH:
                # The CPU cores that this process may use, where the system knows them.
                cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
                num_threads = len(cores)
        rows = self.processor.encode(texts, out_type=int, num_threads=num_threads)
        if (id_map := self.id_map) is not None:
            rows = [[id_map[i] for i in row] for row in rows]
        if self.foreign_pieces:
            # SentencePiece returns these pieces as unknown ones.
            numbers = [n for n, row in enumerate(rows) if self.unknown_id in row]
            pieces = self.processor.encode([texts[n] for n in numbers], out_type=str)
            get_id = self.foreign_pieces.get
            for n, names in zip(numbers, pieces, strict=True):
                rows[n] = [
                    get_id(name, i) if i == self.unknown_id else i
                    for i, name in zip(rows[n], names, strict=True)
                ]
        return rows

    def decode(self, ids):
        """Returns the text of a sequence of ids; those outside of the vocabulary are unknown."""
        surfaces, size = self.surfaces, len(self.pieces)
        text = b"".join([surfaces[i if 0 <= i < size else size] for i in ids])
        text = text.decode("utf-8", "replace")
        if self.leading_space_signs == 1:
            text = text.removeprefix(SPACE_SIGN)
        elif self.leading_space_signs:
            text = text.lstrip(SPACE_SIGN)
        text = replace_all(text.replace(SPACE_SIGN, " "), self.normalization.after)
        return text if self.splitter is None else self.splitter.join(text)

    def tokens(self, ids):
        """Returns the pieces of one sequence of ids, as str."""
        size = len(self.pieces)
        return [self.pieces[i if 0 <= i < size else self.unknown_id] for i in ids]


def load_sentencepiece(model):
    """Returns a `SentencePieceProcessor` of serialized bytes; other bytes raise `ValueError`."""
    with contextlib.suppress(RuntimeError):
        if model:
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    raise ValueError(f"These {len(model)} bytes are not a SentencePiece model; copy it again.")


def model_pieces(processor):
    """Returns the pieces of a SentencePiece model by their ids, tuple of str."""
    return tuple(processor.id_to_piece(i) for i in range(len(processor)))
