"""The batch job: its formats, its shards, and kills of its workers and its driver."""

import concurrent.futures
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pyarrow
import pyarrow.parquet
import pytest

from kformer.serving.batch import BatchOptions, job, pools, shards, translate_file
from kformer.translating.streaming import open_translator, translate_lines
from kformer.utils.progress import Progress
from kformer_cli.main import main
from kformer_options.names import command_line_names
from tests import two_languages
from tests.serving.shared_ray import shared_ray

ROOT = pathlib.Path(__file__).parent.parent.parent
SAVED, RUN = ROOT / "saved_models" / "frozen", ROOT / "tests" / "frozen_run"
TEXTS = ["half past four", "seven", "", "ten minutes to nine in the evening"]
SMALL = {"batch_size": 2}  # 32 records in a shard.

pytestmark = [pytest.mark.any_backend(quickest="torch"), pytest.mark.heavy]


class Here:
    """Translates shards in this process; it stands for processes where they are not tested."""

    translated = []
    dies_at = None
    died = pools.WorkerDied

    def submit(self, records_format, index, *others):
        if index == self.dies_at:
            raise KeyboardInterrupt
        self.translated.append(index)
        future = concurrent.futures.Future()
        try:
            future.set_result(shards.translate_shard(records_format, index, *others))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self):
        pass


class Remembering:
    """A translator that computes a text once, since these tests are about files."""

    found = {}

    def __init__(self, translator):
        self._translator = translator

    def __getattr__(self, name):
        return getattr(self._translator, name)

    def translate(self, texts, **options):
        keys = [(text, *map(repr, sorted(options.items()))) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.found}
        results = self._translator.translate([*new.values()], **options) if new else []
        self.found.update(zip(new, results, strict=True))
        return [self.found[key] for key in keys]


@pytest.fixture
def here(monkeypatch, translator):
    """Jobs run in this process; the class has what they translated."""

    class Pool(Here):
        translated = []

    resolved = str(SAVED / "1")
    key = (resolved, None, None, (), None)
    monkeypatch.setitem(shards._opened, key, Remembering(translator))

    monkeypatch.setattr(pools, "Processes", lambda *arguments: Pool())
    return Pool


@pytest.fixture(scope="module")
def translator():
    return open_translator(SAVED)


@pytest.fixture(scope="module")
def translations(translator):
    """Translation of each of `TEXTS`, by the SavedModel itself."""
    return dict(zip(TEXTS, translator(TEXTS), strict=True))


def write_lines(path, count):
    path.write_text("".join(f"{TEXTS[i * 7 % 4]}\n" for i in range(count)), encoding="utf-8")
    return path


def expected_lines(translations, count):
    return "".join(f"{translations[TEXTS[i * 7 % 4]]}\n" for i in range(count))


def run(input, output, **options):
    return translate_file(input, output, BatchOptions(SAVED, **{**SMALL, **options}), workers=1)


@pytest.mark.parametrize("ending", ("", ".gz", ".zst"))
def test_lines(here, translations, tmp_path, ending):
    text = expected_lines(translations, 70).encode()
    plain = write_lines(tmp_path / "in.txt", 70).read_bytes()
    input, output = tmp_path / f"in.txt{ending}", tmp_path / f"out.txt{ending}"
    if ending == ".gz":
        input.write_bytes(gzip.compress(plain[:100]) + gzip.compress(plain[100:]))
    elif ending == ".zst":
        input.write_bytes(pyarrow.compress(plain, "zstd", asbytes=True))
    result = run(input, output)
    assert (result.records, result.translated, here.translated) == (70, 70, [0, 1, 2])
    content = output.read_bytes()
    if ending == ".gz":
        assert gzip.decompress(content) == text
    elif ending == ".zst":
        assert pyarrow.input_stream(str(output), compression="zstd").read() == text
    else:
        assert content == text
    run(input, output)
    assert output.read_bytes() == content
    assert not list(tmp_path.glob("*.parts"))


def test_one_of_several_target_languages(here, tmp_path, capfd):
    translator = two_languages.new_translator()
    translator.save(tmp_path / "run")
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{text}\n" for text in two_languages.TEXTS), encoding="utf-8")
    files = ["--input", str(source), "--output", str(output), "--workers", "1"]
    for code in (*two_languages.CODES, None):
        options = [] if code is None else ["--target-language", code]
        assert main(["translate", str(tmp_path / "run"), *files, *options]) == 0
        expected = translator(two_languages.TEXTS, target_language=code)
        assert output.read_text(encoding="utf-8").splitlines() == expected
    assert main(["translate", str(tmp_path / "run"), *files, "--target-language", "es"]) == 1
    assert "The target language 'es' is unknown; choose one of de, fr" in capfd.readouterr().err


