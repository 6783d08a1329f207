"""One side of a tokenizer: a SentencePiece model, and the ids that the translation model knows its
pieces by.
"""

import os
import sys

import sentencepiece

from kformer.text.normalization import SPACE_SIGN, replace_all, valid_text

# Starting threads costs more than it gains on fewer texts.
_THREADED_BATCH = 64


def usable_cpus():
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Vocabulary:
    """Text to ids and back for one side.

    Most models use SentencePiece's own ids. A published model may have others (Marian's
    `vocab.json`, NLLB's shifted ids): `pieces` then lists every piece by its id, which gives the
    map from SentencePiece's ids (by the piece's string) and the way back, for pieces too that this
    SentencePiece model does not have. A text reaches such a piece where it is what SentencePiece
    leaves as one unknown run: a letter that only the target's model knows, say, in a source text.
    The models were trained on ids that were looked up so.

    Text is put together here and not by SentencePiece: from `surfaces`, what each id writes, one
    list for Python and for the graph. SentencePiece releases differ in how they join (the one
    inside tensorflow-text drops more leading spaces), and an id from a padded output layer would
    make them fail.

    Args:
        model: bytes, a serialised SentencePiece model.
        normalization: a `Normalization`.
        unknown_id: id of the unknown token.
        control_ids: ids that never come from text and write nothing.
        pieces: optional list of str, every piece in the order of its id. None means SentencePiece's
            own ids.

    Raises:
        ValueError: if the model cannot be read or the ids do not fit it.
    """

    def __init__(self, model, *, normalization, unknown_id, control_ids=(), pieces=None):
        self.model = bytes(model)
        self.normalization = normalization
        self.processor = load_sentencepiece(self.model)
        self.custom_pieces = None if pieces is None else tuple(pieces)
        self.pieces = model_pieces(self.processor) if pieces is None else self.custom_pieces
        self.unknown_id = unknown_id
        self.control_ids = tuple(sorted(set(control_ids)))
        self._check_ids()
        # By SentencePiece id, the id that the translation model knows; None if these are the same.
        self.id_map = self._map_ids()
        # Pieces that only `pieces` has, with their ids.
        self.foreign_pieces = self._find_foreign_pieces()
        # By id, the bytes that it writes; one more at the end, for ids outside of the vocabulary.
        self.surfaces = self._write_surfaces()
        self.leading_space_signs = self._count_leading_space_signs()

    def __len__(self):
        return len(self.pieces)

    def _check_ids(self):
        if len(set(self.pieces)) != len(self.pieces):
            seen = set()
            twice = next(piece for piece in self.pieces if piece in seen or seen.add(piece))
            raise ValueError(
                f"The vocabulary has the piece {twice!r} twice; each piece needs one id."
            )
        for piece in self.pieces:
            if valid_text(piece) != piece:
                raise ValueError(
                    f"The vocabulary has the piece {piece!r}, which is not valid Unicode text."
                )
        for token_id in (self.unknown_id, *self.control_ids):
            if not 0 <= token_id < len(self.pieces):
                raise ValueError(
                    f"The id {token_id} is outside of the vocabulary of {len(self.pieces)} pieces."
                )

    def _map_ids(self):
        processor, control_ids = self.processor, set(self.control_ids)
        own_controls = {i for i in range(len(processor)) if processor.is_control(i)}
        if self.custom_pieces is None:
            # Text must not reach a control id: where a model has such an id as an ordinary piece,
            # map it away.
            if control_ids - own_controls or self.unknown_id != processor.unk_id():
                ids = list(range(len(processor)))
            else:
                return None
        else:
            by_piece = {piece: i for i, piece in enumerate(self.pieces)}
            ids = [
                by_piece.get(processor.id_to_piece(i), self.unknown_id)
                for i in range(len(processor))
            ]
        ids[processor.unk_id()] = self.unknown_id
        return tuple(
            self.unknown_id if i in control_ids and n not in own_controls else i
            for n, i in enumerate(ids)
        )

    def _find_foreign_pieces(self):
        if self.custom_pieces is None:
            return {}
        own = set(model_pieces(self.processor))
        kept_out = {self.unknown_id, *self.control_ids}
        return {
            piece: i
            for i, piece in enumerate(self.pieces)
            if piece not in own and i not in kept_out
        }

    def _write_surfaces(self):
        processor = self.processor
        unknown = processor.decode([processor.unk_id()]).encode("utf-8")
        surfaces = []
        for token_id, piece in enumerate(self.pieces):
            own_id = processor.piece_to_id(piece)
            known = processor.id_to_piece(own_id) == piece
            if token_id in self.control_ids or (known and processor.is_control(own_id)):
                surface = b""
            elif token_id == self.unknown_id or (known and processor.is_unknown(own_id)):
                surface = unknown
            elif known and processor.is_byte(own_id):
                surface = bytes([int(piece[3:5], 16)])  # "<0x41>"
            else:
                surface = piece.encode("utf-8")
            surfaces.append(surface)
        return (*surfaces, unknown)

    def _count_leading_space_signs(self):
        # SentencePiece's Python interface does not show its normalizer settings; what they do to a
        # text does.
        probe = self.processor.normalize("x  x")
        if probe.endswith(SPACE_SIGN):
            raise ValueError(
                "A SentencePiece model that writes the space after the word is not supported."
            )
        if SPACE_SIGN * 2 not in probe:
            return sys.maxsize  # extra spaces are removed, thus all in front too
        return 1 if probe.startswith(SPACE_SIGN) else 0

    def encode(self, texts, num_threads=None):
        """Ids of each text, without special tokens: list of list of int from a list of str or
        bytes.
        """
        before = self.normalization.before
        texts = [replace_all(valid_text(text), before) for text in texts]
        if num_threads is None:
            num_threads = usable_cpus() if len(texts) >= _THREADED_BATCH else 1
        rows = self.processor.encode(texts, out_type=int, num_threads=num_threads)
        if self.id_map is not None:
            id_map = self.id_map
            rows = [[id_map[i] for i in row] for row in rows]
        if self.foreign_pieces:
            self._look_up_unknown(texts, rows)
        return rows

    def _look_up_unknown(self, texts, rows):
        """Writes into `rows` the ids of foreign pieces, where the unknown id stands for one."""
        numbers = [n for n, row in enumerate(rows) if self.unknown_id in row]
        pieces = self.processor.encode([texts[n] for n in numbers], out_type=str)
        find = self.foreign_pieces.get
        for n, named in zip(numbers, pieces, strict=True):
            rows[n] = [
                find(piece, i) if i == self.unknown_id else i
                for i, piece in zip(rows[n], named, strict=True)
            ]

    def decode(self, ids):
        """The text that one sequence of ids writes; an id outside of the vocabulary writes what
        unknown writes.
        """
        surfaces, size = self.surfaces, len(self.pieces)
        text = b"".join([surfaces[i if 0 <= i < size else size] for i in ids]).decode(
            "utf-8", "replace"
        )
        if self.leading_space_signs == 1:
            text = text.removeprefix(SPACE_SIGN)
        elif self.leading_space_signs:
            text = text.lstrip(SPACE_SIGN)
        return replace_all(text.replace(SPACE_SIGN, " "), self.normalization.after)

    def tokens(self, ids):
        """The pieces of one sequence of ids, as str."""
        size = len(self.pieces)
        return [self.pieces[i if 0 <= i < size else self.unknown_id] for i in ids]


def load_sentencepiece(model):
    """A `SentencePieceProcessor` from serialised bytes; ValueError if they are none."""
    try:
        if not model:
            raise RuntimeError
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise ValueError(
            f"These {len(model)} bytes are not a SentencePiece model; train or copy it again."
        ) from None


def model_pieces(processor):
    """Every piece of a SentencePiece model, by its id."""
    return tuple(processor.id_to_piece(i) for i in range(len(processor)))
