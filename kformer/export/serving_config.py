"""Files with which TensorFlow Serving serves an exported model as it should be served."""

import json
import pathlib

from kformer.utils import files
from kformer.utils.checks import check_whole

CONFIG_FILES = ("models.config", "batching_parameters.txt", "compose.yaml")
# Where the container finds the folder of models.
_MOUNT = "/models"
_IMAGE = "tensorflow/serving:latest"
# The most texts of a request, which is computed in batches.
_MOST_TEXTS = 4096

_MODEL = """\
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
"""
_COMPOSE = """\
# Starts TensorFlow Serving: docker compose up
services:
  tensorflow-serving:
    image: {image}
    command:
      - --model_config_file={mount}/models.config
      - --model_config_file_poll_wait_seconds=30
      - --enable_batching=true
      - --batching_parameters_file={mount}/batching_parameters.txt
    ports:
      - "127.0.0.1:8500:8500" # gRPC
      - "127.0.0.1:8501:8501" # REST
    volumes:
      - ./:{mount}:ro
    restart: unless-stopped
"""


def write_serving_config(folder, *, max_batch_size=64, threads=1):
    """Writes the configuration of TensorFlow Serving beside an exported model.

    `models.config` names every model in the folder around the model's, so that one server serves
    all that are exported there. `batching_parameters.txt` makes a batch of requests that come at
    the same time, and `compose.yaml` starts the server by `docker compose up`. Files of these names
    that stand there are replaced.

    That server batches the calls of each signature, and refuses a batch whose inputs differ in
    another size than the first. So call the signatures `constrained` and `single`, and those that
    take ids, on a server without `--enable_batching`.

    Args:
        folder: path. The exported model's folder, such as `saved_models/en-de`.
        max_batch_size: int, default 64. Maximum of a batch. A request of more, up to 4,096, is
            computed in several.
        threads: int, default 1. Batches that are computed at the same time.

    Returns:
        List of `pathlib.Path`, the files, in the folder around the model's.

    Raises:
        ValueError: a number is not a whole number of at least 1.

    Example:
        ```python
        from kformer.export.serving_config import write_serving_config

        write_serving_config("saved_models/en-de")
        ```
    """
    check_whole("max_batch_size", max_batch_size)
    check_whole("threads", threads)
    parent = pathlib.Path(folder).resolve().parent
    names = sorted({file.parent.parent.name for file in parent.glob("*/*/saved_model.pb")})
    models = (_MODEL.format(name=_quoted(name), path=_quoted(f"{_MOUNT}/{name}")) for name in names)
    contents = (
        "model_config_list {\n" + "".join(models) + "}\n",
        _batching_parameters(max_batch_size, threads),
        _COMPOSE.format(image=_IMAGE, mount=_MOUNT),
    )
    for name, content in zip(CONFIG_FILES, contents, strict=True):
        with files.replacing(parent / name) as aside:
            aside.write_text(content, encoding="utf-8")
    return [parent / name for name in CONFIG_FILES]


def _batching_parameters(max_batch_size, threads):
    """`BatchingParameters` as text."""
    sizes = [2**power for power in range(max_batch_size.bit_length()) if 2**power < max_batch_size]
    lines = [
        f"max_batch_size {{ value: {max(_MOST_TEXTS, max_batch_size)} }}",
        "enable_large_batch_splitting { value: true }",
        f"max_execution_batch_size {{ value: {max_batch_size} }}",
        "batch_timeout_micros { value: 2000 }",
        # A full queue answers UNAVAILABLE at once, instead of after the client's deadline.
        "max_enqueued_batches { value: 100 }",
        f"num_batch_threads {{ value: {threads} }}",
        # A batch is padded up to the next of these sizes.
        *(f"allowed_batch_sizes: {size}" for size in [*sizes, max_batch_size]),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text):
    """A string of the text format: its escapes are those of JSON, in UTF-8."""
    return json.dumps(text, ensure_ascii=False)
