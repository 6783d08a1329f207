"""The options that several commands have."""

import inspect
from typing import Annotated

import typer


def option(*names, help, **kwargs):
    return typer.Option(*names, help=help, show_default=kwargs.pop("show_default", False), **kwargs)


# `--backend` and `--threads` are read by kformer_cli.environment, before Keras is imported; here
# they are declared and explained.
BACKEND_HELP = (
    "The library that computes: tensorflow, jax or torch. Default: $KERAS_BACKEND, else Keras's "
    "own choice (tensorflow)."
)
THREADS_HELP = "Threads to compute with. Default: one for each CPU core."
Backend = Annotated[str | None, option("--backend", metavar="NAME", help=BACKEND_HELP)]
Threads = Annotated[int | None, option("--threads", help=THREADS_HELP)]
Devices = Annotated[
    str | None,
    option(
        "--devices",
        metavar="N|all",
        help="Devices of this machine that share each batch of texts, as several GPUs (a run, with "
        "JAX). Default: 1.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    option(
        "--hosts",
        metavar="HOST[:PORT]",
        help="The addresses of all hosts that train together, the first of which writes RUN, with "
        "commas between them (JAX); auto takes those of Slurm, torchrun or KFORMER_HOSTS. All need "
        "the same files and a private network. Give the option again for more. Default: this host "
        "alone.",
    ),
]
HostIndex = Annotated[
    int | None,
    option(
        "--host-index",
        min=0,
        help="The number of this host among --hosts, from 0. Default: that of --hosts auto.",
    ),
]
Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_SAVED_MODEL", help="A run directory, or a SavedModel: NAME or NAME/VERSION."
    ),
]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, as `kformer train` writes it.")
]
Ensemble = Annotated[
    list[str] | None,
    option(
        "--ensemble",
        metavar="RUN",
        help="A further run that translates together with the first. Give the option again for "
        "more.",
    ),
]
BeamSize = Annotated[
    int | None,
    option(
        "--beam-size",
        help="Live hypotheses per sentence; 1 is greedy search, the fastest. Default: the "
        "model's, which is 4 after training.",
    ),
]
LengthPenalty = Annotated[
    float | None,
    option(
        "--length-penalty",
        help="Exponent of the length penalty; more favours longer translations, 0 is none. "
        "Default: the run's, which its training chose; 0.6 without a validation set.",
    ),
]
MaxLength = Annotated[
    int | None,
    option(
        "--max-length",
        help="Maximum number of tokens of a translation. Default: one below the model's limit.",
    ),
]
LengthRatio = Annotated[
    float | None,
    option(
        "--length-ratio",
        help="With --length-offset: most tokens of a translation as RATIO * source tokens + "
        "OFFSET. A high length penalty needs a low limit, or it favours sentences that repeat "
        "themselves. Default: the run's, which its training chose, or else 2.",
    ),
]
LengthOffset = Annotated[
    int | None,
    option("--length-offset", help="See --length-ratio. Default: the run's, or 32."),
]
RepetitionPenalty = Annotated[
    float | None,
    option(
        "--repetition-penalty",
        help="What tokens that have occurred in a translation cost: above 1 they become less "
        "likely; 1.2 is usual. Default: the model's, which is 1 (nothing) after training.",
    ),
]
NoRepeatNgramSize = Annotated[
    int | None,
    option(
        "--no-repeat-ngram-size",
        help="No sequence of N tokens occurs twice in a translation; 0 for no limit. "
        "Default: the model's, which is 0 after training.",
    ),
]
MaxTextBytes = Annotated[
    int | None,
    option(
        "--max-text-bytes",
        help="Maximum number of bytes of a text that are read. Default: 64 for each token of the "
        "model's limit, "
        "and at least 4096.",
    ),
]
SourceLanguage = Annotated[
    str | None,
    option(
        "--source-language",
        metavar="CODE",
        help="Source language, of a model of several, such as eng_Latn. Default: its own.",
    ),
]
TargetLanguage = Annotated[
    str | None,
    option(
        "--target-language",
        metavar="CODE",
        help="Target language, of a model of several. Default: its own.",
    ),
]
BatchSize = Annotated[
    int,
    option(
        "--batch-size",
        min=1,
        show_default=True,
        help="Sentences translated at once: more is faster, until memory runs out.",
    ),
]


