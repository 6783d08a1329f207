"""The settings of a server: the options that `kformer_options.serving` declares, with models."""

import dataclasses
import difflib
import os
import pathlib
import re

from kformer.documents.glossary import Glossary
from kformer.serving.versions import version_folders
from kformer_options.field import check_values, documented
from kformer_options.installed import check_extra
from kformer_options.key_file import keys_in
from kformer_options.model_folders import is_run, languages_of_name, name_and_path
from kformer_options.names import named
from kformer_options.serving import SERVED_DTYPES, SERVING, ServerOptions
from kformer_options.wording import shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_CONFIG_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """One model to serve.

    Args:
        name: str. What requests call it. A pair of languages, such as "en-de", is also served by
            LibreTranslate's protocol.
        path: path. A SavedModel, `NAME/` with versions or one version's folder; or a run directory,
            which is exported first.
        versions: tuple of int, default `None`, for the newest one and every newer one that
            appears. The versions that are served, and no other.
        dtype: str, default `None`, for the server's. How a run's weights are stored.

    Raises:
        ValueError: a value is wrong. Its message begins with the key.
    """

    name: str
    path: pathlib.Path
    versions: tuple | None = None
    dtype: str | None = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"models: a name has letters, digits, '.', '_' and '-', but {shown(self.name)} was "
                "given."
            )
        key = f"models.{self.name}"
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise ValueError(f"{key}.path must be a path, but {shown(self.path)} was given.")
        object.__setattr__(self, "path", pathlib.Path(self.path))
        if self.dtype is not None and self.dtype not in SERVED_DTYPES:
            raise ValueError(
                f"{key}.dtype must be one of {', '.join(SERVED_DTYPES)}, but {shown(self.dtype)} "
                "was given."
            )
        if self.versions is not None:
            object.__setattr__(self, "versions", _checked_versions(key, self.versions))

    @property
    def languages(self):
        """Source and target code of a model that is named by its pair, or `None`."""
        return languages_of_name(self.name)

    @property
    def is_run(self):
        """Whether the path is a run directory, which has to be exported first."""
        return (self.path / "config.json").is_file()

    @classmethod
    def parse(cls, text):
        """Reads `PATH` or `NAME=PATH`, as the command line has it.

        Args:
            text: str.
        """
        name, path = name_and_path(text)
        if path != text:
            return cls(name, path)
        path = pathlib.Path(text)
        full = path.resolve()
        is_version = full.name.isdigit() and (full / "saved_model.pb").is_file()
        return cls(full.parent.name if is_version else full.name, path)


def _checked_versions(key, versions):
    listed = versions if isinstance(versions, list | tuple) else [versions]
    if not listed or not all(type(version) is int and version >= 0 for version in listed):
        raise ValueError(
            f"{key}.versions must be version numbers, such as [1, 2], but {shown(versions)} was "
            "given."
        )
    return tuple(sorted(set(listed), reverse=True))


