"""Published weights and searches: the same numbers and the same ids as in the library that they
come from.
"""

import json

import numpy as np
import pytest
from keras import ops

from kformer.decoding import Searcher
from kformer.interop.architectures import MODEL_TYPES, model_arguments
from kformer.interop.checkpoint import CheckpointFolder
from kformer.interop.generation import search_options
from kformer.interop.weights import check_sizes, load_weights, settle_tables
from kformer.models import Transformer
from tests.interop.published import (
    KINDS,
    forward,
    generate,
    published_model,
    random_sources,
    random_targets,
    trim,
)

pytest.importorskip("transformers")
LIMIT = 30
# The float32 logits of the library itself are up to 1e-4 from its float64 ones, since these models
# have large weights ("SPREAD").
CLOSE = 5e-4


def imported(path, **arguments):
    folder = CheckpointFolder(path)
    weights = folder.open_weights()
    model = Transformer(**{**settle_tables(model_arguments(folder.config), weights), **arguments})
    load_weights(model, weights, str(path))
    return model


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """A published model and its import."""
    theirs = published_model(request.param)
    path = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(path)
    return theirs, imported(path)


def relative_difference(ours, theirs):
    return np.abs(ops.convert_to_numpy(ours) - theirs).max() / np.abs(theirs).max()


def test_encoder_output_and_logits(pair):
    theirs, ours = pair
    source_ids, target_ids = random_sources(theirs, 8), random_targets(theirs, 8)
    encoded, logits = forward(theirs, source_ids, target_ids)
    mine, mask = ours.encode(ops.convert_to_tensor(source_ids))
    real = ops.convert_to_numpy(mask)
    assert not real.all(), "the batch has padding"
    assert relative_difference(ops.convert_to_numpy(mine)[real], encoded[real]) < CLOSE
    assert (
        relative_difference(ours({"source_ids": source_ids, "target_ids": target_ids}), logits)
        < CLOSE
    )


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("kind", [*MODEL_TYPES])
def test_a_missing_key_means_what_it_means_to_transformers(kind):
    transformers = pytest.importorskip("transformers")
    whole = transformers.AutoConfig.for_model(kind).to_dict() | {"decoder_start_token_id": 2}
    names = ("activation_function", "scale_embedding", "feed_forward_proj", "dropout_rate")
    names += ("dropout", "attention_dropout", "activation_dropout", "tie_word_embeddings")
    missing = {key: value for key, value in whole.items() if key not in names}
    assert len(missing) < len(whole) - 2
    assert model_arguments(missing) == model_arguments(whole)


SETTINGS = [{"num_beams": 1}, {"num_beams": 4}]
MORE_SETTINGS = [
    {"num_beams": 4, "early_stopping": True, "forced_eos_token_id": None},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.6},
    {"num_beams": 3, "length_penalty": 2.0, "min_length": 9},
    {"num_beams": 2, "length_penalty": 0.0, "max_new_tokens": 12, "forced_eos_token_id": None},
    {"num_beams": 1, "min_new_tokens": 7, "suppress_tokens": [5, 9], "forced_eos_token_id": None},
    {"num_beams": 4, "forced_bos_token_id": 7},
    {"num_beams": 4, "renormalize_logits": True, "suppress_tokens": [5, 9, 12, 40, 41]},
]


def has_new_operations(theirs):
    """Whether half precision must be tested: mBART and BART have the operations of
    the others, and the test of the logits covers where T5 v1.1 differs from T5.
    """
    return (
        theirs.config.model_type not in ("mbart", "bart")
        and getattr(theirs.config, "feed_forward_proj", "relu") == "relu"
    )


@pytest.mark.heavy
@pytest.mark.parametrize("generation", SETTINGS + MORE_SETTINGS, ids=str)
def test_ids_of_a_search(pair, generation, backend):
    theirs, ours = pair
    if backend != "torch" and (generation not in SETTINGS or not has_new_operations(theirs)):
        pytest.skip(
            "compiling a search takes long, and what is left out here differs in no operation"
        )
    pad, end = theirs.config.pad_token_id, theirs.config.eos_token_id
    generation = {
        "max_length": LIMIT,
        "forced_eos_token_id": end,
        "bad_words_ids": [[pad]],
        **generation,
    }
    generation = {name: value for name, value in generation.items() if value is not None}
    source_ids = random_sources(theirs)
    expected = generate(theirs, source_ids, generation)
    if len(generation) <= 4:
        assert len(set(map(tuple, expected))) >= 50
        assert sum(row[-1] == end and len(row) < LIMIT - 1 for row in expected) >= 32
    options, left_out = search_options(generation, {"max_position_embeddings": 64}, ours)
    assert not left_out
    found = Searcher(ours, options)(source_ids)
    mine = [trim(row[0], end, pad) for row in found.ids]
    different = [
        i for i, (one, other) in enumerate(zip(mine, expected, strict=True)) if one != other
    ]
    assert not different


