"""Folders and files appear whole, after they are on the disk; a folder has one writer at a time."""

import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from kformer.utils import files
from tests.utils.disk_calls import DiskCalls

pytestmark = pytest.mark.any_backend


@pytest.fixture
def disk_calls(monkeypatch):
    return DiskCalls(monkeypatch)


def start(code, *arguments):
    """A Python process that runs `code`, after its first line of output."""
    # By its folder, without the rest of the package: that is much quicker.
    folder = str(pathlib.Path(files.__file__).parent)
    begin = f"import sys, time; sys.path.append({folder!r}); import files\n"
    process = subprocess.Popen(
        [sys.executable, "-c", begin + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


# ---- synced before renamed ----


def test_what_killed_writers_left_is_no_entry(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    for name in ("a/.b-removed", ".notes.partial.txt", ".notes.partial", ".x.y.partial.json"):
        (tmp_path / name).touch()
    (tmp_path / files.LOCK_FILE).touch()
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # as after a kill
    with pytest.raises(KeyboardInterrupt), files.new_folder(tmp_path / "new"):
        raise KeyboardInterrupt
    assert len(list(tmp_path.iterdir())) == 6
    assert files.entries(tmp_path) == ["a"] and files.entries(tmp_path / "a") == []
    for name in (".hidden", "x.partial", ".partial", "notes.partial.txt"):
        (tmp_path / name).touch()
    assert files.entries(tmp_path) == [".hidden", ".partial", "a", "notes.partial.txt", "x.partial"]
    assert files.entries(tmp_path / "missing") == []


def test_files_and_folders_are_synced_before_the_rename(tmp_path, disk_calls):
    files.write_json(tmp_path / "config.json", {"a": 1})
    with files.new_folder(tmp_path / "new") as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("text")
    disk_calls.check(tmp_path / "config.json", tmp_path / "new")
    assert (tmp_path / "new" / "deep" / "file").read_text() == "text"
    assert sorted(os.listdir(tmp_path)) == ["config.json", "new"]


def test_a_tokenizer_is_synced_before_the_rename(tmp_path, disk_calls):
    from kformer.text.folder import write_folder

    sides = {side: {"model": "a.model", "vocabulary": None} for side in ("source", "target")}
    write_folder(tmp_path / "tokenizer", sides, {"a.model": b"a"})
    disk_calls.check(tmp_path / "tokenizer")
    disk_calls.calls.clear()
    write_folder(tmp_path / "tokenizer", sides, {"a.model": b"b"})
    # What names the others comes last.
    disk_calls.check(tmp_path / "tokenizer" / "a.model", tmp_path / "tokenizer" / "tokenizer.json")


# ---- folders aside ----


def test_after_an_exception_nothing_is_left(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.new_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("text")
        raise KeyboardInterrupt
    assert not os.listdir(tmp_path)


def test_a_folder_is_replaced_where_that_is_wanted(tmp_path):
    for text in ("old", "new"):
        with files.new_folder(tmp_path / "folder", replaces=True) as folder:
            (folder / text).write_text(text)
    assert os.listdir(tmp_path / "folder") == ["new"] and os.listdir(tmp_path) == ["folder"]
    with pytest.raises(OSError), files.new_folder(tmp_path / "folder") as folder:
        (folder / "newer").write_text("text")
    assert os.listdir(tmp_path / "folder") == ["new"] and os.listdir(tmp_path) == ["folder"]


_WRITER = """
with files.new_folder(sys.argv[1]) as folder:
    (folder / "file").write_text("text")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_left_alone(tmp_path):
    # These are not folders of ours: one has no lock, the other holds something else.
    (tmp_path / ".partial-other" / "new").mkdir(parents=True)
    (tmp_path / ".partial-mine").mkdir()
    (tmp_path / ".partial-mine" / ".lock").write_text("1")
    (tmp_path / ".partial-mine" / "thesis.txt").write_text("text")
    kept = {".partial-other", ".partial-mine"}
    living, killed = (start(_WRITER, tmp_path / name) for name in ("living", "killed"))
    try:
        kill(killed)
        remains = set(os.listdir(tmp_path)) - kept
        assert len(remains) == 2
        with files.new_folder(tmp_path / "one"):
            pass
        left = set(os.listdir(tmp_path)) - kept - {"one"}
        assert len(left) == 1 and left < remains
        # The one that is left is the living writer's.
        (lock,) = (tmp_path / name / ".lock" for name in left)
        assert lock.read_text().split()[0] == str(living.pid)
    finally:
        kill(living)
    with files.new_folder(tmp_path / "two"):
        pass
    assert set(os.listdir(tmp_path)) == {"one", "two", *kept}


def test_remains_without_the_id_of_their_writer_are_removed_when_they_are_old(tmp_path):
    """A kill may leave a folder aside without its lock file, a power cut one with an empty one."""
    asides = [tmp_path / ".partial-empty", tmp_path / ".partial-unsynced"]
    for aside in asides:
        aside.mkdir()
    (asides[1] / ".lock").write_text("")
    (asides[1] / "new").mkdir()
    (asides[1] / "new" / "model.keras").write_text("half")
    with files.new_folder(tmp_path / "one"):
        pass
    assert all(aside.exists() for aside in asides), "their writers may be about to take the lock"
    for aside in asides:
        os.utime(aside, (0, 0))
    with files.new_folder(tmp_path / "two"):
        pass
    assert set(os.listdir(tmp_path)) == {"one", "two"}


def test_a_file_system_without_locks_only_keeps_the_remains(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    with files.new_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("text")
    assert os.listdir(tmp_path) == ["new"]


# ---- locks ----

_HOLDER = """
with files.locked(sys.argv[1]):
    print("ready", flush=True)
    time.sleep(60)
"""


def without_locks(monkeypatch):
    def refuse(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "_lock_open_file", refuse)


def test_one_process_at_a_time_writes_to_a_folder(tmp_path):
    folder = tmp_path / "run"
    holder = start(_HOLDER, folder)
    try:
        with pytest.raises(files.LockedError) as error, files.locked(folder):
            pass
        assert str(error.value) == (
            f"Process {holder.pid} is writing to {folder}: wait until it has ended, or stop it."
        )
    finally:
        kill(holder)
    # The lock of a dead process does not stand in the way, though its file is still there.
    assert os.listdir(folder) == [".lock"]
    with files.locked(folder):
        assert (folder / ".lock").read_text().split()[0] == str(os.getpid())
        (folder / "file").write_text("text")
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize("call", [1, 2])
def test_a_lock_whose_file_is_removed_while_it_is_looked_at(tmp_path, monkeypatch, call):
    stat, calls = os.stat, []

    def vanishing(path, *args, **kwargs):
        if isinstance(path, str | os.PathLike) and str(path).endswith(".lock"):
            calls.append(path)
            if len(calls) == call:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", vanishing)
    with files.locked(tmp_path / "run"):
        monkeypatch.undo()
        assert (tmp_path / "run" / ".lock").is_file()


@pytest.mark.heavy
def test_only_one_of_many_gets_the_lock(tmp_path):
    """Also when the holder releases it, and removes the file, while others ask for it."""
    code = """
inside, missed, until = 0, 0, time.time() + 2
print("ready", flush=True)
while time.time() < until:
    try:
        with files.locked(sys.argv[1]):
            file = open(sys.argv[1] + "/inside", "x")
            file.close()
            import os
            os.remove(file.name)
            inside += 1
    except files.LockedError:
        missed += 1
print(inside, missed)
"""
    (tmp_path / "run").mkdir()
    processes = [start(code, tmp_path / "run") for _ in range(3)]
    counts = [process.communicate(timeout=60)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum(int(inside) for inside, _ in counts) > 0
    assert os.listdir(tmp_path / "run") == []


def test_a_folder_that_stays_empty_is_removed(tmp_path):
    with files.locked(tmp_path / "deep" / "run"):
        pass
    assert not os.listdir(tmp_path)
    (tmp_path / "file").write_text("text")
    with pytest.raises(NotADirectoryError, match="is a file"), files.locked(tmp_path / "file"):
        pass


def test_a_file_system_without_locks_gives_a_sentence(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    message = "has no locks .*: make sure yourself that no other process"
    with pytest.warns(UserWarning, match=message), files.locked(tmp_path / "run"):
        (tmp_path / "run" / "file").write_text("text")
    assert os.listdir(tmp_path / "run") == ["file"]
