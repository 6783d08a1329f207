"""Makes the frozen files of a version: the run, its SavedModel in each dtype, and what they answer.

    KERAS_BACKEND=tensorflow python tests/make_frozen.py OUTPUT

The weights are those of tests/frozen_run: 2 + 2 layers of 32, trained on English times of day and
their Chinese. What a version has released is never made again: docs/stability.md.
"""

import json
import pathlib
import sys

import kformer
from kformer.decoding.fast.ops_stored import DTYPES
from kformer.export import SavedModelTranslator

RUN = pathlib.Path(__file__).parent / "frozen_run"


def main(output):
    """Writes the files.

    Args:
        output: `pathlib.Path`. A folder, which gets `frozen_run/` and `saved_models/`.
    """
    expected = json.loads((RUN / "expected.json").read_text(encoding="utf-8"))
    translator = kformer.Translator.load(RUN)
    translator.save(output / "frozen_run")
    for name in ("config.json", "tokenizer/tokenizer.json"):  # Tests edit copies of them.
        path = output / "frozen_run" / name
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings.pop("checksum")
        path.write_text(json.dumps(settings, ensure_ascii=False, indent=2), encoding="utf-8")
    for dtype in DTYPES:
        name = "frozen" if dtype == "float32" else f"frozen_{dtype}"
        path = translator.export(output / "saved_models" / name, beam_size=4, dtype=dtype)
        found = SavedModelTranslator(path).translate(expected["texts"])
        expected[dtype] = {
            "translation": [result.text for result in found],
            "score": [round(result.score, 5) for result in found],
        }
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (output / "frozen_run" / "expected.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