SHORT = [
    {"max_new_tokens": 1},
    {"max_length": 2},
    {"max_new_tokens": 1, "forced_eos_token_id": None},
    {"max_length": 2, "forced_eos_token_id": None},
    {"max_new_tokens": 1, "forced_bos_token_id": 7, "forced_eos_token_id": None},
    {"max_new_tokens": 2},
    {"max_length": 3, "forced_eos_token_id": None},
    {"max_new_tokens": 3, "min_new_tokens": 3, "forced_eos_token_id": None},
]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_short_limits(pair, num_beams, backend):
    """A limit of one, two or three tokens is as many as the library generates."""
    theirs, ours = pair
    is_first = theirs.config.model_type == "marian"
    if not is_first and backend != "torch":
        pytest.skip("compiling a search takes long, and the limits are the same for every model")
    pad, end = theirs.config.pad_token_id, theirs.config.eos_token_id
    source_ids = random_sources(theirs, 16)
    different = []
    for settings in SHORT if backend == "torch" else SHORT[:3]:
        generation = {"num_beams": num_beams, "forced_eos_token_id": end, **settings}
        generation = {name: value for name, value in generation.items() if value is not None}
        expected = generate(theirs, source_ids, generation)
        options, _ = search_options(generation, {"max_position_embeddings": 64}, ours)
        found = [trim(row[0], end, pad) for row in Searcher(ours, options)(source_ids).ids]
        different += [] if found == expected else [(settings, found[:2], expected[:2])]
    assert not different


@pytest.mark.any_backend
@pytest.mark.parametrize("settings", [{"max_length": 1}, {"max_new_tokens": 0}], ids=str)
def test_a_limit_of_no_token_is_refused(pair, settings):
    name, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=f"generation_config.json gives {value} for {name}"):
        search_options(settings, {}, pair[1])


def test_scores_of_a_beam(pair, backend):
    """Ranks are the library's `sequences_scores`, for all of an n-best list."""
    import torch
    import transformers

    theirs, ours = pair
    if theirs.config.model_type != "marian" or backend != "torch":
        pytest.skip(
            "compiling a search takes long, and what is left out here differs in no operation"
        )
    source_ids = random_sources(theirs, 16)
    special = {
        f"{name}_token_id": getattr(theirs.config, f"{name}_token_id")
        for name in ("pad", "eos", "decoder_start")
    }
    settings = {
        "num_beams": 4,
        "max_length": LIMIT,
        "length_penalty": 0.8,
        "num_return_sequences": 4,
        "forced_eos_token_id": 0,
    }
    # Likely tokens are forbidden, and the probabilities of the others are normalised again.
    settings |= {"renormalize_logits": True, "bad_words_ids": [[149], [23], [31], [64], [77]]}
    theirs.generation_config = transformers.GenerationConfig(
        **special, **settings, return_dict_in_generate=True, output_scores=True
    )
    ids = torch.tensor(source_ids, dtype=torch.int64)
    expected = theirs.generate(input_ids=ids, attention_mask=ids != special["pad_token_id"])
    options, _ = search_options(settings, {}, ours)
    found = Searcher(ours, options)(source_ids)
    np.testing.assert_allclose(found.ranks, expected.sequences_scores.reshape(16, 4), atol=1e-4)
    assert [trim(row, 0, 149) for row in found.ids.reshape(64, -1)] == [
        trim(row[1:], 0, 149) for row in expected.sequences.tolist()
    ]


@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_another_decoder_than_encoder(tmp_path, kind):
    """Feed-forward networks of another width and another number of heads; published models have
    both.
    """
    sizes = {"decoder_ffn_dim": 96, "decoder_attention_heads": 2}
    theirs = published_model(kind, **sizes)
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    source_ids, target_ids = random_sources(theirs), random_targets(theirs)
    _, logits = forward(theirs, source_ids, target_ids)
    mine = ours({"source_ids": source_ids, "target_ids": target_ids})
    assert relative_difference(mine, logits) < CLOSE
    pad, end = theirs.config.pad_token_id, theirs.config.eos_token_id
    for beams in (1, 4):
        generation = {"num_beams": beams, "max_length": LIMIT, "bad_words_ids": [[pad]]}
        options, _ = search_options(generation, {"max_position_embeddings": 64}, ours)
        found = [trim(row[0], end, pad) for row in Searcher(ours, options)(source_ids).ids]
        assert found == generate(theirs, source_ids, generation)


