"""The SavedModel of a translator: tokenizer, model and search in one TensorFlow graph."""

import dataclasses
import pathlib
from collections.abc import Iterable

from kformer.export.saved_model.names import check_signatures
from kformer.export.saved_model.process import write_version
from kformer.export.target_languages import target_choices
from kformer.models import Ensemble
from kformer.saving.run_directory import without_paths
from kformer.text.text_bound import byte_bound
from kformer.translating.translator import Translator
from kformer.translating.word_alignment import stored_source
from kformer.utils.checks import check_choice
from kformer.utils.types import Path
from kformer_options.export_formats import FORMATS


def export_saved_model(
    translator,
    path: Path,
    *,
    version: int | None = None,
    imports: Iterable[str] = (),
    dtype: str | None = None,
    single: bool = False,
    signatures: Iterable[str] | None = None,
    **options,
) -> pathlib.Path:
    """Writes a translator as a TensorFlow SavedModel, strings in and strings out.

    `path/VERSION/` is what TensorFlow Serving and `tf.saved_model.load` read. The graph has core
    TensorFlow and tensorflow_text ops only, and neither Keras nor this package is needed to load
    it. Signatures:

    - `serving_default`: `text: string[B]` -> `translation: string[B]`, `score: float[B]`,
      `truncated: bool[B]`;
    - `n_best`: the same and `translations: string[B, N]`, `scores: float[B, N]`, best first;
    - `attention`: `translation: string[B]`, `source_tokens: string[B, S]`, `target_tokens:
      string[B, T]` (rows filled up with empty strings) and `attention: float[B, layers, heads, T,
      S]`, the cross-attention's probabilities. Where `dtype` is another than the model's, it is
      written only if `signatures` names it.
    - `single`, if asked for: `text: string[1]`, the rest as `serving_default`. XLA compiles it, for
      seconds, at the first text of each length (in steps of 16 tokens); one text at a time is then
      translated faster, above all by a small model. `SavedModelTranslator(path, warm_up=64)`
      compiles ahead. No other signature needs XLA.
    - `constrained` and `prefix`, if `signatures` names them: `text` and `terms: string[B, K]`,
      words and phrases that the translation contains ("" is none); or `text` and `prefix:
      string[B]`, how it begins. They return what `serving_default` does, `constrained` also
      `has_terms: bool[B]` and `prefix` `has_prefix: bool[B]`.
      A limit relative to the source is raised to the tokens of terms and prefix. What is longer
      than `max_length` is left out: the last terms, the end of a prefix.
    - `alignment`, if `signatures` names it: as `serving_default`, and `source_words: string[B, M]`,
      `target_words: string[B, N]` (rows filled up with empty strings), `alignment: int[B, N]`,
      the index of each target word's source word, or -1, and `source_coverage: float[B, M]`, the
      strongest attention on each source word; by the attention that `calibrate` chose or guided
      alignment trained.

    Where a model reads a target language that a text can choose (a tokenizer of several languages,
    published models of several directions), every signature has the input `target_language:
    string[B]` as well: codes among `tokenizer.languages`, or "" for the translator's own language.
    A batch may have several languages. As in Python, the search is the one that was chosen for the
    language, unless `options` change it, and a text's own tag (`>>de<< text`) takes the place of
    the language before it. An unknown code is an InvalidArgument error. One code, `string[1]`, is
    for all texts, and [""] is the default value in the graph: TensorFlow Serving takes it where a
    gRPC request has no such input. Its REST interface and `tf.saved_model.load` need the input, and
    where the server batches requests it needs a code for each text. NLLB and M2M100 read the
    language where the translation begins: with a shortlist or lists, or with languages among
    `forbidden_ids`, they have no such input.

    The lists of a translator (`kformer shortlist`) are in the graph, and translations are those of
    Python with them. Only `single` takes no less time with them.

    Batch and lengths are dynamic. How the search works is fixed here, since a server that batches
    requests needs one meaning for a row. From a JAX or PyTorch backend the graph is made in a
    second process with the TensorFlow backend.

    Args:
        translator: `kformer.Translator`, also with an ensemble, which has no attention to return.
        path: path. The model's folder; its name is the model's.
        version: int, default `None`, for the next free number. The name of the folder to write in
            it.
        imports: sequence of str, default empty. Modules that register layers of your own; the
            second process imports them first.
        dtype: str, default `None`, for the model's own. How matrices are stored and multiplied:
            "float32"; "bfloat16", which is half the size, faster on CPUs that multiply it (AVX-512
            BF16, AMX) and several times slower on others; or "int8", which is a quarter of the size
            and the fastest for models as wide as `base`, with VNNI or without, on TensorFlow's
            Linux builds for x86-64 alone.
            Sums, norms and attention stay float32.
        single: bool, default `False`. Whether to write the signature `single`.
        signatures: sequence of str, default `None` for all. Which of `"serving_default"`,
            `"n_best"` and `"attention"` to write, and `"alignment"`, `"constrained"` and
            `"prefix"`, which are written only if they are named; the first one must be among them.
            In int8 each keeps a copy of the matrices in memory once it has been called.
        **options: fields of `kformer.decoding.SearchOptions` that differ from the translator's.
            `n_best` is the N of the signature `n_best`, by default `beam_size`.

    Returns:
        `pathlib.Path` of the version's folder.

    Raises:
        ValueError: the graph cannot have an option or signature, the version exists, or the model
            cannot be stored in that dtype.
        ImportError: TensorFlow or tensorflow_text is not installed.
        RuntimeError: the process that makes the graph failed, or this build of TensorFlow has no
            int8 products.

    Example:

    ```python
    translator = kformer.Translator.load("runs/en-de")
    kformer.export.export_saved_model(translator, "exports/times", beam_size=4)
    # PosixPath('exports/times/1')
    ```
    """
    search = translator.search_options(options)
    if "n_best" not in options:
        search = dataclasses.replace(search, n_best=search.beam_size)
    if dtype is not None:
        check_choice("A SavedModel's dtype", dtype, FORMATS["saved_model"].dtypes)
    if signatures is not None and not isinstance(signatures, str):
        signatures = list(signatures)
    check_signatures(signatures, dtype or translator.model.policy_name, translator.model, search)
    changes = options
    options = {"dtype": dtype, "single": single, "signatures": signatures}
    choices = target_choices(translator, search, changes)
    # Another process computes the options by language itself.
    fields = {name: getattr(search, name) for name in (*changes, "n_best", "sampling")}
    return write_version(
        path,
        version,
        lambda: _build(translator, search, choices, dtype, single, signatures),
        kind="translator",
        save=lambda folder: save_parts(translator, folder),
        options={**fields, **options},
        imports=imports,
    )


