"""The options of a server, declared once: for Python, the command line and a configuration file.

This module imports only the standard library, as `kformer_options.training` does.
"""

import dataclasses
import os

from kformer_options.field import Option

ENGINES = ("local", "ray")
SERVED_DTYPES = ("float32", "bfloat16", "int8")
_COUNT = {"least": 1}
_SECONDS = {"above": 0, "most": 86_400}

_GROUPS = {
    "Address": [
        Option(
            "host",
            str,
            "Address to listen on. Other machines can reach the server only at an address such "
            "as 0.0.0.0.",
            "127.0.0.1",
        ),
        Option("port", int, "Port of HTTP; 0 for any free one.", 8501, least=0, most=65_535),
        Option(
            "grpc_port",
            int,
            "Port of TensorFlow Serving's gRPC; 0 for any free one.",
            unset="no gRPC",
            least=0,
            most=65_535,
        ),
        Option(
            "allowed_hosts",
            list,
            "A name that clients may call this server by, beside localhost and IP addresses; * for "
            "any. Give it again for more.",
            note="names",
            flag="allowed-host",
            metavar="NAME",
        ),
        Option(
            "api_keys",
            os.PathLike,
            "A file with one API key in each line; requests without one are refused.",
            unset="everybody may ask",
            metavar="FILE",
        ),
    ],
    "Documents": [
        Option(
            "glossaries",
            list,
            "A file of terms, as of kformer translate --glossary, which clients of "
            'LibreTranslate\'s protocol name in the field "glossary". Give it again for more.',
            note="NAME=FILE",
            flag="glossary",
            metavar="NAME=FILE",
        ),
    ],
    "Computing": [
        Option(
            "engine",
            str,
            "Where the models run: in this process (local), or in Ray's (ray).",
            "local",
            choices=ENGINES,
            metavar="NAME",
        ),
        Option(
            "replicas",
            int,
            "Batches of a model that are computed at the same time. The engine local shares the "
            "weights between them, ray has a process for each.",
            1,
            most=1_024,
            **_COUNT,
        ),
        Option(
            "ray_address",
            str,
            "With the engine ray: a Ray cluster whose machines see the models by the same paths, "
            "such as 10.0.0.1:6379.",
            unset="this machine",
            metavar="ADDRESS",
        ),
        Option(
            "dtype",
            str,
            "How the weights of a run are stored when it is exported.",
            unset="the model's own",
            choices=SERVED_DTYPES,
            metavar="NAME",
        ),
        Option(
            "max_batch_tokens",
            int,
            "Maximum number of source tokens in a batch, padding included, estimated from bytes.",
            4_096,
            **_COUNT,
        ),
        Option(
            "max_batch_texts",
            int,
            "Maximum number of texts in a batch.",
            64,
            most=65_536,
            **_COUNT,
        ),
        Option(
            "batch_wait_ms",
            float,
            "Milliseconds that a batch waits for more texts when the model is free.",
            2.0,
            least=0,
            most=10_000,
        ),
        Option(
            "poll_s",
            float,
            "Seconds from one look for new versions to the next.",
            2.0,
            **_SECONDS,
        ),
    ],
    "Limits": [
        Option("max_texts", int, "Maximum number of texts in a request.", 5_000, **_COUNT),
        Option(
            "max_attention_texts",
            int,
            "Maximum number of texts in a request for attention, whose weights are large.",
            16,
            **_COUNT,
        ),
        Option("max_text_bytes", int, "Maximum number of bytes of a text.", 32_768, **_COUNT),
        Option(
            "max_body_bytes",
            int,
            "Maximum number of bytes of a request.",
            4 * 2**20,
            least=64,
            most=2**30,
        ),
        Option(
            "max_queue",
            int,
            "Maximum number of texts of a model that are accepted and not yet answered; the rest "
            "is asked to come again (429).",
            20_000,
            **_COUNT,
        ),
        Option("deadline_s", float, "Seconds in which a request is answered.", 60.0, **_SECONDS),
        Option(
            "drain_s",
            float,
            "Seconds that a server which is ended has for the requests in flight.",
            30.0,
            **_SECONDS,
        ),
    ],
}
SERVING = {
    option.name: dataclasses.replace(option, group=group)
    for group, options in _GROUPS.items()
    for option in options
}
