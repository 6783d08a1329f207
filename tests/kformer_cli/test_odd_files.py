"""Pipes, devices, links and files of other kinds, as users give them to commands."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import pytest

import kformer
from kformer.serving.batch import BatchOptions, translate_file
from kformer.translating import streaming
from kformer_cli.main import main

pytestmark = pytest.mark.any_backend
ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "tests" / "frozen_run"


def begin(*arguments, **options):
    """A command in a process of its own, whose standard input is a pipe that stays open."""
    command = [sys.executable, "-m", "kformer_cli", *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A shell may have started the tests in the background, where it lets SIGINT be ignored.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=ROOT, **{**pipes, **options})
    finally:
        signal.signal(signal.SIGINT, former)


@pytest.mark.heavy
def test_ctrl_c_ends_a_translation_whose_pipe_is_open():
    with begin("translate", RUN, "--beam-size", "1") as process:
        process.stdin.write(b"noon\n")
        process.stdin.flush()
        assert process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


@pytest.mark.heavy
def test_an_error_ends_a_translation_whose_pipe_is_open(tmp_path):
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("\n")
    with begin("translate", RUN, "--prefix", prefixes, "--beam-size", "1") as process:
        process.stdin.write(b"noon\nnoon\n")
        process.stdin.flush()
        assert process.wait(120) == 2
        assert b"The text has more lines than" in process.stderr.read()


@pytest.mark.heavy
def test_a_closed_standard_error_takes_nothing_into_the_output(tmp_path):
    """Else Python prints it on standard output, and the next open file gets its descriptor."""
    (tmp_path / "glossary").write_text("noon\t\n")
    arguments = ["translate", RUN, "--beam-size", "1", "--glossary", tmp_path / "glossary"]
    arguments += ["--input", tmp_path / "glossary", "--output", tmp_path / "output"]
    command = shlex.join([sys.executable, "-m", "kformer_cli", *map(str, arguments)])
    for words, code in ((command, 0), (f"{command} --n-best 2", 2)):
        ended = subprocess.run(f"{words} 2>&-", shell=True, cwd=ROOT, capture_output=True)
        assert (ended.returncode, ended.stdout) == (code, b"")
    assert (tmp_path / "output").read_text().count("\n") == 1


def test_standard_output_as_a_file_is_written_on(tmp_path, capfd):
    """A shell's `>> log` with --output /dev/stdout."""
    log = tmp_path / "log"
    log.write_text("old\n")
    link = tmp_path / "link"
    link.symlink_to("/dev/fd/1")
    kept = os.dup(1)
    try:
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 1)
        for path in ("/dev/stdout", "/dev/fd/1", link):
            with streaming.open_output(path) as out:
                out.write(b"new\n")
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert log.read_text() == "old\nnew\nnew\nnew\n" and link.is_symlink()


