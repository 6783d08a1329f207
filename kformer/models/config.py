"""The options of the models: each is described once, as a field of a dataclass.

A field has the option's name, type, default, limits and meaning (see `kformer_options.field`). From
these fields come the signatures of the models, the lists of arguments in their docstrings, their
saved configurations, and the lists of options that a published format does not support. If a layer
has an option with the name of a field, it receives the field's value.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from kformer.layers.counter_hash import settled_seed
from kformer.layers.decoder_layer import AUTOREGRESSIONS
from kformer.layers.feed_forward import ACTIVATIONS
from kformer.layers.multi_head_attention import KINDS
from kformer.layers.normalization import NORMALIZATIONS
from kformer.layers.positional_embedding import POSITION_ENCODINGS
from kformer.utils.checks import check_whole
from kformer_options.field import check_values, docstring_entry, option

# Positions that act within attention; the others are added to the embeddings.
RELATIVE_POSITIONS = ("rope", "alibi", "t5", "shaw")
# What may differ between the encoder's layers and the decoder's.
_OF_EACH_SIDE = ("intermediate_dim", "num_heads", "normalize_first")
# The options of self-attention alone.
_OF_SELF_ATTENTION = ("attention_kind", "attention_window", "attention_dilation", "global_tokens")


# Every value except the default, in the metadata of a field.
NOT_DEFAULT = object()
# `variant`: the values that make the model differ from the paper's and from published models
# (Marian, fairseq, BART). Formats and programs that support only those models refuse these values.
# An option has no `variant` if every format supports it, or if it matters only in training or
# together with another option.
_VARIANT = {"variant": NOT_DEFAULT}
# `unpackable`: the values with which a model cannot keep the sequences of packed rows apart.
# `is_rate`: a rate that matters only in training, and may change from one training to the next.
_RATE = {"at_least": 0, "below": 1, "metadata": {"is_rate": True}}


def other_default(base: type, name: str, default: Any) -> Any:
    """Returns the field of a base class with another default.

    Args:
        base: dataclass that has the field.
        name: str. The name of the field.
        default: any type. The new default.

    Returns:
        `dataclasses.Field`.
    """
    metadata = base.__dataclass_fields__[name].metadata
    return dataclasses.field(default=default, metadata=metadata)


def describes(config_class):
    """A class decorator: an entry for each option replaces `{options}` in a model's docstring.

    Options that the docstring describes itself are left out.

    Args:
        config_class: dataclass of the model's options.

    Returns:
        Function that takes the class and returns it.
    """

    def decorate(cls):
        if cls.__doc__ is not None:  # It is None under python -OO.
            fields = sorted(dataclasses.fields(config_class), key=lambda field: field.kw_only)
            entries = [
                docstring_entry(config_class, field.name)
                for field in fields
                if f"\n        {field.name}: " not in cls.__doc__
            ]
            cls.__doc__ = cls.__doc__.replace("        {options}", "\n".join(entries))
        return cls

    return decorate


@dataclass(frozen=True, kw_only=True)
class ModelArguments:
    """The arguments of a model that are no option of its architecture."""

    dtype: Any = None
    name: str = ""
    trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The options that all models of stacked layers share."""

    hidden_dim: int = option("D, the width of the residual stream.", 512, at_least=1)
    intermediate_dim: int = option("The width of the feed-forward networks.", 2048, at_least=1)
    num_heads: int = option(
        "N, the number of attention heads; it must divide `hidden_dim`.", 8, at_least=1
    )
    dropout: float = option(
        "The dropout rate on sub-layer outputs and on the embedding sum.", 0.1, **_RATE
    )
    attention_dropout: float = option("The dropout rate on attention probabilities.", 0.0, **_RATE)
    activation_dropout: float = option(
        "The dropout rate inside the feed-forward networks.", 0.0, **_RATE
    )
    stochastic_depth: float = option(
        "The rate at which the sub-layers of the last layer are left out for a sequence; the rates "
        "of the layers below grow evenly up to it.",
        0.0,
        **_RATE,
    )
    activation: str = option(
        "The activation of the feed-forward networks.",
        "relu",
        choices=ACTIVATIONS,
        metadata={"variant": ("gelu_tanh", "gelu_sigmoid")},
    )
    gated: bool = option(
        "Whether the feed-forward networks are gated: GeGLU with gelu, SwiGLU with silu.",
        False,
        metadata=_VARIANT,
    )
    normalize_first: bool = option(
        "Whether norms come before the sub-layers (pre-norm) or after them (post-norm).", True
    )
    final_norm: bool | None = option(
        "Whether a norm follows the last layer of each stack; `None` for pre-norm alone, which "
        "needs it.",
        metadata=_VARIANT,
    )
    normalization: str = option(
        "The kind of all norms.", "layer_norm", choices=NORMALIZATIONS, metadata=_VARIANT
    )
    layer_norm_epsilon: float = option(
        "Is added to the variance (or to the mean square) in every norm.", 1e-5
    )
    use_bias: bool = option(
        "Whether the linear maps of the layers add a bias.", True, metadata={"variant": (False,)}
    )
    head_dim: int | None = option(
        "H, the size of a head; `None` for D / N.", at_least=1, metadata=_VARIANT
    )
    num_key_value_heads: int | None = option(
        "Heads of keys and values, which several heads of queries share (grouped-query attention); "
        "`None` for N.",
        metadata=_VARIANT,
    )
    attention_scale: float | None = option(
        "The factor of the attention scores; `None` for 1 / sqrt(H).", metadata=_VARIANT
    )
    position_encoding: str | None = option(
        'Added to the embeddings are `"sinusoidal"`, `"learned"`, `"sinusoidal_fairseq"`, the '
        "fixed vectors of fairseq's and Marian's own models, and `\"sinusoidal_halves\"`, those of "
        "Marian models in the library transformers. "
        'Self-attention sees `"rope"` (rotary positions), `"alibi"` (scores fall with the '
        'distance), `"t5"` (a learned bias for each distance) and `"shaw"` (learned vectors for '
        "each distance, added to keys and values). `None` for no positions.",
        "sinusoidal",
        choices=(*filter(None, POSITION_ENCODINGS), *RELATIVE_POSITIONS, None),
        metadata={"variant": RELATIVE_POSITIONS},
    )
    rotary_base: float = option("`base` of `kformer.layers.rotate_positions`.", 10_000.0, above=0)
    rotary_interleaved: bool = option("`interleaved` of `kformer.layers.rotate_positions`.", False)
    relative_buckets: int = option("`num_buckets` of `kformer.layers.RelativePositionBias`.", 32)
    relative_max_distance: int = option(
        '`max_distance` of `kformer.layers.RelativePositionBias`; with `"shaw"` the distance from '
        "which on all share a vector.",
        128,
        at_least=1,
    )
    relative_shared: bool = option(
        'Whether keys and values share the vectors of `"shaw"`, as in OpenNMT-py.', False
    )
    attention_kind: str = option(
        "`kind` of the self-attentions, as in `kformer.layers.MultiHeadAttention`.",
        "full",
        choices=KINDS,
        metadata={**_VARIANT, "unpackable": ("linear",)},
    )
    attention_window: int | None = option("`window` of local self-attention.", metadata=_VARIANT)
    attention_dilation: int = option("`dilation` of local self-attention.", 1, metadata=_VARIANT)
    global_tokens: int = option(
        "`global_tokens` of local self-attention.",
        0,
        metadata={**_VARIANT, "unpackable": NOT_DEFAULT},
    )
    max_length: int = option(
        "The longest sequence that training data and searches should use; with learned positions "
        "also the size of their table.",
        512,
        at_least=1,
    )
    seed: int | None = option(
        "For the initial weights and the dropout; each layer derives its own. `None` for a random "
        "one.",
        0,
    )

    def __post_init__(self):
        check_values(self)
        self._check_heads("num_heads", self.num_heads)
        if self.attention_window is not None and self.attention_kind != "local":
            raise ValueError(
                f"attention_window={self.attention_window} is for attention_kind='local', but it "
                f"is {self.attention_kind!r}: change that, or leave the window out."
            )
        conflict = f"global_tokens={self.global_tokens}" if self.global_tokens else None
        if self.attention_kind == "linear":
            conflict = "attention_kind='linear'"
        if self.position_encoding in ("alibi", "t5") and conflict is not None:
            raise ValueError(
                f"position_encoding={self.position_encoding!r} adds to the scores, which does not "
                f"go with {conflict}: choose 'rope', or positions that are added to the embeddings."
            )
        if self.position_encoding == "shaw" and self.attention_kind != "full":
            raise ValueError(
                "position_encoding='shaw' needs full attention, but attention_kind is "
                f"{self.attention_kind!r}: choose 'rope', or positions that are added to the "
                "embeddings."
            )
        self._set("seed", settled_seed(self.seed))

    def _check_heads(self, name, heads):
        if self.head_dim is None and self.hidden_dim % heads:
            raise ValueError(
                f"{name} must divide hidden_dim, but {self.hidden_dim} / {heads} is not whole."
            )

    def _set(self, name, value):
        object.__setattr__(self, name, value)  # The dataclass is frozen.

    @classmethod
    def of(cls, options):
        """Makes a configuration.

        Args:
            options: dict of str to value. Options that are not in it have their defaults.

        Returns:
            An instance of this class.

        Raises:
            ValueError: an option is unknown, or a value is bad.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            raise ValueError(f"Unknown option {unknown[0]!r}: the options are {', '.join(names)}.")
        return cls(**options)

    def to_dict(self):
        """Returns the options by name, for a saved file."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def rates(self):
        """Set of str: the names of the rates, which may change from one training to the next."""
        return {field.name for field in dataclasses.fields(self) if "is_rate" in field.metadata}

    @property
    def embedding_options(self):
        """Dict: arguments of the embeddings, for their added positions and their dropout."""
        positions = self.position_encoding
        return {
            "position_encoding": None if positions in RELATIVE_POSITIONS else positions,
            "max_length": self.max_length if positions == "learned" else None,
            "dropout": self.dropout,
        }


