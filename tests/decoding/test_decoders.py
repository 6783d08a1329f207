"""The interface between a search and a model: which decoder runs, and why."""

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import (
    Constraints,
    Decoder,
    EnsembleDecoder,
    FastDecoder,
    LayerDecoder,
    Searcher,
    SearchOptions,
    beam_search,
    decoder_for,
    search,
)
from kformer.models import Ensemble
from tests.decoding.small_models import BEAM, assert_same, sentences, transformer
from tests.decoding.toys import Special, Toy

COMPILED = "the backend jax compiles the layers themselves"
IS_JAX = keras.backend.backend() == "jax"


class OwnAttention(kformer.layers.MultiHeadAttention):
    """A layer of a user's own, which computes what its base class does."""


def with_own_layer():
    model = transformer()
    model.network.decoder_layers[1].cross_attention.__class__ = OwnAttention
    return model


def test_a_plain_model_runs_fast_where_the_backend_gains():
    searcher = Searcher(transformer(), BEAM)
    assert type(searcher.decoder) is (LayerDecoder if IS_JAX else FastDecoder)
    assert searcher.decoder.name == ("layers" if IS_JAX else "fast")
    assert searcher.decoder.reason == (COMPILED if IS_JAX else None)


def test_a_subclassed_layer_is_named():
    """A search with it takes longer, which the searcher can be asked; its result is the same."""
    searcher = Searcher(with_own_layer(), BEAM)
    assert searcher.decoder.name == "layers"
    expected = (
        COMPILED if IS_JAX else "decoder_layer_1/cross_attention is of the class OwnAttention"
    )
    assert searcher.decoder.reason == expected
    source_ids = sentences(3)
    assert_same(searcher(source_ids), Searcher(transformer(), BEAM)(source_ids))


def test_an_ensemble_has_a_decoder_for_each_model():
    decoder = Searcher(Ensemble([transformer(), with_own_layer()]), BEAM).decoder
    assert type(decoder) is EnsembleDecoder and decoder.name == "ensemble"
    names = ["layers", "layers"] if IS_JAX else ["fast", "layers"]
    assert [one.name for one in decoder.decoders] == names
    assert decoder.reason == decoder.decoders[1].reason
    fast = Searcher(Ensemble([transformer(), transformer()]), BEAM).decoder
    assert fast.reason == (COMPILED if IS_JAX else None)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_runs_by_the_layers(policy):
    decoder = Searcher(transformer(dtype=policy), BEAM).decoder
    assert decoder.name == "layers"
    assert decoder.reason == (COMPILED if IS_JAX else f"the model computes in {policy}")


def test_other_reasons():
    class OwnEncoder(kformer.Transformer):
        def encode(self, source_ids):
            return super().encode(source_ids)

    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2, "max_length": 9}
    language_model = kformer.TransformerDecoder(11, num_layers=1, **sizes)
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    own, gated = (
        OwnEncoder(11, **layers, **sizes),
        kformer.Transformer(11, gated=True, **layers, **sizes),
    )
    adapted = transformer(num_decoder_layers=1)
    adapted.network.encoder_layers[0].feed_forward.intermediate.enable_lora(2)
    projecting = transformer(num_decoder_layers=1, share_output=False)
    projecting.network.output_projection.enable_lora(2)
    reasons = {
        "a TransformerDecoder is not a Transformer": language_model,
        "OwnEncoder has its own encode": own,
        "the model has gated=True": gated,
        "encoder_layer_0/feed_forward/intermediate has an adapter": adapted,
        "output_projection has an adapter": projecting,
    }
    for reason, model in reasons.items():
        decoder = decoder_for(model)
        assert decoder.name == "layers" and decoder.reason == (COMPILED if IS_JAX else reason)
        assert decoder.reason in repr(decoder)


def test_a_search_needs_no_more_than_the_interface():
    """A user may write a decoder that has no model."""

    class ToyDecoder(Decoder):
        name, special, toy = "toy", Special(), Toy(seed=4, sentences=3)

        def begin(self, source_ids, width, steps, shortlist=None):
            return self.toy.step, self.toy.state(width)

    decoder, limits = ToyDecoder(), ops.convert_to_tensor(np.array([9, 4, 7], "int32"))
    options, numbers = SearchOptions(beam_size=3, n_best=2), ops.arange(3, dtype="int32")
    source_ids = ops.zeros((3, 1), dtype="int32")
    found, is_done = search(decoder, source_ids, limits, numbers, options=options, steps=10)
    expected = beam_search(
        decoder.toy.step,
        decoder.toy.state(3),
        limits,
        Constraints(Special()),
        steps=10,
        beam_size=3,
        n_best=2,
    )
    assert ops.convert_to_numpy(is_done).all()
    for part, theirs in zip(found, expected[:3], strict=True):
        np.testing.assert_array_equal(
            ops.convert_to_numpy(part), ops.convert_to_numpy(theirs)[:, :2]
        )
    assert Decoder.reason is None
    with pytest.raises(TypeError, match="abstract"):
        Decoder()


def test_constraints_that_a_search_does_not_know():
    with pytest.raises(ValueError, match="at_limit must be one of end, free_end, any, but 'stop'"):
        Constraints(at_limit="stop")
    with pytest.raises(ValueError, match="at_limit of a beam_search must be one of end, but 'any'"):
        beam_search(None, (), None, Constraints(at_limit="any"), steps=1, beam_size=1)


def test_default_constraints_forbid_start_and_padding():
    assert Constraints(Special(0, 1, 2)).forbidden_ids == {0, 1}
    assert Constraints(Special(0, 0, 1)).forbidden_ids == {0}
    assert Constraints(Special(7, 11, 7)).forbidden_ids == {11}
    assert Constraints(Special(0, 1, 2), forbidden=()).forbidden_ids == set()
