"""The tokenizer's folder: round trips, atomic writing, everything that `load` refuses, imported
models.
"""

import json
import os
import pathlib
import random
import shutil

import pytest

from kformer.text import Tokenizer
from tests.text_samples import corpus, tricky_texts

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def joint():
    return Tokenizer.train(texts=corpus(), vocabulary_size=500, model_type="unigram")


@pytest.fixture(scope="module")
def separate():
    return Tokenizer.train(
        texts=corpus(),
        target_texts=corpus(seed=4),
        vocabulary_size=(500, 450),
        normalization="identity",
        model_type="unigram",
    )


@pytest.fixture
def folder(joint, tmp_path):
    joint.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def shuffled(tokenizer, side="source", rotate=100):
    pieces = list(tokenizer.vocabulary(side).pieces)
    return pieces[rotate:] + pieces[:rotate]


def imported(tokenizer):
    """Two models under one vocabulary with ids of its own, as Marian's are."""
    source, target = (tokenizer.vocabulary(side).pieces for side in ("source", "target"))
    pieces = [
        "</s>",
        "<unk>",
        *sorted({*source, *target} - {"</s>", "<unk>", "<pad>"}),
        ">>zh<<",
        "<pad>",
    ]
    ids = {piece: i for i, piece in enumerate(pieces)}
    return Tokenizer.from_sentencepiece(
        tokenizer.sentencepiece_model("source"),
        tokenizer.sentencepiece_model("target"),
        vocabulary=ids,
        pad_id=ids["<pad>"],
        start_id=ids["<pad>"],
        end_id=ids["</s>"],
        unknown_id=ids["<unk>"],
        source_prefix=[ids[">>zh<<"]],
        control_ids=[ids[">>zh<<"]],
    )


def assert_same(first, second):
    texts = tricky_texts(300)
    for side in ("source", "target"):
        ids = first.tokenize(texts, side=side, special_tokens=True)
        assert second.tokenize(texts, side=side, special_tokens=True) == ids
        assert second.detokenize(ids, side=side) == first.detokenize(ids, side=side)
    for name in (
        "special_ids",
        "normalization",
        "vocabulary_size",
        "target_vocabulary_size",
        "joint",
    ):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("kind", ["joint", "separate", "imported"])
def test_save_and_load(joint, separate, tmp_path, kind):
    tokenizer = {"joint": joint, "separate": separate, "imported": imported(separate)}[kind]
    tokenizer.save(tmp_path / "runs" / "tokenizer")
    loaded = Tokenizer.load(str(tmp_path / "runs" / "tokenizer"))
    assert_same(tokenizer, loaded)
    names = sorted(path.suffix for path in (tmp_path / "runs" / "tokenizer").iterdir())
    assert (
        names
        == {
            "joint": [".json", ".model"],
            "separate": [".json", ".model", ".model"],
            "imported": [".json", ".json", ".model", ".model"],
        }[kind]
    )
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tokenizer"]
    loaded.save(tmp_path / "again")
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / "runs" / "tokenizer" / path.name).read_bytes()


def test_what_tokenizer_json_says(folder):
    config = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (model,) = folder.glob("*.model")
    side = {
        "model": model.name,
        "vocabulary": None,
        "prefix": [],
        "suffix": [3],
        "control_ids": [0, 2, 3],
    }
    assert 0 < config.pop("checksum") < 1 << 32
    assert config == {
        "format_version": 1,
        "kind": "sentencepiece",
        "normalization": "nmt_nfkc",
        "special_ids": {"pad": 0, "unknown": 1, "start": 2, "end": 3},
        "source": side,
        "target": side,
    }


# ---- writing ----


def test_saving_over_a_tokenizer_leaves_no_old_file_and_no_other_alone(folder, separate):
    (folder / "notes.txt").write_text("mine")
    separate.save(folder)
    assert_same(Tokenizer.load(folder), separate)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".model", ".model", ".txt"]


