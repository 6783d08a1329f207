"""An import never takes much more memory than the files justify."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.interop.malicious import KINDS, malicious_folder, save_half
from tests.interop.published import published_model
from tests.interop.tokenizer_folders import marian, t5, trained_models

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="each import is a process of its own"),
]
MIB = 2**20
# Imports folders, each in a process of its own that begins with kformer imported. Prints what each
# took above that, in bytes, and its error. The limit keeps the machine from harm.
WORKER = """
import json, os, resource, sys
import kformer
from kformer.interop import import_checkpoint
for folder, output, allowed in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not (child := os.fork()):
        virtual = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = virtual + allowed + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before, error = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, None
        try:
            import_checkpoint(folder, output)
        except BaseException as caught:
            error = f"{type(caught).__name__}: {caught}"
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        os.write(write, json.dumps([taken, error and error[:2000]]).encode())
        os._exit(0)
    os.close(write)
    text = os.read(read, 10_000)
    os.waitpid(child, 0)
    print(text.decode() or '[0, "killed"]', flush=True)
"""


def allowed(folder):
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    return 3 * sum(file.stat().st_size for file in files) + 512 * MIB


def imports(folders, backend="torch"):
    """Bytes that the import of each folder took, and its error or `None`."""
    jobs = [(str(path), f"{path}-run", allowed(path)) for path in folders]
    process = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps(jobs)],
        env={**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    found = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(found) == len(jobs), process.stderr
    return found


def sound_folder(path, kind, models, sizes=None):
    path.mkdir(parents=True)
    config = (marian if kind == "marian" else t5)(path, models)
    sizes = {"hidden_dim": 32, "intermediate_dim": 64, "layers": 1, "heads": 4, **(sizes or {})}
    special = {key: config[key] for key in ("pad_token_id", "eos_token_id")}
    special["decoder_start_token_id"] = config["decoder_start_token_id"]
    sizes |= {"positions": 64, "vocab_size": config["vocab_size"]}
    model = published_model(kind, sizes=sizes, **special)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    top, models = tmp_path_factory.mktemp("sound"), trained_models()
    return {kind: sound_folder(top / kind, kind, models) for kind in ("marian", "t5")}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_malicious_folders_take_no_memory(originals, tmp_path, backend):
    count = int(os.environ.get("KFORMER_MALICIOUS_FOLDERS", sum(map(len, KINDS.values()))))
    first = int(os.environ.get("KFORMER_MALICIOUS_SEED", 0))
    paths = [tmp_path / str(seed) for seed in range(first, first + count)]
    kinds = [malicious_folder(originals, path, int(path.name)) for path in paths]
    found = imports(paths, backend)
    faults = []
    for path, kind, (taken, error) in zip(paths, kinds, found, strict=True):
        refused = error is None or error.startswith(("ValueError", "FileNotFoundError"))
        clear = error is None or "\n" not in error
        if taken > allowed(path) or not refused or not clear:
            faults.append(f"seed {path.name}, {kind}: {taken / MIB:.0f} MiB, {error}")
        run = pathlib.Path(f"{path}-run")
        assert error is None or not run.exists(), "nothing is left of a refused import"
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_a_sound_folder_takes_three_times_its_weights(tmp_path):
    """In float16, of which the model has twice the bytes."""
    sizes = {"hidden_dim": 1024, "intermediate_dim": 8192, "layers": 6, "heads": 8}
    path = sound_folder(tmp_path / "large", "marian", trained_models(), sizes)
    save_half(path)
    ((taken, error),) = imports([path])
    assert error is None
    assert taken < allowed(path), f"{taken / MIB:.0f} of {allowed(path) / MIB:.0f} MiB"