@dataclass(frozen=True, kw_only=True)
class TokenConfig(Architecture):
    """The options that all models of token ids share."""

    # A positional argument; type checkers see that in `dataclasses.field` alone.
    vocabulary_size: int = dataclasses.field(
        kw_only=False, metadata=option("V, the number of token ids.", at_least=1).metadata
    )
    scale_embeddings: bool = option(
        "Whether token vectors are multiplied by sqrt(D), as in the paper.", True
    )
    pad_id: int = option("The id of the padding token.", 0)


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig(TokenConfig):
    """The options that all models which generate tokens share."""

    share_output: bool = option(
        "Whether the output projection uses the (target's) embedding table.", True
    )
    start_id: int = option("The id of the start token.", 2)
    end_id: int = option("The id of the end token.", 3)

    def __post_init__(self):
        super().__post_init__()
        size = getattr(self, "target_vocabulary_size", None) or self.vocabulary_size
        for name in ("pad_id", "start_id", "end_id"):
            if not 0 <= (value := getattr(self, name)) < size:
                raise ValueError(f"{name} must be an id below {size}, but {value} was given.")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(GeneratorConfig):
    """The options of `kformer.Transformer`."""

    num_encoder_layers: int = option("Layers of the encoder.", 6, at_least=1)
    num_decoder_layers: int = option("Layers of the decoder.", 6, at_least=1)
    normalize_first: bool = other_default(Architecture, "normalize_first", False)
    max_length: int = other_default(Architecture, "max_length", 256)
    target_vocabulary_size: int | None = option(
        "V of the target if it differs from the source's; then nothing is shared between the "
        "sides. Two vocabularies of one size need `share_embeddings=False`.",
        at_least=1,
    )
    share_embeddings: bool = option(
        "Whether source and target use one embedding table (a joint vocabulary).", True
    )
    scale_output: bool = option(
        "Whether what is projected to the vocabulary is divided by sqrt(D), as in T5.",
        False,
        metadata=_VARIANT,
    )
    position_offset: int = option(
        "The position of a sequence's first token; fairseq's models count from 2.", 0
    )
    normalize_embeddings: bool = option(
        "Whether, as in BART, each side has positions of its own and a layer norm after them.",
        False,
    )
    output_bias: bool = option("Whether logits have a bias, as Marian's.", False)
    zero_start: bool = option(
        "Whether training leaves the start token's vector zero, as Marian's always is.", False
    )
    decoder_intermediate_dim: int | None = option(
        "`intermediate_dim` of the decoder if it differs.", at_least=1
    )
    decoder_num_heads: int | None = option("`num_heads` of the decoder if it differs.", at_least=1)
    decoder_normalize_first: bool | None = option("`normalize_first` of the decoder if it differs.")
    decoder_autoregression: str = option(
        'How the decoder reads earlier tokens: by `"self_attention"`, or by `"ssru"`, a recurrent '
        "cell (`kformer.layers.SSRU`), as Firefox's and Marian's models for quick translation do. "
        "The options of self-attention are then the encoder's alone.",
        "self_attention",
        choices=AUTOREGRESSIONS,
        metadata={"variant": ("ssru",)},
    )

    def __post_init__(self):
        super().__post_init__()
        for name in _OF_EACH_SIDE:
            if getattr(self, f"decoder_{name}") == getattr(self, name):
                self._set(f"decoder_{name}", None)
        self._check_heads("decoder_num_heads", self.decoder_num_heads or self.num_heads)
        if self.target_vocabulary_size in (None, self.vocabulary_size):
            self._set("target_vocabulary_size", None)
        else:
            self._set("share_embeddings", False)

    @property
    def of_decoder(self):
        """The decoder's options: those of its layers have the names without `decoder_`."""
        options = {f"decoder_{name}": None for name in _OF_EACH_SIDE}
        for name in _OF_EACH_SIDE:
            if (value := getattr(self, f"decoder_{name}")) is not None:
                options[name] = value
        if self.decoder_autoregression == "ssru":
            fields = self.__dataclass_fields__
            options |= {name: fields[name].default for name in _OF_SELF_ATTENTION}
            if self.position_encoding in RELATIVE_POSITIONS:
                options["position_encoding"] = None
        return dataclasses.replace(self, **options)


