"""A short form of each part of `benchmarks/reliability.py`, and what they stand on."""

import sys
import types

import numpy as np
import pytest

from benchmarks import reliability
from benchmarks.reliability_parts import search
from benchmarks.reliability_parts.commands import Commands
from benchmarks.reliability_parts.damage import Damage
from benchmarks.reliability_parts.disk_states import HOW, Disk
from benchmarks.reliability_parts.malicious import Malicious
from benchmarks.reliability_parts.power_cut import PowerCut
from benchmarks.reliability_parts.recorder import Recorder
from benchmarks.reliability_parts.strings import Strings
from benchmarks.reliability_parts.tally import Tally
from benchmarks.reliability_parts.trainings import Trainings
from benchmarks.reliability_parts.writers import Writers
from benchmarks.reliability_parts.zygote import Zygote

linux = pytest.mark.skipif(sys.platform != "linux", reason="the campaign forks processes")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def zygote(work):
    with Zygote("torch", work) as zygote:
        yield zygote


@linux
@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("part", "count", "options"),
    [
        (Trainings, 1, {}),
        (Damage, 4, {}),
        (Writers, 1, {}),
        (Malicious, 4, {}),
        (Commands, 2, {"only": "translate"}),
        (PowerCut, 3, {"only": "training"}),
    ],
)
def test_a_few_trials_of_each_part(zygote, work, part, count, options):
    tally, instance = Tally(part.__name__, seed=0, count=count), part(zygote, work, **options)
    for number, rng in tally.trials():
        instance.trial(tally, number, rng)
    assert tally.tried and not tally.failures


@linux
@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("part", "count", "options"),
    [(PowerCut, 6, {"only": "training"}), (Damage, 12, {"only": "model.keras"})],
)
def test_a_part_sees_its_fault(zygote, work, part, count, options):
    fault = {PowerCut: "power_cut", Damage: "damage"}[part]
    tally = Tally(fault, seed=0, count=count, ends_at_failure=True)
    instance = part(zygote, work, fault, **options)
    for number, rng in tally.trials():
        instance.trial(tally, number, rng)
    assert tally.failures


def test_search_equals_the_numpy_search():
    results = search.search_trial(seed=0, number=0, batches=1)
    assert len(results) == 2
    assert [fault for _, fault in results if fault not in (None, "a tie")] == []


@pytest.mark.any_backend
def test_the_numpy_search_finds_the_best_of_all_hypotheses():
    """With a beam as wide as there are prefixes: the best of all sequences, enumerated."""
    import itertools

    from benchmarks.reliability_parts.numpy_search import Oracle, Special
    from kformer.decoding import SearchOptions

    table = np.random.default_rng(0).normal(size=(6, 6)) * 2

    def logits_of(prefixes):
        return np.stack([table[prefix[-1] if prefix else 1] for prefix in prefixes])

    options = SearchOptions(beam_size=100, n_best=5, length_penalty=0.6)
    oracle = Oracle(logits_of, options, Special(pad=0, start=1, end=2), limit=3)
    log_p = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    every = []
    for length in range(4):
        for ids in itertools.product((3, 4, 5), repeat=length):
            pairs = zip((1, *ids), (*ids, 2), strict=True)
            score = sum(log_p[pair] for pair in pairs)
            every.append((score / ((5 + length + 1) / 6) ** 0.6, (*ids, 2)))
    found = oracle.search()
    assert [one.ids for one in found] == [ids for _, ids in sorted(every, reverse=True)[:5]]


@pytest.mark.any_backend
def test_the_states_of_a_disk(tmp_path):
    """What a program that renames a file without a sync, and one that syncs it, may leave."""

    def states(syncs):
        root, record = tmp_path / f"root-{syncs}", tmp_path / f"record-{syncs}"
        root.mkdir()
        (root / "file").write_bytes(b"old")
        recorder = Recorder(root, record)
        (root / "aside").write_bytes(b"new content")
        recorder.look()
        if syncs:
            recorder.add("fsync", root / "aside")
        (root / "aside").rename(root / "file")
        recorder.add("rename", root / "aside", root / "file")
        recorder.look()
        disk, rng, found = Disk(record), np.random.default_rng(0), set()
        for number in range(200):
            folder = tmp_path / f"state-{syncs}-{number}"
            count = int(rng.integers(len(disk.events) + 1))
            disk.write(count, HOW[number % 4], rng, folder)
            found.add((folder / "file").read_bytes())
        return found

    assert states(syncs=True) == {b"old", b"new content"}
    assert {b"old", b"new content", b"", bytes(11)} < states(syncs=False)


@pytest.mark.any_backend
def test_strings_are_of_many_kinds():
    strings = Strings(np.random.default_rng(0), ["a", "word"])
    made = [strings() for _ in range(400)]
    invalid = sum("\ufffd" in text.decode(errors="replace") for text in made)
    assert 20 < invalid < 300 and b"" in made and max(map(len, made)) > 1000
    assert any("\u2581" in text.decode(errors="replace") for text in made)


@pytest.mark.any_backend
def test_the_command_line_and_the_table(monkeypatch, tmp_path, capsys):
    def run(tally, options):
        for number, _ in tally.trials():
            tally.add("even" if number % 2 == 0 else "odd", "wrong" if number == 3 else None)

    monkeypatch.setitem(
        sys.modules, "benchmarks.reliability_parts.strings", types.SimpleNamespace(run=run)
    )
    assert set(reliability.SELF_TESTS) | {"self-test"} == set(reliability.PARTS)
    arguments = ["strings", "--work", str(tmp_path), "--count", "5"]
    assert reliability.main(arguments) == 1
    out, err = capsys.readouterr()
    assert "| odd | 2 | 1 |" in out and "| all | 5 | 1 |" in out
    assert "FAILED strings odd (--seed 0 --first 3 --count 1): wrong" in err
    assert reliability.main([*arguments, "--first", "4"]) == 0