@pytest.fixture
def pipe():
    """A function: the path of a pipe with a text, as a shell's `<(...)` gives."""
    descriptors = []

    def make(text):
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        descriptors.append(read)
        return f"/dev/fd/{read}"

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def test_files_may_be_pipes(pipe, tmp_path, capfd):
    (tmp_path / "text").write_text("noon\nnoon\n")
    options = ["translate", str(RUN), "--input", str(tmp_path / "text"), "--beam-size", "2"]
    assert main([*options, "--glossary", pipe("noon\tnoon\n")]) == 0
    output = capfd.readouterr()
    assert "used 2" in output.err and output.out == "noon\nnoon\n"
    assert main([*options, "--terms", pipe("\n晚上\n")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert "晚上" not in lines[0] and "晚上" in lines[1]


def test_pipes_in_python(pipe, tmp_path):
    """What reads a text once takes a pipe; what reads it again says so."""
    tokenizer, text = kformer.Translator.load(RUN).tokenizer, "noon\n9:05 pm\n"
    corpus = kformer.data.prepare(pipe(text), pipe(text), tokenizer, tmp_path / "data")
    assert corpus.num_pairs == 2
    for refused in (
        lambda: kformer.Tokenizer.train(pipe(text)),
        lambda: kformer.text.load_word_vectors(pipe(text), ["noon"]),
        lambda: kformer.trainer.train_run(
            tmp_path / "run",
            train_source=pipe(text),
            train_target=pipe(text),
            valid_source=pipe(text),
            valid_target=pipe(text),
            steps=1,
        ),
        lambda: translate_file(pipe(text), tmp_path / "out", BatchOptions(RUN), workers=1),
    ):
        with pytest.raises(ValueError, match="is a pipe, which can be read only once"):
            refused()
    with pytest.raises(ValueError, match="an iterator or a pipe is read once"):
        kformer.data.ParallelDataset(
            pipe(text), pipe(text), tokenizer, batch_tokens=64, cache_dir=tmp_path / "cache"
        )


def test_what_is_written_through_a_link_leaves_the_link(tmp_path):
    for command, name in (
        (["card", RUN], "card.md"),
        (["plot", "positions", RUN], "positions.svg"),
    ):
        link, real = tmp_path / name, tmp_path / f"real-{name}"
        link.symlink_to(real.name)
        assert main([*map(str, command), "--output", str(link)]) == 0
        assert link.is_symlink() and real.stat().st_size > 100


def test_text_without_words_has_no_times(tmp_path, capfd):
    for text in (" \n\n", "\u200b\n"):
        (tmp_path / "text").write_text(text, encoding="utf-8")
        arguments = ["--source", str(tmp_path / "text"), "--output", str(tmp_path / "p.svg")]
        assert main(["plot", "lengths", str(RUN), *arguments]) == 1
        assert "has no words to make sentences of" in capfd.readouterr().err


def test_documents_may_be_utf16_and_no_archives(tmp_path, capfd):
    (tmp_path / "a.txt").write_bytes("\ufeffnoon\n".encode("utf-16-le"))
    output = tmp_path / "out.txt"
    document = ["translate", str(RUN), "--beam-size", "1", "--output", str(output), "--document"]
    assert main([*document, str(tmp_path / "a.txt")]) == 0
    assert output.read_bytes().decode("utf-16").strip("\n").startswith("中午")
    for start, kind, *format in (
        (b"PK\x03\x04\0\0", "a ZIP archive"),
        (b"%PDF-1.7\n", "a PDF"),
        (b"\xd0\xcf\x11\xe0", "of an old kind of Office"),
        (b"<?xml version='1.0'?><b/>", "XML that no format reads"),
        # An archive is taken by the name of its format.
        (b"PK\x03\x04\0\0", "damaged", "--format", "docx"),
    ):
        (tmp_path / "b.xlsx").write_bytes(start + b"a man")
        assert main([*document, str(tmp_path / "b.xlsx"), *format]) == 1
        assert f"is {kind}" in capfd.readouterr().err


def test_scores_of_another_kind_are_one_sentence(tmp_path, capfd):
    for content in ({}, {"bleu": "x", "chrf": None}):
        (tmp_path / "scores.json").write_text(json.dumps(content))
        scores = ["--scores", str(tmp_path / "scores.json"), "--output", str(tmp_path / "card.md")]
        assert main(["card", str(RUN), *scores]) == 1
        assert "kformer evaluate --json" in capfd.readouterr().err
        assert not (tmp_path / "card.md").exists()


def test_numbers_in_a_message_count_as_the_command_does(tmp_path, capfd):
    picture = ["--source", "noon", "--output", str(tmp_path / "a.png")]
    assert main(["plot", "attention", str(RUN), *picture, "--layer", "9"]) == 1
    assert "There is no layer 9: they are numbered from 1 to 2." in capfd.readouterr().err


@pytest.mark.heavy
def test_what_an_export_cannot_have_is_for_runs(capfd):
    saved = ROOT / "saved_models" / "frozen"
    command = ["translate", str(saved), "--input", __file__, "--sample"]
    assert main(command) == 1
    assert "leave --sample out, or translate with the run" in capfd.readouterr().err


def test_an_empty_variable_is_unset(monkeypatch, capfd):
    monkeypatch.setenv("KERAS_BACKEND", "")
    assert main(["--version"]) == 0
