"""The shortest token lists that leave a validation set's translations as they are."""

import copy
import json
import pathlib
import shutil

import pytest

import kformer
from kformer.evaluation.list_choice import choose_lists, with_translations
from kformer_cli.token_lists import shortlist

pytestmark = pytest.mark.any_backend
FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"
SOURCES = ["half past four", "noon", "seven thirty", "half past four in the afternoon"]


def test_the_shortest_lists_that_are_enough():
    translator = kformer.Translator.load(FROZEN)
    references = translator(SOURCES)
    texts = with_translations(translator, SOURCES, references)
    assert texts[0] == SOURCES * 2 and texts[1][4:] == translator(SOURCES, beam_size=1)
    other = copy.copy(translator)
    sizes = [(1, 1), (400, 1), (400, 400)]
    lists, trials = choose_lists(other, *texts, (SOURCES, references), sizes)
    assert [trial.is_enough for trial in trials] == [False, True]
    assert trials[0].tokens < trials[1].tokens and trials[1].equal == 1
    assert trials[1].bleu == trials[1].full_bleu == pytest.approx(100)
    assert other.token_lists is lists and translator.token_lists is None
    _, trials = choose_lists(other, *texts, (SOURCES, references), sizes[:1])
    assert not trials[-1].is_enough  # The longest are the best there are.


def test_the_command(tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(FROZEN, run)
    translator = kformer.Translator.load(run)
    files = tmp_path / "source", tmp_path / "target"
    for file, lines in zip(files, (SOURCES, translator(SOURCES)), strict=True):
        file.write_text("\n".join(lines), encoding="utf-8")
    settings = {"candidates": None, "frequent": 200, "backend": None}
    shortlist(run, *files, *files, **settings, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["trials"][-1]["equal"] == 1 and report["tokens"] < report["vocabulary"]
    listed = kformer.Translator.load(run)
    assert listed(SOURCES) == translator(SOURCES) and listed.token_lists is not None
    # A copy keeps them, also in an ensemble, until they are taken away.
    copied = listed.save(tmp_path / "copy")
    assert kformer.Translator.load(copied).token_lists is not None
    assert kformer.Translator.load([copied, FROZEN]).token_lists is not None
    listed.token_lists = None
    assert kformer.Translator.load(listed.save(copied)).token_lists is None
    shortlist(run, *files, *files, **settings | {"candidates": 1, "frequent": 1}, as_json=False)
    assert "These lists change more than 1 % of the translations" in capsys.readouterr().out
