"""`python -m kformer.export RUN OUTPUT OPTIONS`: the process with the TensorFlow backend in which a SavedModel is made."""

import json
import sys


def main():
    from kformer.export.saved_model import export_saved_model
    from kformer.translator import Translator

    run, output, options = sys.argv[1:]
    print(export_saved_model(Translator.load(run), output, **json.loads(options)))


if __name__ == "__main__":
    main()