def save_parts(translator, folder):
    """Saves a translator for another process, each model of an ensemble as a run of its own."""
    models = getattr(translator.model, "models", [translator.model])
    others = translator.tokenizer, translator.options, translator.config
    for number, model in enumerate(models):
        part = Translator(model, *others)
        part.token_lists = translator.token_lists
        part.save(pathlib.Path(folder) / f"{number:03d}")


def load_parts(folder):
    """Loads what `save_parts` saved."""
    runs = sorted(pathlib.Path(folder).iterdir())
    return Translator.load(runs if len(runs) > 1 else runs[0])


def _build(translator, search, choices, dtype, single, names):
    """The module, the signatures and the metadata, for `write_version`."""
    from kformer.export.saved_model.languages import GraphLanguages
    from kformer.export.saved_model.tokenizer import GraphTokenizer
    from kformer.export.saved_model.translation import TranslationGraph

    model, tokenizer = translator.model, translator.tokenizer
    aligned_by = None if isinstance(model, Ensemble) else stored_source(translator)
    languages = GraphLanguages(choices) if choices else None
    arguments = tokenizer, search, dtype, aligned_by, languages, translator.token_lists
    graph = TranslationGraph(model, GraphTokenizer(tokenizer), *arguments)
    metadata = metadata_of(translator, search, choices, graph.dtype)
    return *graph.build(single, names), metadata


def metadata_of(translator, search, choices, dtype):
    """Returns what an export tells about a translator: a dict of JSON values.

    Args:
        translator: `kformer.Translator`.
        search: `SearchOptions`.
        choices: dict, from `target_choices`.
        dtype: str. How its matrices are stored.
    """
    model, tokenizer = translator.model, translator.tokenizer
    metadata = {
        "search": dataclasses.asdict(search),
        "dtype": dtype,
        "max_source_length": model.max_length,
        "max_text_bytes": byte_bound(model.max_length, search.max_text_bytes),
        "config": without_paths(translator.config),
    }
    if choices:
        metadata["languages"] = list(tokenizer.languages)
        metadata["source_language"] = tokenizer.source_language
        metadata["target_language"] = tokenizer.target_language
    return metadata
