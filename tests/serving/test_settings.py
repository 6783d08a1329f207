"""Settings: from a command line, from YAML, checked whole, with messages that name the key."""

import codecs
import os
import shutil

import pytest

from kformer.serving import run
from kformer.serving.admission import Admission
from kformer.serving.interface import ModelStats, Overloaded, Unauthorized
from kformer.serving.keys import ApiKeys
from kformer.serving.settings import ModelSettings, ServerSettings, named_glossary, read_config
from kformer.serving.versions import VersionWatch, version_folders
from kformer_cli.main import main
from kformer_options.key_file import keys_in
from kformer_options.serving import SERVING
from tests.serving.conftest import FROZEN

pytestmark = pytest.mark.any_backend


def test_names_and_versions_of_models():
    found = ModelSettings.parse(f"en-de={FROZEN}")
    assert (found.name, found.path, found.languages) == ("en-de", FROZEN, ("en", "de"))
    assert ModelSettings.parse(str(FROZEN)).name == "frozen"
    assert ModelSettings.parse(str(FROZEN / "1")).name == "frozen"
    assert ModelSettings("m", FROZEN, [1, 2, 2]).versions == (2, 1)
    assert ModelSettings("zh_Hans-en", FROZEN).languages == ("zh_Hans", "en")
    assert list(version_folders(FROZEN)) == list(version_folders(FROZEN / "1")) == [1]


def test_defaults_are_those_that_are_declared():
    settings = ServerSettings([str(FROZEN)])
    assert settings.host == "127.0.0.1" and settings.grpc_port is None
    for name, option in SERVING.items():
        assert getattr(settings, name) == ([] if option.type is list else option.default)
    assert ServerSettings([str(FROZEN)], port=0).port == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port must be a whole number from 0 to 65535"),
        ({"engine": "remote"}, "engine must be one of local, ray, torch, ctranslate2"),
        ({"models": ["a b=x"]}, "models: a name must be of letters"),
        ({"models": []}, "models: a server needs"),
        ({"models": [str(FROZEN), str(FROZEN)]}, "two models are named frozen"),
        ({"threads": 0}, "threads must be"),
        ({"max_queue": 8}, "max_queue must be at least max_batch_texts"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        ServerSettings(**{"models": [str(FROZEN)], **options})


def test_a_configuration(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"port: 0\nthreads: 2\nmodels:\n  en-zh: {FROZEN}\n  b: {{path: {FROZEN}, versions: [1]}}\n"
    )
    settings = ServerSettings(**read_config(path))
    assert [(model.name, model.versions) for model in settings.models] == [
        ("en-zh", None),
        ("b", (1,)),
    ]
    assert settings.threads == 2
    settings.check_files()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "there is no setting 'prot': did you mean port?"),
        ("port: x", "port must be a whole number"),
        ("deadline_s: 0", "deadline_s must be above 0"),
        ("models: [a]", "models must be names and paths"),
        ("models: {a: {versions: [1]}}", "models.a.path must be a path"),
        ("models: {a: {path: x, version: 1}}", "models.a: there is no setting 'version'"),
        ("models: {a: {path: x, versions: [-1]}}", "models.a.versions must be"),
        ("models: {a: {path: x, dtype: int4}}", "models.a.dtype must be one of"),
        ("- 1", "must hold names and values"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(tmp_path, capsys, text, message):
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_config(path)
    assert message in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder"], "here is no run directory or SavedModel no-such-folder"),
        ([str(FROZEN), "--port", "-1"], "--port must be a whole number from 0 to 65535"),
        ([str(FROZEN), "--max-texts", "0"], "--max-texts must be"),
        ([f"m={FROZEN.parent.parent / 'tests'}"], "is neither a run directory"),
        ([], "models: a server needs at least one model"),
        ([str(FROZEN), "--ray-address", "auto"], "--ray-address is for --engine ray"),
        (
            [str(FROZEN), "--engine", "ctranslate2"],
            "it has no model.keras, as a run has, and no mo",
        ),
        ([str(FROZEN), "--glossary", "a:en=f"], "NAME:SOURCE-TARGET=FILE, such as terms:en-de="),
    ],
)
def test_errors_of_the_command(capsys, arguments, message):
    assert main(["serve", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("", "has no API key"), ("short", "line 1: an API key has at least")],
)
def test_keys_are_read_before_a_run_is_exported(tmp_path, content, message):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)
    (tmp_path / "config.json").touch()
    settings = ServerSettings([f"m={tmp_path}"], api_keys=path)
    with pytest.raises((OSError, ValueError), match=message):
        settings.check_files()


def test_a_pinned_version_is_looked_for_before_another_run_is_exported():
    settings = ServerSettings([ModelSettings("m", FROZEN, [1, 7])])
    with pytest.raises(FileNotFoundError, match="there is no version 7 in"):
        settings.check_files()


