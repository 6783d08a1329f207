"""`python -m kformer.export RUN OUTPUT OPTIONS`: the process with the TensorFlow backend in which a SavedModel is made."""

import importlib
import json
import sys


def main():
    from kformer.export.saved_model import export_saved_model
    from kformer.translator import Translator

    run, output, options = sys.argv[1:]
    options = json.loads(options)
    for module in options.pop("imports"):
        importlib.import_module(module)
    print(export_saved_model(Translator.load(run), output, **options))


if __name__ == "__main__":
    main()