@dataclass(frozen=True, kw_only=True)
class TransformerArguments(TransformerConfig, ModelArguments):
    """The arguments of `kformer.Transformer`."""


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(GeneratorConfig):
    """The options of `kformer.TransformerDecoder`."""

    num_layers: int = option("Layers of the stack.", 6, at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.start_id == self.pad_id:
            raise ValueError(
                f"start_id and pad_id are both {self.pad_id}, and a language model does not read "
                "padding: give the start token an id of its own."
            )
        if self.global_tokens:
            raise ValueError(
                "A language model cannot have global_tokens: prompts of a batch begin at different "
                "positions; leave it at 0."
            )


@dataclass(frozen=True, kw_only=True)
class DecoderArguments(DecoderConfig, ModelArguments):
    """The arguments of `kformer.TransformerDecoder`."""


POOLINGS = ("mean", "first")
HEADS = ("classification", "regression", "labelling", "embedding")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TokenConfig):
    """The options of `kformer.TransformerEncoder`."""

    num_layers: int = option("Layers of the stack.", 6, at_least=1)
    head: str | None = option(
        "What the model predicts; `None` for hidden states.", choices=(*HEADS, None)
    )
    num_outputs: int | None = option(
        "Classes, or numbers (1 for an unset regression), or the size of an embedding (`None` for "
        "the pooled vector as it is)."
    )
    pooling: str = option(
        "The mean of the real tokens, or the first one.", "mean", choices=POOLINGS
    )

    def __post_init__(self):
        super().__post_init__()
        if self.head == "regression" and self.num_outputs is None:
            self._set("num_outputs", 1)
        if self.head is None and self.num_outputs is not None:
            raise ValueError(
                f"num_outputs={self.num_outputs} needs a head: choose one of {', '.join(HEADS)}."
            )
        if self.num_outputs is not None or self.head in ("classification", "labelling"):
            check_whole("num_outputs", self.num_outputs)