@pytest.mark.any_backend
def test_separate_vocabularies_and_projection(tmp_path):
    config = {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 120,
        "tie_word_embeddings": False,
        "scale_embedding": False,
    }
    theirs = published_model(
        "marian", spread=(0.5, 2, 1, 0), pad_token_id=1, decoder_start_token_id=1, **config
    )
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    source_ids, target_ids = random_sources(theirs, 4), random_targets(theirs, 4) % 120
    _, logits = forward(theirs, source_ids, target_ids)
    assert logits.shape[-1] == 120
    assert (
        relative_difference(ours({"source_ids": source_ids, "target_ids": target_ids}), logits)
        < CLOSE
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("model_type", ["marian", "bart", "mbart", "m2m_100"])
def test_tables_of_their_own(model_type, tmp_path):
    """Encoder, decoder and output projection, where nothing is tied."""
    import torch

    theirs = published_model(model_type, spread=(0.5, 2, 1, 0), tie_word_embeddings=False)
    with torch.no_grad():
        for part in (theirs.model.encoder, theirs.model.decoder):
            weight = part.embed_tokens.weight
            part.embed_tokens.weight = torch.nn.Parameter(weight + torch.randn_like(weight))
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    assert ours.network.source_embedding is not ours.network.target_embedding
    source_ids, target_ids = random_sources(theirs, 4), random_targets(theirs, 4)
    _, logits = forward(theirs, source_ids, target_ids)
    mine = ours({"source_ids": source_ids, "target_ids": target_ids})
    assert relative_difference(mine, logits) < CLOSE


@pytest.mark.any_backend
def test_the_targets_table_under_the_projections_name(tmp_path):
    """Of two tensors that are one, older releases of the library write the last."""
    from safetensors.numpy import load_file, save_file

    theirs = published_model(
        "marian", share_encoder_decoder_embeddings=False, decoder_vocab_size=150
    )
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.decoder.embed_tokens.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    source_ids, target_ids = random_sources(theirs, 4), random_targets(theirs, 4)
    _, logits = forward(theirs, source_ids, target_ids)
    assert (
        relative_difference(
            imported(tmp_path)({"source_ids": source_ids, "target_ids": target_ids}), logits
        )
        < CLOSE
    )


@pytest.mark.any_backend
def test_positions_are_compared_before_memory_is_taken(tmp_path):
    published_model("mbart").save_pretrained(tmp_path)
    folder = CheckpointFolder(tmp_path)
    arguments, weights = model_arguments(folder.config), folder.open_weights()
    check_sizes(arguments, weights, "there")
    with pytest.raises(
        ValueError,
        match=r"there: the tensor 'model.encoder.embed_positions.weight' has the shape \[66, 32\]",
    ):
        check_sizes({**arguments, "max_length": 10**12}, weights, "there")


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "settings",
    [
        {"max_shard_size": "20KB"},
        {"pickled": True, "old": True},
        *({"pickled": True, "kind": kind} for kind in KINDS),
    ],
    ids=str,
)
def test_shards_and_pickles(tmp_path, settings):
    import torch

    kind = settings.get("kind", "mbart")
    theirs = published_model(kind)
    theirs.save_pretrained(tmp_path, max_shard_size=settings.get("max_shard_size", "5GB"))
    if "pickled" in settings:
        # As older folders are: the state dict, tied copies and all.
        (tmp_path / "model.safetensors").unlink()
        state = {**theirs.state_dict(), "model.encoder.version": torch.tensor([3.0])}
        assert "lm_head.weight" in state
        if kind == "m2m_100":  # as its older folders have its fixed positions
            state["model.encoder.embed_positions.weights"] = (
                theirs.model.encoder.embed_positions.weights.half()
            )
        elif not kind.startswith("t5"):
            assert "model.encoder.embed_positions.weight" in state
        torch.save(
            state,
            tmp_path / "pytorch_model.bin",
            _use_new_zipfile_serialization="old" not in settings,
        )
    else:
        assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 3
    source_ids, target_ids = random_sources(theirs, 3), random_targets(theirs, 3)
    _, logits = forward(theirs, source_ids, target_ids)
    assert (
        relative_difference(
            imported(tmp_path)({"source_ids": source_ids, "target_ids": target_ids}), logits
        )
        < CLOSE
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays(tmp_path, dtype):
    import torch

    theirs = published_model("marian").to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype
    ours, exact = imported(tmp_path, dtype=dtype), imported(tmp_path)
    assert {weight.dtype for weight in ours.trainable_weights} == {dtype}
    for one, other in zip(ours.trainable_weights, exact.trainable_weights, strict=True):
        assert (
            ops.convert_to_numpy(ops.cast(one, "float32")) == ops.convert_to_numpy(other)
        ).all(), one.path
    inputs = {"source_ids": random_sources(theirs, 3), "target_ids": random_targets(theirs, 3)}
    half, full = (
        ops.convert_to_numpy(ops.cast(model(inputs), "float32")) for model in (ours, exact)
    )
    assert np.corrcoef(half.ravel(), full.ravel())[0, 1] > 0.99