Json = Annotated[bool, option("--json", help="Print one JSON object instead of lines to read.")]
Sample = Annotated[
    bool, option("--sample", help="Sample translations instead of searching for the best.")
]
Mbr = Annotated[
    int | None,
    option(
        "--mbr",
        min=2,
        help="Minimum Bayes risk decoding: of N samples the translation that is most like "
        "the others (by chrF). Default: no samples.",
    ),
]
Temperature = Annotated[
    float | None,
    option(
        "--temperature",
        help="With --sample or --mbr: below 1 likelier tokens are sampled more often, above 1 "
        "rarer ones. Default: 1.",
    ),
]
TopK = Annotated[
    int | None,
    option(
        "--top-k",
        help="With --sample or --mbr: sample among the k likeliest tokens. Default: all.",
    ),
]
TopP = Annotated[
    float | None,
    option(
        "--top-p",
        help="With --sample or --mbr: sample among the likeliest tokens that hold this much "
        "probability. Default: 1, all.",
    ),
]
SampleSeed = Annotated[
    int | None,
    option("--seed", help="With --sample or --mbr: seed of the random numbers. Default: 0."),
]

# Groups of options, which commands take as they are: name to declaration.
LIMITS = {"length_ratio": LengthRatio, "length_offset": LengthOffset}
SEARCH = {
    "beam_size": BeamSize,
    "length_penalty": LengthPenalty,
    "max_length": MaxLength,
    **LIMITS,
    "repetition_penalty": RepetitionPenalty,
    "no_repeat_ngram_size": NoRepeatNgramSize,
    "max_text_bytes": MaxTextBytes,
}
SAMPLING = {"temperature": Temperature, "top_k": TopK, "top_p": TopP, "seed": SampleSeed}
LANGUAGES = {"source_language": SourceLanguage, "target_language": TargetLanguage}
MACHINE = {"threads": Threads, "backend": Backend}


def in_panel(name, declarations):
    """The same declarations, which `--help-all` shows under this heading."""
    for annotation in declarations.values():
        annotation.__metadata__[0].rich_help_panel = name
    return declarations


for _name, _group in (
    ("Search", SEARCH),
    ("Sampling", {"sample": Sample, "mbr": Mbr, **SAMPLING}),
    ("Languages", LANGUAGES),
    ("Machine", {**MACHINE, "batch_size": BatchSize, "devices": Devices}),
):
    in_panel(_name, _group)


def with_options(declarations, **defaults):
    """A decorator: gives a command declared options, which it takes as `**options`.

    The option parser makes the command line of a function's signature. This writes one: the
    function's own parameters, then the declared ones.

    Args:
        declarations: dict of parameter name to its `Annotated` type.
        **defaults: defaults of these parameters. All others are `None`.
    """

    def decorate(command):
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind != inspect.Parameter.VAR_KEYWORD
        ]
        declared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation,
                default=defaults.get(name),
            )
            for name, annotation in declarations.items()
        ]
        command.__signature__ = inspect.Signature([*own, *declared])
        command.__annotations__ = command.__annotations__ | declarations
        return command

    return decorate


def given(options, names):
    """The options of these names that are set."""
    return {name: options[name] for name in names if options[name] is not None}


def parsed_devices(text):
    """The value of `--devices`: a number, "all" or `None`.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text is None or text == "all":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(
            f"give a whole number of at least 1, or all, not {text!r}", param_hint="'--devices'"
        )
    return int(text)
