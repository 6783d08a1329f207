"""`python -m kformer.export.saved_model KIND FOLDER OUTPUT < OPTIONS`: makes a SavedModel under the
TensorFlow backend, for a process with another one (see `process.py`).

KIND is "translator", "model", or "run" for a run directory. FOLDER holds what is exported, OUTPUT
is the model's folder, and OPTIONS are the export's arguments as JSON.
"""

import importlib
import json
import os
import sys

from kformer.export.registry import export
from kformer.export.saved_model.export import export_saved_model
from kformer.export.saved_model.export import load_parts as load_translator
from kformer.export.saved_model.models import export_model, load_parts
from kformer.export.saved_model.process import FILE_ERROR
from kformer.translating.translator import Translator


def main():
    kind, folder, output = sys.argv[1:]
    options = json.load(sys.stdin)
    # They register layers that the export then loads.
    for module in options.pop("imports"):
        importlib.import_module(module)
    try:
        if kind == "translator":
            export_saved_model(load_translator(folder), output, **options)
        elif kind == "run":
            export(Translator.load(folder), output, **options)
        else:
            model, tokenizer = load_parts(folder)
            export_model(model, output, tokenizer, **options)
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        print(json.dumps([error.errno, error.strerror, os.fspath(error.filename)]), file=sys.stderr)
        sys.exit(FILE_ERROR)


if __name__ == "__main__":
    main()