@dataclass(frozen=True, kw_only=True)
class EncoderArguments(EncoderConfig, ModelArguments):
    """The arguments of `kformer.TransformerEncoder`."""


def variants_of(config, supported=()):
    """Lists the options that make a `Transformer` differ from the paper's and published models.

    Formats and programs that support only those models refuse all others.

    Args:
        config: dict. The options of a `Transformer`, as `TransformerConfig.to_dict` returns them.
        supported: tuple, default `()`. Values of options that are left out, such as `("rope",)`.

    Returns:
        List of str, such as `"gated=True"`.
    """
    variants = _fields_with("variant", TransformerConfig, config)
    return [f"{name}={value!r}" for name, value in variants if value not in supported]


def check_packing(options):
    """Checks that a model keeps the sequences of packed rows apart.

    Args:
        options: dict. Options of a model; unset ones have their defaults.

    Raises:
        ValueError: the model has linear attention, which sums over a whole row, or global tokens,
            which are the first of a row and not of each sequence.
    """
    for name, value in _fields_with("unpackable", Architecture, options):
        raise ValueError(
            f"A model with {name}={value!r} cannot keep apart the sequences of packed rows: use "
            "packed=False, or full attention."
        )


def _fields_with(mark, config_class, options):
    """Yields name and value of each option whose value is in its metadata `mark`."""
    for field in dataclasses.fields(config_class):
        values, value = field.metadata.get(mark, ()), options.get(field.name, field.default)
        if value != field.default if values is NOT_DEFAULT else value in values:
            yield field.name, value