def test_json_lines(here, translations, tmp_path):
    rows = [{"id": i, "x": 1e300, "src": TEXTS[i % 4]} for i in range(40)] + [{"src": None}]
    lines = [json.dumps(row) for row in rows]
    lines[3:3] = ["", '{"src":"seven" }']
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", field="src", output_field="de", scores=True)
    found = (tmp_path / "out.jsonl").read_text(encoding="utf-8").split("\n")
    assert found.pop() == "" and found[3] == "" and len(found) == len(lines)
    for before, after in zip(lines, found, strict=True):
        if before:
            row = json.loads(after)
            assert after.startswith(before.rstrip(" }"))
            assert row["de"] == translations.get(row["src"])
            assert (row["de_score"] is None) == (row["src"] is None)


def test_parquet(here, translations, tmp_path):
    texts = [TEXTS[i % 4] for i in range(70)]
    texts[5] = None
    table = pyarrow.table({"text": texts, "n": range(70)})
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=25)
    run(tmp_path / "in.parquet", tmp_path / "out.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.drop(["translation"]) == table
    assert found["translation"].to_pylist() == [translations.get(text) for text in texts]
    run(tmp_path / "in.parquet", tmp_path / "n.parquet", n_best=2, scores=True)
    found = pyarrow.parquet.read_table(tmp_path / "n.parquet")
    assert [texts[0] for texts in found["translation"].to_pylist() if texts] == [
        translations[text] for text in texts if text is not None
    ]
    first = found["translation_score"].to_pylist()[0]
    assert first == sorted(first, reverse=True) and len(first) == 2
    empty = table.slice(0, 0)
    pyarrow.parquet.write_table(empty, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet")
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["text", "n", "translation"] and not found.num_rows


def test_odd_lines_as_without_workers(here, translator, tmp_path):
    for content in (b"", b"seven", b"\xef\xbb\xbfseven\r\n\xff\n\nseven"):
        (tmp_path / "in").write_bytes(content)
        run(tmp_path / "in", tmp_path / "out")
        found = []
        with open(tmp_path / "in", "rb") as lines:
            translate_lines(lines, translator.translate, found.extend)
        text = "".join(f"{result.text}\n" for result in found)
        assert (tmp_path / "out").read_text(encoding="utf-8") == text


def test_an_unfinished_job_goes_on(here, tmp_path):
    """No finished shard is translated again; a damaged one is; the rate is without the others."""
    input = write_lines(tmp_path / "in", 200)
    run(input, tmp_path / "whole")
    here.dies_at, here.translated[:] = 3, []
    with pytest.raises(KeyboardInterrupt):
        run(input, tmp_path / "out")
    assert here.translated == [0, 1, 2] and not (tmp_path / "out").exists()
    (folder,) = (tmp_path / "out.parts").glob("shards-*")
    with open(folder / "00000001", "ab") as file:
        file.write(b"x")
    (folder / ".00000004.0.partial").write_bytes(b"half")
    here.dies_at, here.translated[:] = None, []
    progress = Progress()
    options = BatchOptions(SAVED, **SMALL)
    result = translate_file(input, tmp_path / "out", options, workers=1, progress=progress)
    assert here.translated == [1, 3, 4, 5, 6] and result.translated == 200 - 64
    assert (progress.done, progress.total, progress.before) == (200, 200, 64)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_job_of_other_content_is_refused(here, tmp_path):
    input = write_lines(tmp_path / "in", 50)
    here.dies_at = 1
    with pytest.raises(KeyboardInterrupt):
        run(input, tmp_path / "out")
    with pytest.raises(ValueError, match="batch_size was 2 and is 3 now, and n_best was 1 and is "):
        run(input, tmp_path / "out", batch_size=3, n_best=2)
    with pytest.raises(ValueError, match="the model has changed"):
        translate_file(input, tmp_path / "out", BatchOptions(RUN, **SMALL), workers=1)
    write_lines(input, 51)
    with pytest.raises(
        ValueError, match=r"since it began the input has changed: give .* or remove"
    ):
        run(input, tmp_path / "out")


def test_what_a_user_gets_wrong(here, tmp_path):
    def fails(kind, match, name, content, output=None, **options):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(kind, match=match):
            run(tmp_path / name, tmp_path / (output or f"out-{name}"), **options)
        assert not [*tmp_path.glob("out*")]

    fails(ValueError, "damaged, or not what its name says", "a.gz", b"plain")
    fails(ValueError, "damaged", "b.gz", gzip.compress(b"seven\n" * 99)[:-9])
    fails(ValueError, "damaged", "c.zst", b"plain")
    fails(ValueError, "damaged, or not what its name says", "d.parquet", b"plain")
    fails(ValueError, "Line 2 of .* is not JSON", "e.jsonl", b'{"text": "a"}\n{\n')
    fails(ValueError, "has no field 'text'", "f.jsonl", b'{"txt": "a"}\n')
    fails(ValueError, "is not a text: 3", "g.jsonl", b'{"text": 3}\n')
    fails(ValueError, "a field 'text' already", "h.jsonl", b'{"text": ""}', output_field="text")
    fails(ValueError, "is JSON lines by its ending", "i.jsonl", b"", output="out-i.txt")
    fails(ValueError, "would replace the input", "j", b"", output="j")
    fails(FileNotFoundError, "make it first", "k", b"", output="none/k")
    table = pyarrow.table({"text": [1], "x": ["a"]})
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    content = sink.getvalue().to_pybytes()
    fails(ValueError, "holds int64, not text", "m.parquet", content)
    fails(ValueError, r"has no column 'y' among \['text', 'x'\]", "m.parquet", content, field="y")
    options = BatchOptions(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="There is no run directory or SavedModel"):
        translate_file(tmp_path / "k", tmp_path / "o", options, workers=1)


def test_writers_of_one_shard_do_not_meet(tmp_path):
    """Workers of a killed job and of its successor write the same shard at the same time."""
    payload = b"seven\n" * 50_000

    def write():
        for _ in range(10):
            shards.write_shard(tmp_path, 0, [], payload)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    is_there = False
    while any(thread.is_alive() for thread in threads):
        found = shards.read_shard(tmp_path, 0)
        is_there = is_there or found is not None
        assert not is_there or found[1] == payload
    assert [path.name for path in tmp_path.iterdir()] == ["00000000"]


def test_the_command_refuses(tmp_path, capfd):
    write_lines(tmp_path / "in", 1)
    files = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert main(["translate", str(SAVED), *files, "--field", "x"]) == 2
    assert main(["translate", str(SAVED), *files[:2], "--workers", "1"]) == 2
    printed = capfd.readouterr().err
    assert "--field is for --workers" in printed and "needs --input FILE and --output" in printed


def start_driver(input, output):
    """A process of the command with two workers."""
    command = [sys.executable, "-m", "kformer_cli", "translate", SAVED, "--batch-size", 2]
    command += ["--input", input, "--output", output, "--workers", 2]
    return subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(output):
    """The time of each finished shard's file."""
    shards = output.with_name(f"{output.name}.parts").glob("shards-*/0*")
    return {path.name: path.stat().st_mtime_ns for path in shards}


def wait_for(condition, process=None):
    end = time.monotonic() + 120
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_driver_and_killed_worker(translations, tmp_path):
    """The same bytes after a kill of the driver, with two workers, and of the one worker."""
    count = 960  # 30 shards.
    input, output = write_lines(tmp_path / "in", count), tmp_path / "out"
    process = start_driver(input, output)
    wait_for(lambda: len(finished(output)) >= 2, process)
    process.kill()
    process.wait()
    kept = finished(output)
    assert not output.exists() and 2 <= len(kept) < 30

    def kill_a_worker():
        wait_for(lambda: len(finished(output)) > len(kept) + 4)
        again.update(finished(output))
        for pid in worker_pids():
            os.kill(pid, signal.SIGKILL)

    again = {}
    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    progress, lines = Progress(seconds=0, report=lambda line: lines.append(line)), []
    with progress:
        options = BatchOptions(SAVED, **SMALL)
        translate_file(input, output, options, workers=1, progress=progress)
    killer.join()
    assert len(again) > len(kept) and kept.items() <= again.items(), "a shard was made again"
    assert "were done before" in lines[-1] and "s left" in lines[-2]
    assert output.read_text(encoding="utf-8") == expected_lines(translations, count)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def worker_pids():
    """Process ids of the workers that translate."""
    import psutil

    found = [
        process.pid
        for process in psutil.Process().children()
        if process.cmdline()[-1] == "kformer.serving.batch"
    ]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("where", ("processes", "Ray"))
def test_texts_and_errors_of_workers(translations, tmp_path, where):
    """The same bytes by both kinds of workers, and an error in one is the user's."""
    address = shared_ray()[1] if where == "Ray" else None
    input, output = write_lines(tmp_path / "in", 70), tmp_path / "out"
    result = translate_file(input, output, BatchOptions(SAVED, **SMALL), workers=2, address=address)
    assert result[:2] == (70, 70)
    assert output.read_text(encoding="utf-8") == expected_lines(translations, 70)
    output.unlink()
    options = BatchOptions(SAVED, search={"beam_size": 9})
    for is_command in (False, True):
        with command_line_names(is_command):
            name = "--beam-size" if is_command else "beam_size"
            with pytest.raises(ValueError, match=f"was exported with {name}="):
                translate_file(input, output, options, workers=1, address=address)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_shard_that_ends_its_workers_ends_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_worker_variables", lambda options: {"KERAS_BACKEND": "none"})
    write_lines(tmp_path / "in", 3)
    with pytest.raises(RuntimeError, match=r"Records 1 to 3 .* worker 4 times \(exit code 1\)"):
        run(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.slow
def test_ray_listens_on_loopback_alone():
    import psutil

    shared_ray()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [
        (process.name(), connection.laddr.ip)
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert any("gcs" in name for name, _ in listening)
    assert {ip.removeprefix("::ffff:") for _, ip in listening} <= {"127.0.0.1", "::1"}
    assert os.environ["RAY_AUTH_MODE"] == "token" and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
