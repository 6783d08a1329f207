"""Guided alignment: a head of the cross-attention learns which source tokens are aligned.

In training a batch may have the input `alignment`, float `[B, T, S]`: for each position of the
target the distribution over the source tokens that its token is aligned with (see
`kformer.data.TokenAlignments`). Then the model records the attention of one head of one layer, and
`alignment_weight` times its cross-entropy is added to the loss. The model has no further weights.

Position t is where the decoder reads the token, not where it predicts it. So the head knows the
word that it aligns (as in Chen et al. 2020, "Accurate word alignment induction from neural machine
translation"), and the other heads are free for prediction.

References:
    Garg et al. 2019, "Jointly learning to align and translate with Transformer models".
"""

import contextvars

from kformer.utils.contexts import context_value

# The head that is guided.
ALIGNMENT_HEAD = 0
# What the current step records. It is per thread, since a strategy with several devices runs the
# steps in one thread per device.
_RECORD = contextvars.ContextVar("kformer_recorded_attention", default=None)


def alignment_layer(model):
    """Returns the decoder layer that aligns: the last one, or the last but one of four or more.

    Guided alignment trains it, and alignments are read from it. Garg et al. found it best.

    Args:
        model: `Transformer`.

    Returns:
        int.
    """
    layers = len(model.network.decoder_layers)
    return layers - (1 if layers < 4 else 2)


def check_guidable(attention_kind):
    """Checks that a model can be trained with alignments.

    Args:
        attention_kind: str. The model's kind of attention.

    Raises:
        ValueError: it computes no probabilities of all pairs.
    """
    if attention_kind != "full":
        raise ValueError(
            "Guided alignment needs the probabilities of full attention, but the model has "
            f"attention_kind={attention_kind!r}: train without alignments, or without that option."
        )


def recording_attention():
    """A context in which the model records the attention that `alignment_loss` needs."""
    return context_value(_RECORD, {})


def guided_recording(model):
    """Arguments of `Network.decode` that record the attention of the guided layer.

    Args:
        model: `Transformer`.

    Returns:
        dict; empty outside of a training step.
    """
    record = _RECORD.get()
    if record is None:
        return {}
    check_guidable(model.config.attention_kind)
    return {"record": record, "recorded_layer": alignment_layer(model)}


def alignment_loss(loss, alignment):
    """Returns the part of a step's loss that guides the alignment.

    Args:
        loss: `kformer.training.MaskedCrossentropy`.
        alignment: float tensor `[B, T, S]`. The input of that name.

    Returns:
        float32 scalar.

    Raises:
        ValueError: the loss has no guided alignment, or the model has no cross-attention.
    """
    if not hasattr(loss, "of_alignment"):
        raise ValueError(
            "A batch with alignments needs kformer.training.MaskedCrossentropy as the model's loss."
        )
    scores = (_RECORD.get() or {}).pop("cross_attention_scores", None)
    if scores is None:
        raise ValueError(
            "A batch with alignments needs a kformer.Transformer, whose cross-attention they guide."
        )
    return loss.alignment_weight * loss.of_alignment(scores[0][:, ALIGNMENT_HEAD], alignment)
