"""The peer of benchmarks/quality_torch.py: its masks, its search, its rates; Joey NMT's log."""

import json
import pathlib
import shutil
import subprocess
import sys
import types

import pytest
import torch

import kformer
from benchmarks import quality_joey
from benchmarks.quality_torch import Peer, average_of, beam_search, best_of, rate_at, settings_of
from benchmarks.training_peers import torch_model

PAD, START, END, VOCABULARY, LONGEST = 0, 2, 3, 13, 9
CONFIG = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
    "dropout": 0.1,
}

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(22)
    built = torch_model(CONFIG, VOCABULARY, PAD).eval()
    with torch.no_grad():  # Predictions that are far from uniform, and not the latest token again.
        built.embedding.weight.mul_(2)
        built.transformer.decoder.norm.weight.normal_()
    return built


@pytest.fixture(scope="module")
def sources():
    generator = torch.Generator().manual_seed(2)
    lengths = (3, 7, 5, 6)
    rows = [torch.randint(4, VOCABULARY, (n,), generator=generator) for n in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, True, PAD)


def log_probabilities(model, source, target):
    """What the model says of each token that follows one of the target, without a batch."""
    with torch.no_grad():
        hidden = model(source[source != PAD][None], torch.tensor([target]))[0]
        return torch.nn.functional.linear(hidden, model.table).log_softmax(-1)


def search(model, sources, beam_size):
    with torch.no_grad():
        return beam_search(model, sources, beam_size, LONGEST, START, END)


def test_a_beam_of_one_is_greedy(model, sources):
    found = search(model, sources, 1)
    for source, ((ids, _),) in zip(sources, found, strict=True):
        greedy = [START]
        while len(greedy) < LONGEST:
            token = int(log_probabilities(model, source, greedy)[-1].argmax())
            if token == END:
                break
            greedy.append(token)
        assert ids == greedy[1:]
    assert len({len(ids) for ((ids, _),) in found}) > 1, "the limit ended all"


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_score_is_that_of_teacher_forcing(model, sources, beam_size):
    found = search(model, sources, beam_size)
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) >= beam_size
        assert len({tuple(ids) for ids, _ in hypotheses}) == len(hypotheses)
        for ids, score in hypotheses:
            said = log_probabilities(model, source, [START, *ids])
            forced = float(said.gather(1, torch.tensor([*ids, END])[:, None]).sum())
            assert score == pytest.approx(forced, abs=1e-4)


def test_a_beam_finds_what_no_greedy_search_finds(model, sources):
    greedy, wide = search(model, sources, 1), search(model, sources, 4)
    best = [max(score for _, score in hypotheses) for hypotheses in wide]
    gains = [after - before for after, ((_, before),) in zip(best, greedy, strict=True)]
    assert max(gains) > 1e-3


def test_the_length_penalty_prefers_longer_hypotheses():
    hypotheses = [([5], -2.0), ([5, 6, 7], -2.6)]
    assert best_of(hypotheses, 0.0) == [5] and best_of(hypotheses, 1.0) == [5, 6, 7]


def test_an_empty_hypothesis_is_an_empty_text():
    tokenizer = kformer.Tokenizer.train(texts=["a b c"] * 5, vocabulary_size=266)
    peer = types.SimpleNamespace(tokenizer=tokenizer)
    ids = tokenizer.tokenize(["a b"], special_tokens=False)[0]
    found = [[([], -1.0), (ids, -9.0)], [(ids, -1.0), ([], -9.0)]]
    assert Peer.texts(peer, found, penalty=0.0) == ["", "a b"]


def test_neither_padding_nor_later_tokens_are_seen(model, sources):
    target = torch.tensor([[START, 5, 6, 7]] * len(sources))
    other = target.clone()
    other[:, 2:] = 9
    padded = torch.nn.functional.pad(sources, (0, 4), value=PAD)
    with torch.no_grad():
        before, after, wider = model(sources, target), model(sources, other), model(padded, target)
        alone = model(sources[:1, :3], target[:1])
    torch.testing.assert_close(before[:, :2], after[:, :2])
    torch.testing.assert_close(before, wider)
    torch.testing.assert_close(before[:1], alone)
    assert (before[:, 2:] - after[:, 2:]).abs().max() > 0.1


def test_the_rate_rises_falls_and_ends_at_zero():
    assert rate_at(0) == rate_at(1) == 0 and rate_at(0.2) == 1
    assert rate_at(0.1) == 0.5 and rate_at(0.4) == pytest.approx(0.5**0.5)
    assert rate_at(0.875) == pytest.approx((0.2 / 0.875) ** 0.5 / 2)


def test_the_average_is_of_the_latest_tenth():
    update, average = average_of(0.99), [torch.zeros(1)]
    update(average, [torch.ones(1)], 90)
    assert float(average[0]) == pytest.approx(0.1)
    update(average, [torch.ones(1)], 10_000)
    assert float(average[0]) == pytest.approx(0.1 + 0.9 * 0.01)


def test_a_run_of_several_trainings_has_the_students_settings(tmp_path):
    frozen = pathlib.Path(__file__).parent / "frozen_run"
    run, student = tmp_path / "run", tmp_path / "run" / "parts" / "student"
    for folder, preset in ((run, "small"), (student, "tiny")):
        shutil.copytree(frozen, folder)
        config = {"format_version": 1, "training": {"preset": preset}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert settings_of(run) == {"preset": preset}


def test_joeys_log_tells_the_seconds_of_its_steps():
    log = (
        "2026-01-31 23:59:50,500 - INFO - joeynmt.training - EPOCH 1\n"
        "2026-02-01 00:00:10,000 - INFO - joeynmt.prediction - Generation took 4.2500[sec].\n"
        "2026-02-01 00:00:20,750 - INFO - joeynmt.training - Training ended since maximum num.\n"
    )
    assert quality_joey.spent_on(log) == pytest.approx(26)
    assert quality_joey.as_text("a <0xE4><0xBD><0xA0> b") == "a 你 b"


@pytest.mark.slow
def test_a_comparison(tmp_path, backend):
    data = tmp_path / "data"
    data.mkdir()
    for name, split, count in (("train", "train", 300), ("val", "valid", 20), ("test", "test", 20)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories=("time",))
        for language, side in (("en", "source"), ("zh", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (data / f"{name}.{language}").write_text(text, encoding="utf-8")
    script = pathlib.Path(__file__).parent.parent / "benchmarks" / "quality_peers.py"
    options = ["--to", "zh", "--work", tmp_path / "work", "--pairs", 250, "--rates", "0.005"]
    options += ["--backend", backend, "--longer", 2, "--train-options", "--steps 20 --preset tiny"]
    command = [sys.executable, script, data, *map(str, options)]
    first, again = (subprocess.run(command, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == 0, first.stderr[-3000:]
    assert first.stdout == again.stdout, "a second call finds everything done"
    rows = [line.split(" | ") for line in first.stdout.splitlines() if line.startswith("| ")][1:]
    names = ["kformer", *["torch, trial"] * 2, "torch", "torch", "torch, longer"]
    assert [row[0].strip("| ") for row in rows] == names
    assert len({row[4] for row in rows}) == 1, "as many parameters"
    assert "tok:zh" in first.stdout
    # The validation set's BLEU chooses; that one alone is scored on the test set.
    assert float(rows[3][9]) <= float(rows[4][9]) and rows[3][10] == "" != rows[4][10]
    assert rows[4][2:4] == rows[5][2:4]