def test_the_port_of_grpc_is_tried_before_a_run_is_exported(tmp_path):
    (tmp_path / "config.json").touch()
    with run.bind("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        port = taken.getsockname()[1]
        run.serve(ServerSettings([f"m={tmp_path}"], port=0, grpc_port=port), print)


def test_help_names_every_option(capsys):
    assert main(["serve", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"--{option.flag}"[:20] in shown for option in SERVING.values())


def test_the_dtype_of_a_saved_model_is_fixed(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    settings = ServerSettings([f"m={tmp_path}"], dtype="int8")
    with pytest.raises(ValueError, match="^dtype is for runs without one of their own"):
        settings.check_files()
    (tmp_path / "config.json").touch()
    settings = ServerSettings([ModelSettings("m", tmp_path, dtype="float32")], dtype="int8")
    with pytest.raises(ValueError, match="^dtype is for runs without one of their own"):
        settings.check_files()


@pytest.mark.parametrize("option", ["--dtype=int8", "--ray-address=auto"])
def test_what_is_no_part_of_a_configuration_for_ray(capsys, option):
    assert main(["serve", str(FROZEN), "--engine", "ray", "--print-ray-config", option]) == 1
    assert f"{option.partition('=')[0]}" in capsys.readouterr().err


# ---- small parts ----


def test_keys(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(codecs.BOM_UTF8 + b"sixteen-characters\n\n# comment\nanother-key-of-some\n")
    keys = ApiKeys(keys_in(path))
    for given in ("sixteen-characters", "Bearer another-key-of-some"):
        keys.check(None, given)
    for given in ("", "sixteen-character", "# comment", None, 7, "ü"):
        with pytest.raises(Unauthorized):
            keys.check(given)
    accents = "# \u00e9\n" + "\u00e9" * 16
    for text, message in (
        ("short", "line 1"),
        ("# nothing", "no API key"),
        (accents, "line 2: an API key has ASCII"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            keys_in(path)


def test_admission_by_queue_and_by_time():
    admission = Admission(100)
    with admission.admitted("m", 500, 60):  # A request that is alone is always tried.
        with pytest.raises(Overloaded) as error:
            admission.admitted("m", 1, 60).__enter__()
        assert error.value.retry_after >= 1
    assert admission.texts == 0
    # Who fills the queue of one model shuts nobody out of another.
    first, *others = (admission.admitted(*asked, 60) for asked in (("m", 100), ("n", 1), ("n", 1)))
    with first, others[0], others[1], pytest.raises(Overloaded):
        admission.admitted("m", 1, 60).__enter__()
    # The model translates 10 texts a second: after 400 one text is in time, as it takes turns.
    admission = Admission(10_000)
    with admission.admitted("m", 400, 60, 10), admission.admitted("m", 1, 60, 10):
        with pytest.raises(Overloaded):
            admission.admitted("m", 400, 60, 10).__enter__()
        assert admission.texts == 401
        # Seen at work it does 100 a second.
        admission.observe([ModelStats("m", 1, busy_texts=200, busy_seconds=2.0)], 1)
        with admission.admitted("m", 400, 60, 10):
            assert admission.texts == 801


def test_a_version_is_taken_when_it_stands_still(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(FROZEN / "1", folder / "1")
    watch = VersionWatch(folder)
    assert watch.look() is None  # Seen once.
    number, path, found = watch.look()
    assert (number, path) == (1, folder / "1")
    (folder / "2").mkdir()
    shutil.copy(FROZEN / "1" / "saved_model.pb", folder / "2")
    assert watch.look()[0] == watch.look()[0] == 1  # Files are missing.
    shutil.copytree(FROZEN / "1", folder / "2", dirs_exist_ok=True)
    assert [watch.look()[0] for _ in range(3)] == [1, 2, 2]
    watch.refuse(2, watch.look()[2])
    assert watch.look()[0] == 1 and watch.forgotten() == []
    (folder / "2" / "saved_model.pb").write_bytes(b"another")
    watch.look()
    assert watch.forgotten() == [2] and watch.look()[0] == 2


def test_aliases_of_a_configuration_are_refused(tmp_path):
    """A few lines of them stand for more values than a machine can hold."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    for text in ("\n".join([*lines, "port: *a11"]), "a: &a {port: 1}\nb: {<<: [*a, *a]}"):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ValueError, match="alias such as"):
            read_config(tmp_path / "c.yaml")


def test_files_that_are_too_large_are_not_cut(tmp_path):
    """What stood behind the cut could be `api_keys`, or half of a key."""
    (tmp_path / "c.yaml").write_text(f"port: 8501\n{'#' * 2**20}\napi_keys: keys\n")
    with pytest.raises(ValueError, match="more than 1,048,576 bytes"):
        read_config(tmp_path / "c.yaml")
    (tmp_path / "keys").write_text("a-key-of-the-tests-0123\n" * 50_000)
    with pytest.raises(ValueError, match="more than 1 MiB"):
        keys_in(tmp_path / "keys")


def test_a_translation_memory_has_the_languages_of_its_name(tmp_path):
    path = tmp_path / "x.tmx"
    texts = (("en-US", "house"), ("fr", "maison"), ("de-AT", "Haus"), ("de", "Heim"))
    unit = "".join(f'<tuv xml:lang="{tag}"><seg>{text}</seg></tuv>' for tag, text in texts)
    path.write_text(f"<tmx><body><tu>{unit}</tu></body></tmx>", encoding="utf-8")
    name, glossary = named_glossary(f"words:en-de={path}")
    ((*_, entry),) = glossary.find("a house")
    assert (name, entry.target) == ("words:en-de", ("Haus",))
    ServerSettings([str(FROZEN)], glossaries=[f"words:sr@latin-de={path}"])  # Is not refused.


def test_a_configuration_chooses_the_engine_and_its_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    served = []
    monkeypatch.setattr("kformer.serving.run.serve", lambda one, report: served.append(one))
    run = FROZEN.parents[1] / "tests" / "frozen_run"
    # A pipe can be read once.
    reader, writer = os.pipe()
    os.write(writer, f"engine: torch\nmodels: {{en-zh: {run}}}\n".encode())
    os.close(writer)
    assert main(["serve", "--config", f"/dev/fd/{reader}"]) == 0
    os.close(reader)
    assert served[0].engine == "torch" and os.environ["KERAS_BACKEND"] == "torch"
