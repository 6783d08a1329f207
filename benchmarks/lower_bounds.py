"""Runs kformer with the oldest versions of its dependencies that pyproject.toml allows.

    python benchmarks/lower_bounds.py --work DIR [--extras tensorflow,jax,torch,interop,plots]

Makes an environment of its own in DIR, installs each dependency at its lower bound (pip chooses
what these need themselves), and runs in it, on each backend among the extras: two steps of a
training by `recommend`, the frozen run's translations, in Python and by the command; on TensorFlow
also an export.

The exit status is 0 if all of it works, and the texts are those of tests/frozen_run.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import BACKENDS, ROOT, names  # noqa: E402

PROGRAM = """
import pathlib, sys
import keras, kformer
from kformer_cli.main import main as kformer_main
root = pathlib.Path(sys.argv[1])
translator = kformer.Translator.load(root / "tests/frozen_run")
texts = ["half past four in the afternoon", "noon"]
found = translator(texts, beam_size=1)
assert found == ["下午四点半", "中午十二点"], found
pairs = kformer.examples.generate_pairs(300)
sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
train = kformer.data.ParallelDataset(*sides, translator.tokenizer, max_length=64)
sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2}
recipe = kformer.training.recommend(train, train, steps=2, model_options=sizes)
model = kformer.Transformer.from_preset(**recipe.model)
recipe.compile(model)
model.fit(train, **recipe.fit, verbose=0)
if keras.backend.backend() == "tensorflow":
    folder = translator.export(sys.argv[2])
    assert kformer.export.SavedModelTranslator(folder)(texts)[1] == "中午十二点"
assert kformer_main(["train", "--help"]) == 0
source = pathlib.Path(sys.argv[2]).with_suffix(".txt")
source.parent.mkdir(parents=True, exist_ok=True)
source.write_text("noon\\n", encoding="utf-8")
words = ["--input", source, "--output", source.with_suffix(".out")]
assert kformer_main(["translate", str(root / "tests/frozen_run"), *map(str, words)]) == 0
assert source.with_suffix(".out").read_text(encoding="utf-8") == "中午十二点\\n"
print("works on", keras.backend.backend())
"""


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    pinned = lower_bounds(options.extras)
    print(*pinned, sep="\n", flush=True)
    folder = options.work / "environment"
    venv.create(folder, with_pip=True, clear=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *pinned], check=True)
    failed = False
    for backend in [name for name in BACKENDS if name in options.extras]:
        saved = options.work / "saved" / backend
        run = subprocess.run(
            [python, "-c", PROGRAM, str(ROOT), str(saved)],
            cwd=options.work,
            env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend},
        )
        failed = failed or run.returncode != 0
    return int(failed)


def lower_bounds(extras):
    """The requirements of pyproject.toml for this platform, each at its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    pinned = []
    for requirement in wanted:
        name, version = re.match(r"([\w.-]+)>=([\w.]+)", requirement).groups()
        marker = requirement.partition(";")[2]
        pinned.append(f"{name}=={version}{';' if marker else ''}{marker}")
    return pinned


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder to write")
    extras = ["tensorflow", "interop", "plots"]
    parser.add_argument("--extras", type=names, default=extras, help="to install, with backends")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
