"""The settings of a server: the options that `kformer_options.serving` declares, with models."""

import collections
import dataclasses
import difflib
import os
import pathlib
import re

from kformer.documents.glossary import Glossary
from kformer.serving.versions import version_folders
from kformer_options.configuration import read_values
from kformer_options.field import check_values, documented
from kformer_options.key_file import keys_in
from kformer_options.model_folders import (
    MODEL_FILES,
    check_served,
    languages_of_name,
    name_and_path,
)
from kformer_options.names import named
from kformer_options.serving import SERVING, ServerOptions
from kformer_options.wording import shown

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """One model to serve.

    Args:
        name: str. What requests call it. A pair of languages, such as "en-de", is the one that
            LibreTranslate's protocol and the page offer; with another name they offer what the
            model itself tells.
        path: path. A SavedModel, a run or a folder for CTranslate2, as the engine takes it:
            `NAME/` with versions or one version's folder. A run directory is exported first, unless
            PyTorch loads it.
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
        is_name = isinstance(self.name, str) and _NAME.fullmatch(self.name)
        _check(is_name, "models: a name", "of letters, digits, '.', '_' and '-'", self.name)
        key = f"models.{self.name}"
        is_path = isinstance(self.path, str | os.PathLike) and os.fspath(self.path)
        _check(is_path, f"{key}.path", "a path", self.path)
        object.__setattr__(self, "path", pathlib.Path(self.path))
        SERVING["dtype"].check(self.dtype, f"{key}.dtype")
        if self.versions is not None:
            versions = self.versions if isinstance(self.versions, list | tuple) else [self.versions]
            are_numbers = all(type(version) is int and version >= 0 for version in versions)
            is_right = versions and are_numbers
            _check(is_right, f"{key}.versions", "version numbers, such as [1, 2]", self.versions)
            object.__setattr__(self, "versions", tuple(sorted(set(versions), reverse=True)))

    @property
    def languages(self):
        """Source and target code of a model that is named by its pair, or `None`."""
        return languages_of_name(self.name)

    @property
    def is_run(self):
        """Whether the path is a run directory, which engines but PyTorch's need exported."""
        has_config = (self.path / "config.json").is_file()
        return has_config and not (self.path / MODEL_FILES["ctranslate2"]).is_file()

    def pinned_folders(self):
        """Returns the folders of `versions`: a dict of number to `pathlib.Path`.

        Raises:
            FileNotFoundError: one is not there.
        """
        folders = version_folders(self.path)
        for version in self.versions or ():
            if version not in folders:
                raise FileNotFoundError(
                    f"models.{self.name}: there is no version {version} in {self.path}."
                )
        return {version: folders[version] for version in self.versions or ()}

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
        is_version = full.name.isdigit() and version_folders(full).keys() == {int(full.name)}
        return cls(full.parent.name if is_version else full.name, path)


def named_glossary(text):
    """Returns the name and the `Glossary` of "NAME=FILE" or "NAME:en-de=FILE"."""
    name, path = name_and_path(text)
    return name, Glossary.load(path, languages_of_name(name.partition(":")[2]))


def _check(is_right, key, expected, value):
    """Raises a `ValueError` about a value that is wrong."""
    if not is_right:
        raise ValueError(f"{key} must be {expected}, but {shown(value)} was given.")


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
        for name, count in collections.Counter(model.name for model in models).items():
            if count > 1:
                raise ValueError(f"models: two models are named {name}: name them NAME=PATH.")
        if self.ray_address is not None and self.engine != "ray":
            raise ValueError(
                f"{named('ray_address')} is for {named('engine')} ray, but that is {self.engine}: "
                "change it, or leave the address out."
            )
        least = f"at least {named('max_batch_texts')}, which is {self.max_batch_texts}"
        is_enough = self.max_queue >= self.max_batch_texts
        _check(is_enough, named("max_queue"), least, self.max_queue)
        for text in self.glossaries:
            name, colon, pair = name_and_path(text)[0].partition(":")
            is_right = _NAME.fullmatch(name) and (not colon or languages_of_name(pair))
            expected = "NAME=FILE or NAME:SOURCE-TARGET=FILE, such as terms:en-de=terms.tsv"
            _check(is_right, named("glossaries"), expected, text)

    def check_files(self):
        """Checks models, glossaries and keys, before the long work.

        Raises:
            OSError: a path has nothing that the engine takes, or a file cannot be read.
            ValueError: a dtype is given for a SavedModel, a glossary is none, or the file of keys
                has a wrong one.
        """
        if self.api_keys is not None:
            keys_in(self.api_keys)
        for text in self.glossaries:
            named_glossary(text)
        loads_runs = self.engine == "torch"
        takes_dtype = loads_runs or any(m.is_run and m.dtype is None for m in self.models)
        if self.dtype is not None and not takes_dtype:
            raise ValueError(
                f"{named('dtype')} is for runs without one of their own, which are exported first; "
                "that of a SavedModel is fixed at its export: leave it out."
            )
        for model in self.models:
            check_served(self.engine, model.path)
            if model.is_run and not loads_runs:
                continue
            if model.dtype is not None and not loads_runs:
                raise ValueError(
                    f"models.{model.name}.dtype: the dtype of a SavedModel is fixed at its export: "
                    "leave it out."
                )
            model.pinned_folders()


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
    return checked(read_values(path), path)


def checked(values, path):
    """Checks the values that stand in a configuration.

    Args:
        values: dict.
        path: path of the file, for messages.

    Returns:
        Dict: keyword arguments of `ServerSettings`.

    Raises:
        ValueError: a key or a value is wrong; the message names the key.
    """
    try:
        _check_keys(values, {"models", *SERVING}, "")
        if "models" in values:
            values["models"] = _models(values["models"])
        for name in values.keys() & SERVING.keys():
            SERVING[name].check(values[name], name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return values


def _check_keys(values, known, where):
    """Checks that the keys of a configuration's values are known."""
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, 1)
            hint = f": did you mean {close[0]}?" if close else f", but {', '.join(sorted(known))}."
            raise ValueError(f"{where}there is no setting {shown(key)}{hint}")


def _models(values):
    """The models of a configuration: a dict of name to a path or to the fields of a model."""
    expected = "names and paths, such as en-de: saved_models/en-de"
    _check(isinstance(values, dict) and values, "models", expected, values)
    models = []
    for name, model in values.items():
        model = {"path": model} if isinstance(model, str) else model
        _check(isinstance(model, dict), f"models.{name}", "a path, or names and values", model)
        _check_keys(model, {"path", "versions", "dtype"}, f"models.{name}: ")
        models.append(ModelSettings(name, **{"path": None, **model}))
    return tuple(models)
