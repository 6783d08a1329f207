"""The server as an application of Ray Serve: what `serve deploy` runs on a cluster.

Two deployments: the ingress, this package's own ASGI application, and the models. Ray's proxies
take HTTP and pass it on to the replicas of the ingress.
"""

import os

from kformer.serving.engine_ray import APPLICATION, DEPLOYMENT, RayEngine, models_deployment
from kformer.serving.settings import ModelSettings, ServerSettings
from kformer_options.model_folders import MODEL_FILES, name_and_path
from kformer_options.names import named
from kformer_options.serving import SERVING

INGRESS = "ingress"


def ray_config(settings):
    """What `serve deploy` takes, for the same models and options.

    Args:
        settings: `ServerSettings`, whose models are all SavedModels.

    Returns:
        dict of JSON values.

    Raises:
        ValueError: a model is a run, or an option is about this process alone.

    Example:
        ```python
        import json

        from kformer.serving.ray_app import ray_config
        from kformer.serving.settings import ServerSettings

        config = ray_config(ServerSettings(["en-de=saved_models/en-de"]))
        print(json.dumps(config, indent=2))
        ```
    """
    for model in settings.models:
        if model.is_run:
            raise ValueError(
                f"{model.path} is a run, which a cluster cannot serve: export it first (kformer "
                "export)."
            )
    dtypes = [settings.dtype, *(model.dtype for model in settings.models)]
    for name, values, reason in (
        ("dtype", dtypes, "that of a SavedModel is fixed at its export"),
        ("ray_address", [settings.ray_address], "`serve deploy` is told the cluster by itself"),
        ("engine", [settings.engine in MODEL_FILES or None], "it serves SavedModels"),
        ("grpc_port", [settings.grpc_port], "Ray's proxies pass on HTTP alone"),
    ):
        if any(value is not None for value in values):
            raise ValueError(f"{named(name)} is not for a cluster: {reason}. Leave it out.")
    arguments = {
        name: getattr(settings, name)
        for name in SERVING
        if name not in ("port", "engine") and getattr(settings, name) not in (None, [])
    }
    if settings.api_keys is not None:
        arguments["api_keys"] = os.path.abspath(settings.api_keys)
    pairs = map(name_and_path, settings.glossaries)
    if glossaries := [f"{name}={os.path.abspath(path)}" for name, path in pairs]:
        arguments["glossaries"] = glossaries
    arguments["models"] = models = []
    for model in settings.models:
        models.append({"name": model.name, "path": os.path.abspath(model.path)})
        if model.versions:
            models[-1]["versions"] = list(model.versions)
    application = {"name": APPLICATION, "import_path": f"{__name__}:build", "route_prefix": "/"}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": settings.host, "port": settings.port},
        "applications": [{**application, "args": arguments}],
    }


def build(arguments):
    """The application, as Ray Serve builds it from its configuration.

    Args:
        arguments: dict, the `args` of `ray_config`.

    Returns:
        Ray Serve's `Application`.
    """
    from ray import serve

    models = [ModelSettings(**model) for model in arguments["models"]]
    settings = ServerSettings(**{**arguments, "models": models})

    @serve.deployment(name=INGRESS, graceful_shutdown_timeout_s=settings.drain_s, **DEPLOYMENT)
    @serve.ingress()
    class IngressReplica:
        """The ingress of this package in a replica. Ray answers its requests before it ends."""

        async def __init__(self, settings, models):
            from kformer.serving.ingress.ingress import Ingress

            engine = RayEngine(settings, models)
            await engine.start()
            self.ingress = Ingress(engine, settings)
            self.ingress.is_started = True

        def __serve_build_asgi_app__(self):
            from kformer.serving.ingress.app import make_app

            return make_app(self.ingress)

    return IngressReplica.bind(settings, models_deployment(settings))
