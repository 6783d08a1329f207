"""`python -m kformer.export.saved_model KIND FOLDER OUTPUT OPTIONS`: the process with the TensorFlow backend in
which a SavedModel is made.
"""

import importlib
import json
import sys


def main():
    kind, folder, output, options = sys.argv[1:]
    options = json.loads(options)
    for module in options.pop("imports"):
        importlib.import_module(module)
    if kind == "translator":
        from kformer.export.saved_model.export import export_saved_model
        from kformer.translator import Translator

        export_saved_model(Translator.load(folder), output, **options)
    else:
        from kformer.export.saved_model.models import export_model, load_parts

        export_model(*load_parts(folder, output), **options)


if __name__ == "__main__":
    main()