def test_saving_removes_what_a_power_cut_left(folder, separate):
    """The new `tokenizer.json` had reached the disk, the removal of the old files not."""
    left = [folder / name for name in ("sentencepiece-0a1b2c3d.model", "vocabulary-0a1b2c3d.json")]
    mine = folder / "sentencepiece-mine.model"
    for path in (*left, mine):
        path.write_bytes(b"left")
    separate.save(folder)
    assert not any(path.exists() for path in left) and mine.exists()


@pytest.mark.parametrize("step", range(1, 4))
def test_interrupted_replacement_leaves_the_former_tokenizer(
    folder, joint, separate, monkeypatch, step
):
    calls, replace = [], os.replace

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == step:
            raise KeyboardInterrupt
        replace(*arguments)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        separate.save(folder)
    monkeypatch.undo()
    assert_same(Tokenizer.load(folder), joint)
    assert not list(folder.glob(".*"))
    separate.save(folder)
    assert_same(Tokenizer.load(folder), separate)


def test_interrupted_first_writing_leaves_nothing(tmp_path, joint, monkeypatch):
    write = pathlib.Path.write_bytes

    def interrupted(path, content):
        if path.name == "tokenizer.json":
            raise KeyboardInterrupt
        return write(path, content)

    monkeypatch.setattr(pathlib.Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        joint.save(tmp_path / "tokenizer")
    assert not list(tmp_path.iterdir())


def test_saving_onto_a_file_is_an_error(tmp_path, joint):
    (tmp_path / "tokenizer").write_text("a file")
    with pytest.raises(ValueError, match="a file is there; choose another folder"):
        joint.save(tmp_path / "tokenizer")


# ---- what load refuses ----


def edit(folder, change):
    config = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config.pop("checksum", None)
    change(config)
    (folder / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(format_version=2),
            "has format version 2, and this kformer reads format versions up to 1 of a tokenizer",
        ),
        (lambda c: c.pop("format_version"), "its format_version is None"),
        (
            lambda c: c.update(format_version=True),
            "its format_version is True",
        ),
        (lambda c: c.update(kind="words"), "has the kind 'words'"),
        (lambda c: c.update(languages=["de"]), "'languages' must be an object"),
        (
            lambda c: c.update(languages={"de": "5"}, language_places={}),
            "'de' must be a whole number, not '5'",
        ),
        (lambda c: c.update(languages={"de": 5}), "'language_places' must be an object, not None"),
        (
            lambda c: c.update(languages={"de": 5}, language_places={"source": "x"}),
            "'source' must be a list, not 'x'",
        ),
        (
            lambda c: c.update(languages={"de": 5}, language_places={"source": [1]}),
            "A language place must be one of .* but 1 was given",
        ),
        (
            lambda c: c.update(languages={"de": 500}, language_places={"target": ["start"]}),
            "The language id 500 is outside",
        ),
        (
            lambda c: c.update(language_tags=1),
            "'language_tags' must be true, false or 'known', not 1",
        ),
        (
            lambda c: c.update(normalization="nfd"),
            "normalization must be one of .* but 'nfd' was given",
        ),
        (lambda c: c.update(source=[]), "'source' must be an object"),
        (lambda c: c["special_ids"].pop("end"), "'end' must be a whole number"),
        (
            lambda c: c["special_ids"].update(end=500),
            "special source id 500 is outside of the vocabulary of 500",
        ),
        (lambda c: c["special_ids"].update(unknown=-1), "The id -1 is outside"),
        (
            lambda c: c["target"].update(suffix=[3, 10**6]),
            "special target id 1000000 is outside of the vocabulary",
        ),
        (
            lambda c: c["target"].update(suffix=["3"]),
            "'suffix' must be a list of whole numbers",
        ),
        (lambda c: c["target"].update(control_ids=[77777]), "The id 77777 is outside"),
        (
            lambda c: c["source"].update(model="../../secret"),
            "only plain names of files in the folder",
        ),
        (
            lambda c: c["source"].update(model="/etc/hostname"),
            "only plain names of files in the folder",
        ),
        (lambda c: c["source"].update(model=".."), "only plain names of files in the folder"),
        (
            lambda c: c["source"].update(vocabulary="tokenizer.json"),
            "holds dict where a JSON list should be",
        ),
        (lambda c: c["source"].update(model="tokenizer.json"), "are not a SentencePiece model"),
    ],
)
def test_load_refuses(folder, change, message):
    edit(folder, change)
    with pytest.raises(ValueError, match=message) as error:
        Tokenizer.load(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_load_refuses_malformed_json(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"is not valid JSON|where a JSON object should be"):
        Tokenizer.load(folder)


def test_load_names_missing_files(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no tokenizer folder .*nowhere"):
        Tokenizer.load(tmp_path / "nowhere")
    (model,) = folder.glob("*.model")
    model.unlink()
    with pytest.raises(FileNotFoundError, match=f"has no file '{model.name}'"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no file 'tokenizer.json'"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("kind", ["joint", "imported"])
def test_a_flipped_bit_is_refused_or_changes_nothing(joint, separate, tmp_path, kind):
    tokenizer = {"joint": joint, "imported": imported(separate)}[kind]
    tokenizer.save(tmp_path)
    generator, text = random.Random(0), tricky_texts(3)
    expected = tokenizer.tokenize(text, special_tokens=True)
    for path in sorted(tmp_path.iterdir()):
        content = path.read_bytes()
        for _ in range(60):
            flipped, bit = bytearray(content), generator.randrange(8 * len(content))
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                found = Tokenizer.load(tmp_path)
            except (ValueError, FileNotFoundError) as error:
                assert str(tmp_path) in str(error) and "\n" not in str(error)
            else:
                assert path.name == "tokenizer.json"
                assert found.writes_like(tokenizer) and found.languages == tokenizer.languages
                assert found.tokenize(text, special_tokens=True) == expected
        path.write_bytes(content)
    Tokenizer.load(tmp_path)


def test_an_edited_configuration_needs_no_checksum(folder):
    """Whoever edits it takes the checksum away."""
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    edited = text.replace('"start": 2', '"start": 3')
    (folder / "tokenizer.json").write_text(edited, encoding="utf-8")
    with pytest.raises(ValueError, match="damaged or was edited.*remove its key 'checksum'"):
        Tokenizer.load(folder)
    edit(folder, lambda config: config["special_ids"].update(start=3))
    assert Tokenizer.load(folder).start_id == 3


@pytest.mark.parametrize("content", [b"", b"x", b"nonsense" * 50])
def test_load_refuses_a_broken_model(folder, content):
    (model,) = folder.glob("*.model")
    model.write_bytes(content or model.read_bytes()[:5000])
    with pytest.raises(ValueError, match="does not match the digest in its name"):
        Tokenizer.load(folder)
    model.rename(folder / "other.model")
    for side in ("source", "target"):
        edit(folder, lambda config, side=side: config[side].update(model="other.model"))
    with pytest.raises(ValueError, match="are not a SentencePiece model"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("pattern", ["*.model", "tokenizer.json"])
def test_load_follows_no_link_out_of_the_folder(folder, tmp_path, pattern):
    (path,) = folder.glob(pattern)
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(ValueError, match="is a link that leads out of"):
        Tokenizer.load(folder)
    path.unlink()
    path.symlink_to(path.name)  # a loop
    with pytest.raises((ValueError, FileNotFoundError), match="folder"):
        Tokenizer.load(folder)


def test_links_to_the_folder_and_inside_it_are_fine(folder, tmp_path, joint):
    (model,) = folder.glob("*.model")
    model.rename(folder / "kept")
    model.symlink_to("kept")
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert_same(Tokenizer.load(tmp_path / "link"), joint)


def test_a_copied_folder_is_the_same_tokenizer(folder, tmp_path, joint):
    shutil.copytree(folder, tmp_path / "copy")
    assert_same(Tokenizer.load(tmp_path / "copy"), joint)


# ---- imported models ----


def test_ids_of_an_imported_vocabulary(separate):
    tokenizer = imported(separate)
    assert tokenizer.joint
    assert tokenizer.pad_id == tokenizer.start_id == tokenizer.vocabulary_size - 1
    assert (tokenizer.end_id, tokenizer.unknown_id) == (0, 1)
    texts = [*corpus(50), "</s> <pad> >>zh<<", "人人"]
    for side in ("source", "target"):
        own = separate.tokenize(texts, side=side)
        ids = tokenizer.tokenize(texts, side=side)
        pieces = [separate.tokens(row, side=side) for row in own]
        assert [tokenizer.tokens(row, side=side) for row in ids] == pieces
        assert ids != own
        # The other side's pieces are in the vocabulary too, and are written just the same.
        assert (
            tokenizer.detokenize(ids, side="target")
            == tokenizer.detokenize(ids, side="source")
            == texts
        )
    zh = tokenizer.vocabulary_size - 2
    assert tokenizer.tokenize("人", special_tokens=True)[0] == zh
    assert tokenizer.tokenize("人", side="target", special_tokens=True)[-1] == tokenizer.end_id
    assert tokenizer.detokenize([zh, *tokenizer.tokenize("人"), 0]) == "人"


def test_piece_without_an_id_is_unknown(joint):
    pieces = [piece for piece in shuffled(joint) if piece not in ("\u2581dog", "d", "<0x64>")]
    tokenizer = Tokenizer.from_sentencepiece(
        joint.sentencepiece_model(),
        vocabulary=pieces,
        pad_id=pieces.index("<pad>"),
        unknown_id=pieces.index("<unk>"),
        start_id=pieces.index("<s>"),
        end_id=pieces.index("</s>"),
    )
    whole = joint.tokens(joint.tokenize("the dog"))
    found = tokenizer.tokens(tokenizer.tokenize("the dog"))
    assert found == [piece if piece in pieces else "<unk>" for piece in whole]
    assert "<unk>" in found


def test_text_never_reaches_a_control_id_of_an_imported_model(joint):
    # Here an ordinary piece of the model is declared a control id: text that has it becomes unknown
    # instead.
    piece = joint.tokenize("the")[0]
    for vocabulary in (None, list(joint.vocabulary().pieces)):
        tokenizer = Tokenizer.from_sentencepiece(
            joint.sentencepiece_model(),
            vocabulary=vocabulary,
            control_ids=[piece],
            pad_id=0,
            unknown_id=1,
            start_id=2,
            end_id=3,
        )
        assert piece not in tokenizer.tokenize("the the")
        assert tokenizer.unknown_id in tokenizer.tokenize("the the")
        assert tokenizer.detokenize([piece]) == ""


def test_from_sentencepiece_reads_a_file_and_the_models_own_ids(joint, tmp_path):
    (tmp_path / "spm.model").write_bytes(joint.sentencepiece_model())
    tokenizer = Tokenizer.from_sentencepiece(tmp_path / "spm.model")
    assert tokenizer.special_ids == joint.special_ids
    assert tokenizer.normalization == "model"
    assert tokenizer.tokenize("  the dog") == joint.tokenize("the dog")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": ["a", "b"]}, "has no pad_id of its own; pass pad_id"),
        ({"vocabulary": {"a": 0, "b": 2}}, "each id from 0 to its size - 1 once"),
        (
            {"vocabulary": ["a", "a"], "pad_id": 0, "unknown_id": 0, "start_id": 0, "end_id": 0},
            "'a' twice",
        ),
        (
            {"vocabulary": ["\ud800"], "pad_id": 0, "unknown_id": 0, "start_id": 0, "end_id": 0},
            "not valid Unicode",
        ),
        (
            {"vocabulary": ["a"], "pad_id": 0, "unknown_id": 0, "start_id": 0, "end_id": 1},
            "id 1 is outside",
        ),
        ({"source_prefix": [500]}, "special source id 500 is outside"),
    ],
)
def test_from_sentencepiece_errors(joint, arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_sentencepiece(joint.sentencepiece_model(), **arguments)
    with pytest.raises(FileNotFoundError, match="There is no SentencePiece model"):
        Tokenizer.from_sentencepiece("nowhere.model")
