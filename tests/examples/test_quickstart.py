"""The quickstart with a tiny model: everything runs, but nothing is learned."""

import io

import pytest
from rich.console import Console

import kformer
from kformer.examples import quickstart_training as module
from kformer.examples.quickstart_training import LinearWarmupDecay, exact_match, quickstart
from kformer.utils import files

pytestmark = pytest.mark.any_backend


@pytest.mark.heavy
def test_it_trains_measures_exports_and_reads_back(tmp_path, monkeypatch):
    sizes = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 16,
        "intermediate_dim": 16,
        "num_heads": 2,
    }
    monkeypatch.setattr(module, "MODEL_SIZE", sizes)
    text = io.StringIO()
    console = Console(file=text, width=100)
    result = quickstart(
        tmp_path / "run", tmp_path / "saved" / "times", steps=3, quick=True, console=console
    )
    assert (
        set(result.accuracy) == {*kformer.examples.CATEGORIES, "all"}
        and 0 <= result.accuracy["all"] < 0.5
    )
    assert (
        result.saved_model == tmp_path / "saved" / "times" / "1"
        and (result.saved_model / "saved_model.pb").is_file()
    )
    assert [source for source, _ in result.translations] == list(module.SENTENCES)
    assert kformer.Translator.load(tmp_path / "run").config["quickstart"] == {"steps": 3, "seed": 0}
    assert (
        "Exactly right, of 40 pairs" in text.getvalue() and "kformer translate" in text.getvalue()
    )


def test_it_replaces_an_older_quickstart_and_nothing_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="is not empty and is not a quickstart"):
        quickstart(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    for saved_model in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(ValueError, match="would be in the run .*: give another saved_model"):
            quickstart(tmp_path / "a", saved_model)
    module._check_output(tmp_path / "new")
    older = tmp_path / "older"
    older.mkdir()
    with files.locked(older), pytest.raises(files.LockedError, match="is writing to"):
        module._check_output(older)
    (older / "config.json").write_text('{"format_version": 1, "quickstart": {"steps": 3}}')
    module._check_output(older)
    assert not older.exists()


def test_exact_match_counts_by_category():
    pairs = kformer.examples.generate_pairs(40, categories=("time", "date"))
    known = {pair.source: pair.target for pair in pairs}

    def translate(texts, **_):
        return [known[text] if "年" in known[text] else "?" for text in texts]

    dates = sum(pair.category == "date" for pair in pairs)
    assert exact_match(translate, pairs) == {"date": 1.0, "time": 0.0, "all": dates / 40}


def test_the_learning_rate_rises_and_falls_in_straight_lines():
    schedule = LinearWarmupDecay(2.0, 10, 100)
    rates = [float(schedule(step)) for step in range(101)]
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert (
        rates[4] == pytest.approx(1.0)
        and rates[99] == pytest.approx(2.0 / 91)
        and rates[100] == 0.0
    )
    assert float(LinearWarmupDecay.from_config(schedule.get_config())(30)) == rates[30]
