"""`python tests/light.py`: what kformer does with PyTorch alone, without any backend, and on other
versions of Python.

It makes environments of its own, and needs pip's packages, but nothing that is installed here.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
# With bin/python or Scripts/python.exe in folders named after versions.
PYENV = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions")
RUN, SAVED_MODEL = ROOT / "tests" / "frozen_run", ROOT / "saved_models" / "frozen"
HIDDEN = ("KERAS_BACKEND", "PYTHONPATH", "PYTHONHOME")


def main():
    """Runs all checks; the first that fails ends the program."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        venv.create("venv", with_pip=True)
        scripts = pathlib.Path("venv", "Scripts" if os.name == "nt" else "bin").absolute()
        variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        variables |= {
            "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
            "KERAS_HOME": folder,  # So that no file of the user chooses a backend.
        }

        def run(*command, code=0, says=()):
            """Runs a command, and returns what it wrote to standard output."""
            start = time.perf_counter()
            done = subprocess.run(
                [*map(str, command)], env=variables, capture_output=True, encoding="utf-8"
            )
            text = " ".join(map(str, command))
            print(f"{time.perf_counter() - start:5.1f} s  {text}", flush=True)
            output = done.stdout + done.stderr
            if done.returncode != code or any(sentence not in output for sentence in says):
                sys.exit(f"{text} ended with {done.returncode}, not {code}, and wrote:\n{output}")
            return done.stdout

        # An installation writes beside the source, where another may run.
        source = pathlib.Path("source").absolute()
        source.mkdir()
        for path in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / path, source)
        for package in ("kformer", "kformer_cli", "kformer_options"):
            shutil.copytree(ROOT / package, source / package)
        install = ("python", "-m", "pip", "install", "--quiet", "--no-compile", "-e")
        run(*install, source)
        without_backend(run)
        run(*install, f"{source}[torch]", "torch<=2.13.0")  # As the extra `test` has it.
        with_torch_alone(run)
        on_other_pythons(run, source)


def without_backend(run):
    """Help needs no backend, and everything else says what to install."""
    sentence = 'none is installed here: run `pip install "kformer[tensorflow]"`'
    run("kformer", "--help", says=["quickstart"])
    run(
        "kformer",
        "translate",
        RUN,
        code=1,
        says=[f"error: kformer needs a backend of Keras, and {sentence}"],
    )
    run("python", "-c", "import kformer", code=1, says=[sentence])


def with_torch_alone(run):
    """Training, translating and evaluating work; what needs TensorFlow says so."""
    expected = json.loads((RUN / "expected.json").read_text(encoding="utf-8"))
    for name in ("texts", "beam_4"):
        lines = "".join(f"{text}\n" for text in expected[name])
        pathlib.Path(name).write_text(lines, encoding="utf-8")
    needs = (
        "needs tensorflow and tensorflow-text, which are not installed here: run `pip install "
        '"kformer[tensorflow]"`.'
    )
    run(
        "kformer",
        "quickstart",
        "--quick",
        "--steps",
        "3",
        says=["No SavedModel is made", needs, "Translated by the run in"],
    )
    chosen = "backend: torch (choose by --backend or KERAS_BACKEND)"
    translated = run("kformer", "translate", RUN, "--input", "texts", says=[chosen])
    if translated != pathlib.Path("beam_4").read_text(encoding="utf-8"):
        sys.exit(f"The frozen run translates otherwise:\n{translated}")
    result = run("kformer", "evaluate", RUN, "--source", "texts", "--reference", "beam_4", "--json")
    if round(json.loads(result)["bleu"]) != 100:
        sys.exit(f"The frozen run is not evaluated as itself: {result}")
    run("kformer", "export", RUN, "--output", "saved", code=1, says=[needs])
    run("kformer", "translate", SAVED_MODEL, "--input", "texts", code=1, says=[needs])
    run("kformer", "serve", SAVED_MODEL, code=1, says=['run `pip install "kformer[serve]"`'])


def on_other_pythons(run, source):
    """A wheel works on each other version of Python that is here, outside of the repository."""
    sys.path.insert(0, str(ROOT))
    from docs.release import check_installed

    run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "wheel", source)
    [wheel] = pathlib.Path("wheel").absolute().iterdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for classifier in project["classifiers"]:
        version = classifier.rpartition(" :: ")[2]
        if not re.fullmatch(r"3\.\d+", version) or version == "{}.{}".format(*sys.version_info):
            continue
        paths = [shutil.which(f"python{version}"), *PYENV.glob(f"{version}.*/bin/python")]
        works = (path for path in paths if path and run_quietly(path, "-c", "import ensurepip"))
        if python := next(works, None):
            check_installed(wheel, python)
            print(f"A wheel works on Python {version}.", flush=True)
        else:
            print(f"There is no Python {version} here to try.", flush=True)


def run_quietly(*command):
    """Returns whether a command succeeds."""
    return subprocess.run(command, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
