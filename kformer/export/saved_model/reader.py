"""A SavedModel behind the interface of a `Translator`."""

import json
import pathlib

from kformer.decoding.batching import batches_by_length
from kformer.export.saved_model.export import FORMAT_VERSION, METADATA_FILE
from kformer.translation import Hypothesis, Translation


class SavedModelTranslator:
    """Translates with an exported SavedModel; TensorFlow does the work, whatever Keras's backend
    is.

    Args:
        path: a version's folder, or the model's folder, of which the highest version is taken.
        warm_up: tokens; above 0, the signature `single` is compiled for texts of up to so many
            tokens, which takes seconds for each 16, and translates lone texts from then on.

    Attributes:
        options: dict, the search options that the model was exported with.

    Call arguments:
        texts: list of strings.
        batch_size: texts in one call of the graph, where they stand with others of their length.

    Returns:
        List of translations, in the order of the texts.

    Raises:
        FileNotFoundError: there is no SavedModel.
        ValueError: it was not exported by kformer, or by a newer one; or it has no signature
            `single` to warm up.

    Example:
        >>> kformer.export.SavedModelTranslator("saved_models/en-de")(["A man rides a horse."])
        ["Ein Mann reitet auf einem Pferd."]
    """

    def __init__(self, path, warm_up=0):
        self.path = find_version(path)
        try:
            import tensorflow as tf
            import tensorflow_text  # noqa: F401 - it registers the ops of the tokenizer
        except ImportError as error:
            raise ImportError(
                f"Loading a SavedModel needs tensorflow and tensorflow-text ({error}): run `pip install tensorflow tensorflow-text`."
            ) from error
        metadata = read_metadata(self.path)
        self.options = metadata["search"]
        self._module = tf.saved_model.load(str(self.path))
        self._is_warm = warm_up > 0
        if not self._is_warm:
            return
        if "single" not in self._module.signatures:
            raise ValueError(
                f"{self.path} has no signature for single texts to warm up: export it again with single=True (--single)."
            )
        for words in range(0, warm_up, 8):  # A word is a token at least.
            self._module.signatures["single"](text=tf.constant([" ".join(["a"] * words)]))

    def __call__(self, texts, *, batch_size=64):
        return [result.text for result in self.translate(texts, batch_size=batch_size)]

    def translate(self, texts, *, batch_size=64, n_best=1, progress=None):
        """Like a call, with scores: a list of `kformer.translation.Translation`.

        Args:
            texts: list of strings.
            batch_size: texts in one call of the graph.
            n_best: hypotheses per text; at most the number that the model was exported with.
            progress: function that is called with the number of texts done after each batch.
        """
        import tensorflow as tf

        if n_best > self.options["n_best"]:
            raise ValueError(
                f"{self.path} was exported with the {self.options['n_best']} best; export it again with n_best={n_best} to get more."
            )
        name = (
            "n_best"
            if n_best > 1
            else "single"
            if self._is_warm and len(texts) == 1
            else "serving_default"
        )
        run = self._module.signatures[name]
        texts = [
            text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            for text in texts
        ]
        results, done = [None] * len(texts), 0
        # How many tokens a text has, the graph alone knows. An empty text must have a result, too.
        for batch in batches_by_length([1 + len(text) for text in texts], batch_size):
            found = {
                name: value.numpy()
                for name, value in run(text=tf.constant([texts[i] for i in batch])).items()
            }
            if n_best == 1:
                found["translations"], found["scores"] = (
                    found["translation"][:, None],
                    found["score"][:, None],
                )
            for row, place in enumerate(batch):
                hypotheses = [
                    Hypothesis(text.decode("utf-8"), float(score), None, None)
                    for text, score in zip(
                        found["translations"][row][:n_best],
                        found["scores"][row][:n_best],
                        strict=True,
                    )
                ]
                results[place] = Translation(hypotheses, bool(found["truncated"][row]))
            done += len(batch)
            if progress is not None:
                progress(done)
        return results


def find_version(path):
    """The folder of a SavedModel: `path` itself, or its highest version.

    Raises:
        FileNotFoundError: there is none.
    """
    path = pathlib.Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    versions = [
        folder
        for folder in path.glob("*")
        if folder.name.isdigit() and (folder / "saved_model.pb").is_file()
    ]
    if not versions:
        raise FileNotFoundError(
            f"There is no SavedModel in {path}: neither saved_model.pb nor a folder named by a version number."
        )
    return max(versions, key=lambda folder: int(folder.name))


def read_metadata(path):
    """What was noted at the export of the SavedModel in the folder `path`."""
    try:
        metadata = json.loads((path / METADATA_FILE).read_text(encoding="utf-8"))
        version = metadata["format_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} was not exported by kformer: it has no readable {METADATA_FILE}."
        ) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{path} was exported by a newer kformer (format {version}, this one reads up to {FORMAT_VERSION}): install a newer one."
        )
    if "search" not in metadata:
        raise ValueError(
            f"{path} holds a {metadata.get('model')}, which translates nothing: load it with tf.saved_model.load."
        )
    return metadata
