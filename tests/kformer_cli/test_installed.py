"""What is said where a backend, or a package of an extra, is not installed."""

import json
import os
import subprocess
import sys

import pytest

import kformer_options.installed as installed
from kformer_cli import environment
from tests.hiding import hiding

pytestmark = pytest.mark.any_backend


@pytest.fixture
def only(monkeypatch, tmp_path):
    """A function: from now on only these packages seem installed, and nobody chose a backend."""
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))

    def use(*packages):
        for module in (installed, environment):
            monkeypatch.setattr(module, "is_installed", packages.__contains__)

    return use


def test_without_a_backend_one_sentence_says_what_to_install(only):
    only()
    with pytest.raises(ImportError, match=r'none is installed here: run `pip install "kformer\['):
        installed.check_backend()


def test_python_chooses_no_backend_but_names_one(only):
    only("jax", "torch")
    with pytest.raises(ImportError, match="'tensorflow', .* KERAS_BACKEND=torch before Python"):
        installed.check_backend()


def test_the_command_takes_a_backend_that_is_installed_and_says_which(only, capsys):
    only("jax", "torch")
    with environment.quiet_imports():
        assert os.environ["KERAS_BACKEND"] == "torch"
    assert capsys.readouterr() == ("", "backend: torch (choose by --backend or KERAS_BACKEND)\n")
    with environment.quiet_imports():  # Once.
        pass
    assert capsys.readouterr() == ("", "")


def test_a_backend_of_the_file_of_keras_is_taken(only, tmp_path):
    only("jax", "torch")
    for text, backend in ((json.dumps({"backend": "jax"}), "jax"), ("{", "tensorflow")):
        (tmp_path / "keras.json").write_text(text)
        assert installed.keras_backend() == backend


def test_packages_of_an_extra(only):
    only("tensorflow", "starlette", "uvicorn", "httptools", "prometheus_client", "yaml")
    with pytest.raises(
        ImportError, match=r"SavedModel needs tensorflow-text, which is .*nsorflow\]"
    ):
        installed.check_server("local", None)
    only("tensorflow", "tensorflow_text", *installed.EXTRAS["serve"])
    installed.check_server("local", None)
    with pytest.raises(
        ImportError, match=r"grpc_port needs grpc and tensorflow-serving, .*\[grpc\]"
    ):
        installed.check_server("local", 8500)
    only("torch", *installed.EXTRAS["serve"])
    installed.check_server("torch", None)
    with pytest.raises(ImportError, match=r"engine ctranslate2 needs ctranslate2"):
        installed.check_server("ctranslate2", None)
    only("tensorflow", "tensorflow_text", *installed.EXTRAS["serve"])
    with pytest.raises(ImportError, match=r"engine ray needs ray, which .*kformer\[cluster\]"):
        installed.check_server("ray", None)


@pytest.mark.heavy
def test_help_and_mistakes_need_no_backend():
    """And what does need one says what to install."""
    code = hiding("keras", *installed.BACKENDS) + "from kformer_cli.main import main; "
    code += "print([main(a.split()) for a in ('score --help', 'score --x', 'quickstart')][::-1])"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"},
        capture_output=True,
        text=True,
    )
    assert run.stdout.endswith("[1, 2, 0]\n"), run.stderr
    errors = run.stderr.splitlines()
    assert len(errors) == 2 and "No such option" in errors[0] and "none is installed" in errors[1]
