"""How a program uses the public API, for the type checker alone: `mypy` runs on this file.

Each assertion of a type fails if an annotation goes missing or changes.
"""

import pathlib
from typing import assert_type

import kformer
from kformer.trainer import TrainResult
from kformer.training import Recipe


def train(folder: pathlib.Path) -> kformer.Translator:
    """Twelve lines of a user's program, as in the README."""
    sides = [folder / "train.en", folder / "train.de"]
    tokenizer = kformer.Tokenizer.train(sides)
    assert_type(tokenizer, kformer.Tokenizer)
    data = kformer.data.ParallelDataset(sides[0], sides[1], tokenizer)
    recipe = kformer.training.recommend(data)
    assert_type(recipe, Recipe)
    assert_type(recipe.reasons, dict[str, str])
    model = kformer.Transformer.from_preset(**recipe.model)
    assert_type(model, kformer.Transformer)
    recipe.compile(model)
    return kformer.Translator(model, tokenizer)


def use(translator: kformer.Translator) -> None:
    """What a translator returns."""
    assert_type(translator.translate(["noon"])[0].text, str)
    assert_type(translator.translate(["noon"])[0].hypotheses[0].score, float)
    assert_type(translator.document("noon"), str)
    assert_type(translator.document(b"noon", "html"), bytes)
    assert_type(translator.save("run"), pathlib.Path)
    assert_type(translator.export("saved_models/name"), pathlib.Path)
    assert_type(kformer.Translator.load("run"), kformer.Translator)
    assert_type(kformer.Translator.from_pretrained("owner/name"), kformer.Translator)
    assert_type(kformer.interop.load_checkpoint("folder"), kformer.Translator)
    assert_type(kformer.interop.import_checkpoint("folder", "run"), pathlib.Path)
    assert_type(kformer.export.export_saved_model(translator, "folder"), pathlib.Path)
    assert_type(kformer.trainer.train_run("run", train_source="a", train_target="b"), TrainResult)
    assert_type(kformer.evaluation.evaluate(translator, ["a"], ["b"]).bleu, float)
    assert_type(translator.tokenizer.tokenize(["noon"]), list[list[int]])
    assert_type(translator.tokenizer.detokenize([[5, 6]]), list[str])
    assert_type(kformer.trainer.model_card("run"), str)


def mistakes(translator: kformer.Translator) -> None:
    """Each line is wrong, and the checker says so: else the comment itself is an error."""
    translator.translate(5)  # type: ignore[arg-type]
    kformer.Translator.load(5)  # type: ignore[arg-type]
    kformer.Tokenizer.train(vocabulary_size="many")  # type: ignore[arg-type]
    kformer.trainer.train_run(5)  # type: ignore[arg-type]
