"""The command that serves: `serve`."""

import logging
import os
import pathlib
import signal
import sys

import typer

from kformer_cli.environment import Interrupted, quiet_imports
from kformer_cli.options import flag, option, set_options, with_options
from kformer_options.configuration import read_values
from kformer_options.installed import check_extra, check_server
from kformer_options.key_file import keys_in
from kformer_options.model_folders import check_served, name_and_path
from kformer_options.serving import SERVING
from kformer_options.text_files import check_rereadable


@with_options(SERVING)
def serve(
    models: list[str] | None = typer.Argument(
        None,
        metavar="[NAME=]PATH...",
        help="A SavedModel, NAME/ with its versions or one version; or a run, which is exported "
        "first, unless --engine torch loads it. A name of two languages, such as en-de, is also "
        "served by LibreTranslate's protocol.",
    ),
    config: pathlib.Path | None = option(
        "A YAML file with models and options by their names, such as grpc_port: 8500. What stands "
        "on the command line comes first.",
        metavar="FILE",
    ),
    print_ray_config: bool = flag(
        "--print-ray-config",
        "Print what `serve deploy` takes to serve the same on a Ray cluster, and end.",
    ),
    **options,
):
    """Serve models: TensorFlow Serving's REST and gRPC, the Open Inference Protocol and
    LibreTranslate's, with batches, limits and metrics.

    Texts of many requests are translated together. A new version folder takes over without a
    failed request. SIGTERM answers what is in flight, then ends.

    Example: [bold]kformer serve en-de=saved_models/en-de --port 8501[/bold]
    """
    # Keras takes its backend when it is imported, so that a configuration is read before that.
    values = {} if config is None else read_values(config)
    engine = options["engine"] or values.get("engine", "local")
    if engine == "torch":
        os.environ["KERAS_BACKEND"] = "torch"
    if print_ray_config:
        check_extra("--print-ray-config", "serve", ("yaml",))
    else:
        for model in models or ():
            check_served(engine, name_and_path(model)[1])
        if options["api_keys"] is not None:
            check_rereadable(options["api_keys"], "--api-keys")
            keys_in(options["api_keys"])
        check_server(engine, options["grpc_port"])
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    for name in ("uvicorn", "tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with quiet_imports():
        from kformer.serving.run import serve as run
        from kformer.serving.settings import ServerSettings, checked
    settings = {"models": (), **checked(values, config)}
    settings |= set_options(options, SERVING)
    if models:
        settings["models"] = tuple(models)
    settings = ServerSettings(**settings)
    if print_ray_config:
        import yaml

        from kformer.serving.ray_app import ray_config

        print(yaml.safe_dump(ray_config(settings), sort_keys=False), end="")
        return
    try:
        run(settings, report=lambda line: print(line, flush=True))
    except KeyboardInterrupt as error:
        code = 128 + getattr(error, "signal_number", signal.SIGINT)
        raise Interrupted("interrupted before the server began.", code) from None
