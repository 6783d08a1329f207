"""The web format: the ONNX files of a model with a page and a library in JavaScript."""

import base64
import contextlib
import hashlib
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

from kformer.decoding.searcher import check_options
from kformer.export.checks import check_export
from kformer.export.onnx.export import check_model, export_onnx
from kformer.export.web.single_file import joined
from kformer.text.subword_sampling import WORD, model_type
from kformer.utils.files import new_folder, read_json, replacing
from kformer_options.names import named

_RUNTIME = "onnxruntime-web"
_VERSION = "1.30.0"
# The npm registry's digest of that release.
_DIGEST = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
# For a package of 30 MB.
_SECONDS = 300
# The line of npm's errors that is not for programs.
_REASON = re.compile(r"npm (?:error|ERR!) (?!code|errno|syscall|path)(.+)")
RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)
_FILES = pathlib.Path(__file__).with_name("files")
_LICENSE = """\
MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
"""


def export_web(translator, path, *, dtype="float32", runtime=None, single_file=False, **options):
    """Writes a translator as static files that translate in a browser.

    - `index.html`, `app.mjs`, `worker.mjs`, `style.css`: a page;
    - `kformer/`: the library in JavaScript, for pages of your own;
    - `model/`: what `kformer.export.onnx.export_onnx` writes;
    - `ort/`: the runtime, onnxruntime-web.

    Any server of static files will do, in any folder. Nothing is asked of another host.

    Args:
        translator: `kformer.Translator`.
        path: path. The folder to make, or the file.
        dtype: str, default "float32". How weights are stored: "float32", "float16" or "int8". The
            browser computes in float32.
        runtime: path, default `None`. The folder of npm's package onnxruntime-web; `None` to fetch
            the package by `npm pack` and check its digest.
        single_file: bool, default False. Whether one HTML file holds everything, which opens from
            `file://`, too.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.

    Returns:
        `pathlib.Path` of the folder or file.

    Raises:
        ValueError: the path exists, the model, tokenizer or an option cannot be exported, or the
            runtime is not there.
        ImportError: `onnx` is not installed.

    Example:

    ```python
    from kformer.export.web import export_web

    translator = kformer.Translator.load("runs/en-de")
    export_web(translator, "web/en-de", runtime="node_modules/onnxruntime-web")
    # PosixPath('web/en-de')
    ```
    """
    path = check_export(path, "web", dtype)
    search = translator.search_options(options)
    if search.sampling:
        raise ValueError(
            "The format web does not sample, since JavaScript has no such random numbers: export "
            "without sampling."
        )
    for side in ("source", "target"):
        vocabulary = translator.tokenizer.vocabulary(side)
        if vocabulary.splitter is not None:
            raise ValueError(
                "The format web cannot split texts as OpenNMT's tokenizer does: import the model "
                f"with {named('pretokenized')}, so that texts are tokens with spaces between them."
            )
        if model_type(vocabulary.model) == WORD:
            raise ValueError(
                f"The SentencePiece model of the {side} side is of type word, which the format web "
                "does not read: export a SavedModel."
            )
    check_model(translator.model)
    check_options(translator.model, search)
    with contextlib.ExitStack() as stack:
        if single_file:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = stack.enter_context(new_folder(path))
        shutil.copytree(_FILES, folder, dirs_exist_ok=True)
        _write_runtime(runtime, folder / "ort")
        export_onnx(translator, folder / "model", dtype=dtype, **options)
        if single_file:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as aside:
                aside.write_text(joined(folder), encoding="utf-8")
    return path


def _write_runtime(runtime, folder):
    """Writes the files of onnxruntime-web with their licence."""
    with tempfile.TemporaryDirectory() as scratch:
        package = pathlib.Path(_fetch(scratch) if runtime is None else runtime)
        source, description = package / "dist", package / "package.json"
        remedy = (
            f"{named('runtime')} takes the folder of npm's package {_RUNTIME}, version {_VERSION}."
        )
        for path in (description, *(source / name for name in RUNTIME_FILES)):
            if not path.is_file():
                raise ValueError(f"There is no {path}: {remedy}")
        version = read_json(description).get("version")
        if version != _VERSION:
            raise ValueError(f"{package} has version {version}: {remedy}")
        folder.mkdir()
        for name in RUNTIME_FILES:
            shutil.copyfile(source / name, folder / name)
    (folder / "LICENSE").write_text(_LICENSE, encoding="utf-8")


def _fetch(scratch):
    """Fetches the runtime by npm into a folder; returns that of the package."""
    npm = shutil.which("npm")
    remedy = f"give the folder of npm's package {_RUNTIME} as {named('runtime')}"
    if npm is None:
        raise ValueError(
            f"The runtime of the browser is fetched by npm, which is missing: {remedy}."
        )
    command = [npm, "pack", f"{_RUNTIME}@{_VERSION}", "--pack-destination", scratch]
    command += ["--loglevel=error", "--fetch-retries=0"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        reason = _REASON.search(result.stderr) if result.returncode else None
        message = reason[1] if reason else f"exit code {result.returncode}"
    except subprocess.TimeoutExpired:
        result, message = None, f"no answer within {_SECONDS} seconds"
    if result is None or result.returncode:
        raise ValueError(f"npm cannot fetch {_RUNTIME} {_VERSION} ({message}): {remedy}.")
    archive = pathlib.Path(scratch) / f"{_RUNTIME}-{_VERSION}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != _DIGEST:
        raise ValueError(f"npm's {archive.name} has another digest than that release: {remedy}.")
    with tarfile.open(archive) as file:
        file.extractall(scratch, filter="data")
    return pathlib.Path(scratch) / "package"
