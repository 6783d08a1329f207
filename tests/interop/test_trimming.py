"""A trimmed vocabulary: the same segmentation, the same logits, less of everything else."""

import json
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.export import SavedModelTranslator
from kformer.interop import import_checkpoint, trim_vocabulary
from kformer_cli.main import main
from tests.interop.published import published_model
from tests.interop.tokenizer_folders import marian, nllb, t5, trained_models
from tests.interop.toolkits.fixtures import DATA, lines
from tests.text_samples import corpus

quick = pytest.mark.any_backend(quickest="torch")
transformers = pytest.importorskip("transformers")
SIZES = {"hidden_dim": 32, "intermediate_dim": 64, "layers": 1, "heads": 4, "positions": 64}
RUN = pathlib.Path(__file__).parents[1] / "frozen_run"
SIDES = ("source", "target")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of imported models with random weights, by family, and one that was trained here."""
    models, found = trained_models(), {"kformer": RUN}
    for name, lay in (("marian", marian), ("nllb", nllb), ("t5", t5)):
        folder = tmp_path_factory.mktemp(name)
        config = lay(folder, models)
        special = {
            key: config[key] for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        }
        sizes = {**SIZES, "vocab_size": config["vocab_size"]}
        published_model(config["model_type"], sizes=sizes, **special).save_pretrained(folder)
        found[name] = import_checkpoint(folder, folder / "run", report=lambda _: None)
    return found


@pytest.fixture(scope="module")
def texts():
    """A part of the corpus that the tokenizers were trained on."""
    return [*corpus(12, seed=7), "half past four", "四点半"]


def logits(translator, source_ids, target_ids):
    inputs = {"source_ids": np.array([source_ids]), "target_ids": np.array([target_ids])}
    return ops.convert_to_numpy(translator.model(inputs, training=False))[0]


@pytest.mark.heavy
@quick
@pytest.mark.parametrize("family", ["kformer", "marian", "nllb", "t5"])
def test_text_and_logits_are_what_they_were(runs, texts, family):
    whole = kformer.Translator.load(runs[family])
    small = trim_vocabulary(whole, texts)
    sizes = [each.tokenizer.vocabulary_size for each in (whole, small)]
    assert sizes[1] == small.model.vocabulary_size < sizes[0]
    pieces = {
        side: [each.tokenizer.vocabulary(side).pieces for each in (whole, small)] for side in SIDES
    }
    numbers = {side: {piece: i for i, piece in enumerate(pieces[side][0])} for side in SIDES}
    # Every piece that stays is a piece of before, in the same order.
    kept = {side: [numbers[side][piece] for piece in pieces[side][1]] for side in SIDES}
    assert all(ids == sorted(ids) for ids in kept.values())
    for side in SIDES:
        ids = [
            each.tokenizer.tokenize(texts, side=side, special_tokens=True)
            for each in (whole, small)
        ]
        for before, after in zip(*ids, strict=True):
            assert [kept[side][i] for i in after] == before
        assert small.tokenizer.detokenize(ids[1], side=side) == whole.tokenizer.detokenize(
            ids[0], side=side
        )
    rows = small.tokenizer.tokenize(texts, side="source", special_tokens=True)
    targets = small.tokenizer.tokenize(texts, side="target", special_tokens=True)
    for source, target in zip(rows[:4], targets[:4], strict=True):
        target = [small.model.start_id, *target[:-1]]
        found = logits(small, source, target)
        expected = logits(
            whole, [kept["source"][i] for i in source], [kept["target"][i] for i in target]
        )
        np.testing.assert_allclose(found, expected[:, kept["target"]], atol=1e-5)
    assert small.model.count_params() < whole.model.count_params()


@quick
@pytest.mark.parametrize("name", ["opennmt-tf-transformer/run", "fairseq-learned/model.pt"])
def test_two_vocabularies_keep_the_same_special_ids(name, tmp_path):
    whole = kformer.interop.load_checkpoint(DATA / name)
    name = name.partition("/")[0]
    sources, targets = (lines(name, file)[:6] for file in ("source.txt", "greedy.txt"))
    trim_vocabulary(whole, [*sources, *targets]).save(tmp_path / "small")
    small = kformer.Translator.load(tmp_path / "small")
    assert small.model.count_params() < whole.model.count_params()
    numbers = [
        whole.tokenizer.vocabulary("target").pieces.index(piece)
        for piece in small.tokenizer.vocabulary("target").pieces
    ]
    found, expected = (
        logits(
            each,
            each.tokenizer.tokenize(sources[:1], special_tokens=True)[0],
            [
                each.model.start_id,
                *each.tokenizer.tokenize(targets[:1], side="target", special_tokens=True)[0][:-1],
            ],
        )
        for each in (small, whole)
    )
    np.testing.assert_allclose(found, expected[:, numbers], atol=1e-5)


@quick
def test_other_text_of_the_languages_can_be_read(runs):
    small = trim_vocabulary(kformer.Translator.load(runs["nllb"]), ["Every small river.", "很慢"])
    words = ["bridge", "quickly", "small"]
    ids = small.tokenizer.tokenize(words, side="source")
    assert small.tokenizer.detokenize(ids, side="source") == words
    assert len(ids[2]) < len("small"), "and its own words have their pieces"


@quick
def test_languages_and_search_options_are_kept(runs, texts):
    whole = kformer.Translator.load(runs["nllb"], dtype="bfloat16")
    small = trim_vocabulary(whole, texts)
    assert small.dtype == "bfloat16"
    assert list(small.tokenizer.languages) == list(whole.tokenizer.languages)
    pieces = [each.tokenizer.vocabulary("target").pieces for each in (whole, small)]
    for name in ("prefix_ids", "forbidden_ids"):
        before, after = (getattr(each.options, name) for each in (whole, small))
        names = [pieces[0][i] for i in before if i < len(pieces[0])]
        assert [pieces[1][i] for i in after] == [piece for piece in names if piece in pieces[1]]
    assert small(texts[:2])


@quick
@pytest.mark.parametrize("kind", ["joint", "separate", "added"])
def test_languages_of_a_trained_tokenizer_are_kept(randomize, texts, kind):
    is_joint, codes = kind == "joint", ["de", "zh"]
    settings = {"vocabulary_size": 500, "languages": codes}
    if not is_joint:
        settings |= {"target_texts": corpus(400, seed=3), "vocabulary_size": (500, 450)}
    if kind == "added":
        settings["languages"] = ["de", "fr"]
    tokenizer = kformer.Tokenizer.train(texts=corpus(400), **settings)
    ids = tokenizer.languages
    assert list(ids.values()) == [4, 5]
    if kind == "added":  # The piece of the new language has another id on each side.
        tokenizer = tokenizer.with_languages(["zh"])
        assert tokenizer.languages == {**ids, "zh": 500}
    sizes = {"hidden_dim": 16, "intermediate_dim": 24, "num_heads": 2}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_length": 64}
    if not is_joint:
        sizes["target_vocabulary_size"] = tokenizer.target_vocabulary_size
    model = randomize(kformer.Transformer(tokenizer.vocabulary_size, **sizes))
    whole = kformer.Translator(model, tokenizer.for_languages(target="zh"))
    small = trim_vocabulary(whole, texts)
    assert small.tokenizer.vocabulary_size < whole.tokenizer.vocabulary_size
    assert list(small.tokenizer.languages) == list(whole.tokenizer.languages)
    assert small.tokenizer.target_language == "zh"
    signs = [small.tokenizer.id_to_token(i, "source") for i in small.tokenizer.languages.values()]
    assert signs == [f">>{code}<<" for code in small.tokenizer.languages]
    # The pieces of the text can write every translation.
    pieces = [each.tokenizer.vocabulary("target").pieces for each in (whole, small)]
    shortlist = [pieces[0].index(piece) for piece in pieces[1]]
    texts = [">>de<< noon", ">>Achtung<< noon", *texts]
    codes = ["zh", "zh", *["de", "zh"] * (len(texts) // 2 - 1)]
    options = {"target_language": codes, "max_length": 8}
    assert small(texts, **options) == whole(texts, shortlist=shortlist, **options)
    rows = small.tokenizer.tokenize(texts, special_tokens=True)
    assert [row[0] for row in rows] == [4, *[small.tokenizer.languages["zh"]] * (len(texts) - 1)]


@quick
def test_the_command(runs, texts, tmp_path, capfd):
    (tmp_path / "text").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    run, output, file = str(runs["nllb"]), str(tmp_path / "small"), str(tmp_path / "text")
    assert main(["trim", run, "--text", file, "--output", output, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["after"]["pieces"] < found["before"]["pieces"]
    assert found["after"]["bytes"] < found["before"]["bytes"]
    expected = trim_vocabulary(kformer.Translator.load(run), texts)
    small = kformer.Translator.load(output)
    assert small(texts) == expected(texts)
    assert small.tokenizer.writes_like(expected.tokenizer)
    for command, message in (
        (["trim", run, "--text", file, "--output", output], "There is something at"),
        (["trim", run, "--text", "absent", "--output", "other"], "absent"),
        (["trim", "absent", "--text", file, "--output", "other"], "absent"),
    ):
        assert main(command)
        assert message in " ".join(capfd.readouterr().err.split())


@quick
def test_nothing_to_trim_by(runs):
    translator = kformer.Translator.load(RUN)
    for texts in ([], ["", "  "]):
        with pytest.raises(ValueError, match="no text to trim a vocabulary by"):
            trim_vocabulary(translator, texts)
    with pytest.raises(TypeError, match="not one text"):
        trim_vocabulary(translator, "noon")
    assert len(trim_vocabulary(translator, [b"noon"]).tokenizer.vocabulary()) == len(
        trim_vocabulary(translator, ["noon"]).tokenizer.vocabulary()
    )


def test_a_graph_segments_as_python_does(texts, tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    small = trim_vocabulary(kformer.Translator.load(RUN), texts)
    found = SavedModelTranslator(small.export(tmp_path / "small"))
    assert found(texts) == small(texts)
