"""The options of a training: their checks."""

import dataclasses
import pathlib

import pytest

from kformer.training.options import TrainOptions, check_options
from kformer_options.training import TRAINING


@pytest.mark.any_backend
def test_the_options_are_those_that_are_declared():
    assert [field.name for field in dataclasses.fields(TrainOptions)] == list(TRAINING)
    assert all(value is None for value in dataclasses.asdict(TrainOptions()).values())
    for name, option in TRAINING.items():
        assert f"    {name}: {option.type_name}" in TrainOptions.__doc__
    options = TrainOptions(pathlib.Path("a"), "b", teachers=[pathlib.Path("run")], seed=3)
    assert (options.train_source, options.teachers, options.seed) == ("a", ["run"], 3)
    assert TrainOptions(teachers=[], model_options={}) == TrainOptions()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "options, message",
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, but 0 was given"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, but 1.5 was given"),
        ({"steps": True}, "steps must be a whole number of at least 1, but True was given"),
        ({"patience": -1}, r"patience must be a whole number of at least 0 \(0 for none\)"),
        ({"seed": 2**31}, "seed must be a whole number from 0 to 2147483647"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), but 1.0 was given"),
        ({"dropout": "0.1"}, r"dropout must be in \[0, 1\), but '0.1' was given"),
        ({"learning_rate": 0}, "learning_rate must be above 0, but 0 was given"),
        (
            {"learning_rate": float("nan")},
            "learning_rate must be a finite number, but nan was given",
        ),
        ({"consistency": float("inf")}, "consistency must be a finite number"),
        ({"teacher_weight": 1.1}, "teacher_weight must be from 0 to 1, but 1.1 was given"),
        ({"teachers": "run"}, "teachers must be a list of run directories"),
        ({"model_options": "gated"}, "model_options must be a dict of names and values"),
        ({"packed": 1}, "packed must be true or false, but 1 was given"),
        ({"train_source": 7}, "train_source must be a path or a list of paths, but 7 was given"),
        ({"tokenizer_type": "word"}, "tokenizer_type must be one of bpe, unigram"),
    ],
)
def test_each_value_is_checked(options, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions(**options)


@pytest.mark.any_backend
def test_packed_batches_have_one_shape_alone():
    with pytest.raises(
        ValueError, match="Packed batches all have one shape: leave out max_shapes=4, or packed"
    ):
        check_options(TrainOptions("a", "b", packed=True, max_shapes=4))


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "options, message",
    [
        ({"dropout": 0.1}, "There is no model option 'dropout'"),
        ({"gated": "yes"}, "The model option gated must be true or false, but 'yes' was given"),
        (
            {"hidden_dim": "wide"},
            "The model option hidden_dim must be a finite number, but 'wide' was given",
        ),
        ({"num_heads": 3}, "num_heads must divide hidden_dim, but 128 / 3 is not whole"),
        (
            {"num_encoder_layers": 0},
            "num_encoder_layers must be a whole number of at least 1, but 0 was given",
        ),
        (
            {"num_decoder_layers": 2.5},
            "num_decoder_layers must be a whole number of at least 1, but 2.5 was given",
        ),
        ({"position_encoding": "rotary"}, "position_encoding"),
    ],
)
def test_a_wrong_kind_of_model_is_known_before_the_work(options, message):
    with pytest.raises(ValueError, match=message):
        check_options(TrainOptions("a", "b", model_options=options))