@documented
@dataclasses.dataclass(frozen=True)
class ServerSettings(ServerOptions):
    """Settings of a server.

    Args:
        models: list of `ModelSettings`, or of str as the command line has them.
        {options}

    Raises:
        ValueError: a value has the wrong type or is out of range.

    Example:
        ```python
        from kformer.serving.settings import ServerSettings

        settings = ServerSettings(["en-de=saved_models/en-de"], port=8502)
        print(settings.deadline_s)  # 60.0
        ```
    """

    def __post_init__(self):
        check_values(self)
        models = [ModelSettings.parse(m) if isinstance(m, str) else m for m in self.models]
        object.__setattr__(self, "models", tuple(models))
        if not models:
            raise ValueError("models: a server needs at least one model: give the path of one.")
        for name in {model.name for model in models}:
            if sum(model.name == name for model in models) > 1:
                raise ValueError(f"models: two models are named {name}: name them NAME=PATH.")
        if self.ray_address is not None and self.engine != "ray":
            raise ValueError(
                f"{named('ray_address')} is for {named('engine')} ray, but that is {self.engine}: "
                "change it, or leave the address out."
            )
        if self.max_batch_texts > self.max_queue:
            raise ValueError(
                f"{named('max_queue')} must be at least {named('max_batch_texts')}, which is "
                f"{self.max_batch_texts}, but {self.max_queue} was given."
            )
        for text in self.glossaries:
            name, path = name_and_path(text)
            if path == text or not _NAME.fullmatch(name):
                raise ValueError(
                    f"{named('glossaries')} must be NAME=FILE, but {shown(text)} was given."
                )

    def check_files(self):
        """Checks models, glossaries and keys, before the long work.

        Raises:
            OSError: there is no run directory or SavedModel at a path, or a file cannot be read.
            ValueError: a dtype is given for a SavedModel, a glossary is none, or the file of keys
                has a wrong one.
        """
        if self.api_keys is not None:
            keys_in(self.api_keys)
        for text in self.glossaries:
            Glossary.load(name_and_path(text)[1])
        takes_dtype = any(model.is_run and model.dtype is None for model in self.models)
        if self.dtype is not None and not takes_dtype:
            raise ValueError(
                f"{named('dtype')} is for runs without one of their own, which are exported first; "
                "that of a SavedModel is fixed at its export: leave it out."
            )
        for model in self.models:
            try:
                if is_run(model.path):
                    continue
            except FileNotFoundError as error:
                raise FileNotFoundError(f"models.{model.name}: {error}") from None
            if model.dtype is not None:
                raise ValueError(
                    f"models.{model.name}.dtype: the dtype of a SavedModel is fixed at its export: "
                    "leave it out."
                )
            for version in sorted(set(model.versions or ()) - set(version_folders(model.path))):
                raise FileNotFoundError(
                    f"models.{model.name}: there is no version {version} in {model.path}."
                )


def read_config(path):
    """Reads a configuration file.

    Args:
        path: path of a YAML file: options by their names in Python, and `models`.

    Returns:
        Dict: keyword arguments of `ServerSettings`.

    Raises:
        OSError: the file cannot be read.
        ImportError: PyYAML is not installed.
        ValueError: it is not YAML, or a key or a value is wrong; the message names the key.
    """
    check_extra("A configuration", "serve", ("yaml",))
    import yaml

    path = pathlib.Path(path)
    with open(path, "rb") as file:
        content = file.read(_MOST_CONFIG_BYTES)
    try:
        values = yaml.safe_load(content)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold names and values, such as port: 8501.")
    known = {"models", *SERVING}
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, 1)
            hint = f": did you mean {close[0]}?" if close else "."
            raise ValueError(f"{path}: there is no setting {shown(key)}{hint}")
    try:
        if "models" in values:
            values["models"] = _models(values["models"])
        for name in values.keys() & SERVING.keys():
            SERVING[name].check(values[name], name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return values


def _models(value):
    """The models of a configuration: a dict of name to a path or to the fields of a model."""
    if not isinstance(value, dict) or not value:
        raise ValueError(
            "models must be names and paths, such as en-de: saved_models/en-de, but "
            f"{shown(value)} was given."
        )
    fields = {field.name for field in dataclasses.fields(ModelSettings)} - {"name"}
    models = []
    for name, model in value.items():
        model = {"path": model} if isinstance(model, str) else model
        if not isinstance(model, dict):
            raise ValueError(
                f"models.{name} must be a path, or names and values, but {shown(model)} was given."
            )
        for key in model:
            if key not in fields:
                raise ValueError(
                    f"models.{name}: there is no setting {shown(key)}, but {', '.join(fields)}."
                )
        if "path" not in model:
            raise ValueError(f"models.{name}.path is missing.")
        models.append(ModelSettings(name, **model))
    return tuple(models)
