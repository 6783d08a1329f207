"""Loads exported SavedModels in older and newer TensorFlow, and compares their texts.

    python benchmarks/compatibility.py RUN --source FILE --work DIR
        [--versions 2.18,2.19,2.20,2.21] [--dtypes float32,bfloat16,int8] [--limit 200]

Exports the run once for each dtype, here. Then each version of TensorFlow, in an environment of its
own that pip makes in DIR, translates the lines of the source in a process that has neither Keras'
nor kformer's code: as it comes, and with oneDNN switched off (`TF_ENABLE_ONEDNN_OPTS=0`). The table
counts the texts that equal those of the TensorFlow that made the export.

The exit status is 0 if float32 has no other text anywhere, and no version fails to load a model.
A version that pip cannot install is named and left out.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

DTYPES = ("float32", "bfloat16", "int8")
# Translates the lines of standard input, with TensorFlow and the ops of tensorflow_text alone.
PROGRAM = """
import json, sys
import tensorflow as tf
import tensorflow_text
texts = json.load(sys.stdin)
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = []
for start in range(0, len(texts), 32):
    batch = serve(text=tf.constant(texts[start:start + 32]))["translation"].numpy()
    found += [text.decode() for text in batch]
print(json.dumps({"version": tf.__version__, "texts": found}))
"""


def main():
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    with open(options.source, encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file][: options.limit]
    folders = export(options)
    expected = {dtype: translate(sys.executable, folders[dtype], texts) for dtype in options.dtypes}
    print_command()
    print_head(("TensorFlow", "dtype", "oneDNN", "equal texts", "of"))
    failed = False
    for version in options.versions:
        python = environment(options.work / f"tensorflow-{version}", version)
        if python is None:
            print(f"<!-- TensorFlow {version} could not be installed -->")
            continue
        for dtype in options.dtypes:
            for one_dnn in (True, False):
                found = translate(python, folders[dtype], texts, one_dnn)
                if isinstance(found, str):
                    failed = True
                    print_row(version, dtype, "on" if one_dnn else "off", found, len(texts))
                    continue
                pairs = zip(found["texts"], expected[dtype]["texts"], strict=True)
                equal = sum(ours == theirs for ours, theirs in pairs)
                failed |= dtype == "float32" and equal < len(texts)
                print_row(found["version"], dtype, "on" if one_dnn else "off", equal, len(texts))
    sys.exit(failed)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--versions", type=names, default=["2.18", "2.19", "2.20", "2.21"])
    parser.add_argument("--dtypes", type=names, default=list(DTYPES))
    parser.add_argument("--limit", type=int, default=200)
    return parser.parse_args()


def names(value):
    return value.split(",")


def export(options):
    """The folders of the exports, by dtype."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import kformer
    from kformer.export.saved_model.folder import find_version

    translator = kformer.Translator.load(options.run)
    folders = {}
    for dtype in options.dtypes:
        folder = options.work / "models" / dtype
        if not folder.exists():
            translator.export(folder, dtype=dtype)
        folders[dtype] = find_version(folder)
    return folders


def environment(folder, version):
    """The interpreter of a virtual environment with a version of TensorFlow, or `None`."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        packages = [f"{name}=={version}.*" for name in ("tensorflow", "tensorflow-text")]
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(command, capture_output=True).returncode:
            return None
        (folder / "complete").touch()
    return python


def translate(python, folder, texts, one_dnn=True):
    """What the program prints, or the last line of its error."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables["TF_ENABLE_ONEDNN_OPTS"] = "1" if one_dnn else "0"
    run = subprocess.run(
        [str(python), "-c", PROGRAM, str(folder)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=variables,
    )
    if run.returncode:
        return run.stderr.strip().splitlines()[-1][:200]
    return json.loads(run.stdout)


if __name__ == "__main__":
    main()
