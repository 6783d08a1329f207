"""Plots show the numbers that the model computed."""

import base64
import dataclasses
import hashlib
import json
import pathlib
import pickle
import re
import types
import warnings

import numpy as np
import pytest

import kformer
from kformer.evaluation.timing import time_by_length
from kformer.layers import sinusoidal_positions
from tests.peers import to_numpy

matplotlib = pytest.importorskip("matplotlib")
from kformer import plots  # noqa: E402

FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"
SOURCE = "twenty past five"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN)


@pytest.fixture(scope="module")
def maps(translator):
    return plots.attention_maps(translator, SOURCE, beam_size=2)


def images(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_maps_are_the_models_own(translator, maps):
    model, tokenizer = translator.model, translator.tokenizer
    assert maps.text == translator([SOURCE], beam_size=2)[0]
    ids = tokenizer.tokenize([SOURCE], special_tokens=True)[0]
    assert (
        maps.source == [tokenizer.id_to_token(i, "source") for i in ids]
        and len(maps.target) == maps.cross.shape[2]
    )
    layers, heads = len(model.network.decoder_layers), model.network.decoder_layers[0].num_heads
    assert maps.cross.shape == (layers, heads, len(maps.target), len(ids))
    for scores in (maps.encoder, maps.decoder, maps.cross):
        np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    assert np.abs(np.triu(maps.decoder[0, 0], 1)).max() == 0
    given = plots.attention_maps(translator, SOURCE, target=maps.text)
    np.testing.assert_allclose(given.cross, maps.cross, atol=1e-6)


@pytest.mark.any_backend
def test_every_head_has_its_picture(maps):
    layers, heads = maps.cross.shape[:2]
    figure = plots.plot_attention(maps, heads=list(range(heads)))
    shown = images(figure)
    assert len(shown) == layers * heads
    np.testing.assert_allclose(shown[1], maps.cross[0, 1], atol=1e-6)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == maps.source
    assert [label.get_text() for label in axes.get_yticklabels()] == maps.target
    one = plots.plot_attention(*maps.of("encoder"), layers=[-1], mean=True)
    np.testing.assert_allclose(images(one)[0], maps.encoder[-1].mean(0), atol=1e-6)
    assert one.axes[0].get_title() == f"layer {layers}, mean of heads"
    some = plots.plot_attention(maps, heads=[0, -1], mean=True)
    np.testing.assert_allclose(images(some)[0], maps.cross[0, [0, -1]].mean(0), atol=1e-6)
    assert some.axes[0].get_title() == f"layer 1, mean of heads 1, {heads}"


def test_a_row_is_the_token_that_is_predicted(translator, maps):
    expected = translator.attention(SOURCE, maps.text)
    assert maps.target == expected.target_tokens and maps.read[1:] == maps.target[:-1]
    np.testing.assert_allclose(maps.cross, expected.weights, atol=1e-6)
    axes = ("predicted token", "source token")
    figure = plots.plot_attention(maps)
    assert (figure.get_supylabel(), figure.get_supxlabel()) == axes
    with pytest.raises(ValueError, match="The language must be one of en, zh, but 'de' was given"):
        plots.plot_attention(maps, language="de")
    assert maps.of("decoder")[1:] == (maps.target, maps.read)


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.parametrize("shape", [(4, 4, 14, 12), (6, 8, 70, 60), (1, 1, 2, 2)])
def test_a_picture_fits_a_screen_by_default(tmp_path, shape):
    scores = np.full(shape, 0.5, "float32")
    labels = [[f"token{i}" for i in range(size)] for size in shape[2:]]
    plots.save(plots.plot_attention(scores, *labels, title="a title"), tmp_path / "a.png")
    header = (tmp_path / "a.png").read_bytes()[16:24]
    width, height = (int.from_bytes(header[i : i + 4], "big") for i in (0, 4))
    assert width <= 1920 and height <= 1080


@pytest.mark.any_backend
def test_chinese_labels_have_a_font(tmp_path):
    pytest.importorskip("mplfonts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.plot_attention(
            np.eye(3), ["猫", "坐", "在"], ["the", "猫", "。"], title="注意力"
        )
        plots.save(figure, tmp_path / "cjk.png")
        named = plots.plot_attention(np.ones((2, 3, 3)), kind="cross", layers=[0], language="zh")
    assert [axes.get_title() for axes in named.axes[:2]] == [
        "第 1 层，第 1 个头",
        "第 1 层，第 2 个头",
    ]
    assert (named.get_supylabel(), named.get_supxlabel()) == ("译文的词元", "原文的词元")
    assert (tmp_path / "cjk.png").read_bytes()[:4] == PNG
    # No font has a private character: boxes, and a word about it.
    with pytest.warns(UserWarning, match=r'pip install "kformer\[cjk\]"'):
        plots.plot_attention(np.eye(1), ["\U000f1234"], ["a"])


@pytest.mark.any_backend
def test_the_page_holds_the_numbers_and_no_markup_of_the_text(maps):
    import dataclasses

    markup = "</script><script>alert(1)"
    changed = dataclasses.replace(
        maps, text="a <b> & c", source=[markup, *maps.source[1:]], source_text="</body> <title>"
    )
    page = plots.attention_html(changed, model="en-zh")
    assert "<title>a &lt;b&gt; &amp; c</title>" in page and markup not in page
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    entries = {entry["kind"]: entry for entry in data["attention"]["maps"]}
    assert entries["cross"]["columns"][0] == markup and entries["cross"]["rows"] == maps.target
    for kind, entry in entries.items():
        numbers = np.frombuffer(base64.b64decode(entry["weights"]), "<u2") / 65535
        expected = maps.of(kind)[0]
        np.testing.assert_allclose(numbers.reshape(expected.shape), expected, atol=1e-5)
    (line,) = data["reply"]["lines"]
    assert line["source"] == "</body> <title>" and data["reply"]["model"]["target"]["lang"] == "zh"
    assert [one["text"] for one in line["hypotheses"]] == [one.text for one in maps.hypotheses]
    given = dataclasses.replace(maps, hypotheses=[], text="</body><title>kformer</title>")
    assert page.count("<script>") == plots.attention_html(given).count("<script>") == 4


@pytest.mark.any_backend
def test_the_policy_of_the_page_has_the_hash_of_each_script_and_style(maps):
    page = plots.attention_html(maps)
    policy = re.search('content-security-policy" content="(.*?)"', page)[1]
    for tag, count in (("script", 4), ("style", 1)):
        inline = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [hashlib.sha256(text.encode()).digest() for text in inline]
        hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert len(inline) == count and f"{tag}-src {' '.join(hashes)}" in policy
    assert policy.startswith("default-src 'none'") and "https:" not in page


def test_maps_have_the_hypotheses_of_the_search(translator, maps):
    (expected,) = translator.translate([SOURCE], beam_size=2, n_best=2)
    assert [one.text for one in maps.hypotheses] == [one.text for one in expected.hypotheses]
    assert plots.attention_maps(translator, SOURCE, target="a").hypotheses == []


@pytest.mark.any_backend
def test_positions():
    vectors = sinusoidal_positions(np.arange(20), 16)
    np.testing.assert_allclose(
        images(plots.plot_positions(vectors))[0], to_numpy(vectors), atol=1e-6
    )
    cosines = images(plots.plot_similarity(vectors))[0]
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-5)
    # The cosine depends on the distance alone.
    np.testing.assert_allclose(cosines[3, 7], cosines[10, 14], atol=1e-4)


