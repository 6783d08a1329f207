"""The options of a server, declared once: for Python, the command line and a configuration file.

This module imports only the standard library, as all of this package.
"""

import dataclasses
from collections.abc import Sequence

from kformer_options.field import Path, option, options_of
from kformer_options.names import add_flags

ENGINES = ("local", "ray", "torch", "ctranslate2")
SERVED_DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """The options that `kformer.serving.settings.ServerSettings` has, and models of any type."""

    models: Sequence
    host: str = option(
        "Address to listen on. Other machines can reach the server only at an address such "
        "as 0.0.0.0.",
        "127.0.0.1",
        group="Address",
    )
    port: int = option("Port of HTTP; 0 for any free one.", 8501, at_least=0, at_most=65_535)
    grpc_port: int | None = option(
        "Port of TensorFlow Serving's gRPC; 0 for any free one.",
        settled="no gRPC",
        at_least=0,
        at_most=65_535,
    )
    allowed_hosts: Sequence[str] = option(
        "A name that clients may call this server by, beside localhost and IP addresses; * for "
        "any. Give it again for more.",
        (),
        note="names",
        flag="allowed-host",
        metavar="NAME",
    )
    api_keys: Path | None = option(
        "A file with one API key in each line; requests without one are refused.",
        settled="everybody may ask",
    )
    glossaries: Sequence[str] = option(
        "A file of terms, as of kformer translate --glossary, which clients of "
        'LibreTranslate\'s protocol name in the field "glossary". NAME:en-de=FILE is for that '
        "pair of languages alone. Give it again for more.",
        (),
        group="Documents",
        note="NAME=FILE",
        flag="glossary",
        metavar="NAME=FILE",
    )
    engine: str = option(
        "What computes: TensorFlow, which SavedModels need, in this process (local) or in Ray's "
        "(ray); or, in this process and without TensorFlow, PyTorch, which runs are loaded by, or "
        "CTranslate2, which has folders of its own.",
        "local",
        group="Computing",
        choices=ENGINES,
        metavar="NAME",
    )
    replicas: int = option(
        "Batches of a model that are computed at the same time. They share the weights; the "
        "engine ray has a process for each.",
        1,
        at_most=1_024,
        at_least=1,
    )
    ray_address: str | None = option(
        "With the engine ray: a Ray cluster whose machines see the models by the same paths, "
        "such as 10.0.0.1:6379.",
        settled="this machine",
        metavar="ADDRESS",
    )
    dtype: str | None = option(
        "How the weights of a run are stored when it is exported, or loaded by PyTorch.",
        settled="the model's own",
        choices=SERVED_DTYPES,
        metavar="NAME",
    )
    trust_models: bool = option(
        "Load SavedModels whose graph may do more than translate, such as read and write files.",
        False,
    )
    max_batch_tokens: int = option(
        "Maximum number of source tokens in a batch, padding included, estimated from bytes.",
        4_096,
        at_least=1,
    )
    max_batch_texts: int = option(
        "Maximum number of texts in a batch.", 64, at_most=65_536, at_least=1
    )
    batch_wait_ms: float = option(
        "Milliseconds that a batch waits for more texts when the model is free.",
        2.0,
        at_least=0,
        at_most=10_000,
    )
    poll_s: float = option(
        "Seconds from one look for new versions to the next.", 2.0, above=0, at_most=86_400
    )
    max_texts: int = option(
        "Maximum number of texts in a request.", 5_000, group="Limits", at_least=1
    )
    max_attention_texts: int = option(
        "Maximum number of texts in a request for attention, whose weights are large.",
        16,
        at_least=1,
    )
    max_text_bytes: int = option("Maximum number of bytes of a text.", 32_768, at_least=1)
    max_body_bytes: int = option(
        "Maximum number of bytes of a request.", 4 * 2**20, at_least=64, at_most=2**30
    )
    max_queue: int = option(
        "Maximum number of texts of a model that are accepted and not yet answered; the rest "
        "is asked to come again (429).",
        20_000,
        at_least=1,
    )
    deadline_s: float = option(
        "Seconds in which a request is answered.", 60.0, above=0, at_most=86_400
    )
    drain_s: float = option(
        "Seconds that a server which is ended has for the requests in flight.",
        30.0,
        above=0,
        at_most=86_400,
    )
    threads: int | None = option(
        "Threads to compute with.", group="Machine", settled="one for each CPU core", at_least=1
    )


SERVING = options_of(ServerOptions)
add_flags(SERVING)