@pytest.mark.any_backend
def test_curves(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    rows = [
        "step,loss,val_loss,val_bleu",
        *(f"{step},{9 - step / 500},," for step in range(1, 1000)),
        "1000,7,6.5,12.5",
    ]  # More than twice as many as are shown, and less than three times.
    (run / "history.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    figure = plots.plot_training(
        [run, {"loss": [3.0, 2.0], "val_loss": [3.5, 2.5]}], names=["one", "other"]
    )
    assert [axes.get_title() for axes in figure.axes] == ["loss", "bleu"]
    lines = figure.axes[0].lines
    assert (
        len(lines) == 4
        and lines[0].get_xdata()[0] == 2
        and lines[0].get_ydata()[0] == pytest.approx(9 - 2 / 500)
    )
    # The last of 400 points has the last steps.
    assert len(lines[0].get_xdata()) == 400 and lines[0].get_xdata()[-1] == 999.5
    assert figure.axes[1].lines[0].get_ydata().tolist() == [12.5]
    lengths = plots.plot_lengths(
        {"full": {256: 1.0, 512: 4.0}, "local": {256: 1.0, 512: 2.0}}, title="time"
    )
    assert (
        lengths.axes[0].lines[0].get_ydata().tolist() == [1.0, 4.0]
        and lengths.axes[0].get_xscale() == "log"
    )
    assert plots.save(lengths, tmp_path / "a.svg").read_text().startswith("<?xml")


@pytest.mark.any_backend
def test_a_model_that_reads_few_tokens_is_measured_at_its_limit():
    words = types.SimpleNamespace(
        tokenize=lambda texts, **options: [text.split() for text in texts]
    )

    class Small:
        model, tokenizer = types.SimpleNamespace(max_length=6), words

        def __call__(self, texts, **options):
            return texts

    assert list(time_by_length(Small(), ["a b"])) == [6]


@pytest.mark.any_backend
def test_errors(translator, maps, tmp_path):
    recurrent = dataclasses.replace(maps, decoder=np.zeros((0, 0, 0, 0)))
    for call, words in (
        (lambda: plots.attention_maps(translator, " "), "The source is empty"),
        (lambda: maps.of("self"), "kind of attention must be one of .* 'self'"),
        (lambda: recurrent.of("decoder"), "an SSRU in place of self-attention"),
        (lambda: plots.plot_attention(np.ones(3)), r"but \[3\] was given"),
        (lambda: plots.plot_attention(np.eye(3), ["a"]), "1 labels for 3 queries"),
        (lambda: plots.plot_attention(np.eye(3), layers=[1]), "no layer 1"),
        (lambda: plots.plot_attention(np.eye(3), heads=[1], mean=True), "no head 1"),
        (lambda: plots.plot_attention(np.eye(3), layers=[]), "^layers has no number: give one"),
        (lambda: plots.save(None, tmp_path / "a.txt"), "ends in .png, .svg, .pdf"),
        (lambda: plots.plot_positions(np.ones(3)), r"\[positions, D\]"),
        (lambda: plots.plot_training([{"accuracy": [1.0]}]), "No run has loss"),
        (lambda: plots.plot_training([{}], names=[]), "0 names for 1 runs"),
        (lambda: plots.plot_training({"loss": [1.0]}, metrics=["blue"]), "has blue in .* but loss"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(FileNotFoundError, match="is .* the directory of a run"):
        plots.plot_training(tmp_path)


@pytest.mark.any_backend
def test_a_notebook_shows_a_figure_before_pyplot_has_made_one():
    from IPython.core.formatters import DisplayFormatter

    figure = plots.plot_positions(np.eye(4))
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(PNG)
    assert pickle.loads(pickle.dumps(figure))._repr_png_() == figure._repr_png_()
