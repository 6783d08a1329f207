"""Imports a published checkpoint as a translator or as a run directory."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable

from kformer.interop.architectures import model_arguments
from kformer.interop.checkpoint import CheckpointFolder
from kformer.interop.generation import check_followed, search_options
from kformer.interop.hub import fetch
from kformer.interop.tokenizers import read_tokenizer
from kformer.interop.toolkits.archives import unpacked
from kformer.interop.toolkits.kinds import find_reader, make_translator, refuse_other
from kformer.interop.toolkits.model import ToolkitOptions
from kformer.interop.weights import check_sizes, load_weights, settle_tables
from kformer.models import Transformer
from kformer.translating.translator import Translator
from kformer.utils.checks import check_choice, check_whole, shown
from kformer.utils.files import new_folder
from kformer.utils.types import Path
from kformer_options.model_folders import check_new_folder, is_hub_name
from kformer_options.names import command_line_names, named

DTYPES = ("float32", "float16", "bfloat16")


def load_checkpoint(
    path: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    dtype: str = "float32",
    ignore: Iterable[str] = (),
    report: Callable[[str], object] | None = None,
    revision: str | None = None,
    source_model: Path | None = None,
    target_model: Path | None = None,
    source_vocabulary: Path | None = None,
    target_vocabulary: Path | None = None,
    pretokenized: bool = False,
    num_heads: int | None = None,
) -> Translator:
    """Loads a published translation model as a `Translator`.

    Args:
        path: the name of a model at the Hugging Face hub, such as "Helsinki-NLP/opus-mt-en-de",
            which is downloaded into the cache of `huggingface_hub` and verified; or the path of a
            local folder with `config.json`, weights (`model.safetensors`, its shards,
            or `pytorch_model.bin`) and tokenizer files. Models of the types marian (OPUS-MT),
            m2m_100 (M2M100, NLLB-200), mbart (mBART, mBART-50), bart, t5 (T5, T5 v1.1) and mt5 are
            read. Or the path of the files of another toolkit: a file, a folder, a zip or an
            `.argosmodel`. What it is, is seen from the files.
        source_language, target_language: str, default `None`, for the folder's own. Language codes
            of a multilingual model, as its authors write them ("eng_Latn", "en", "en_XX").
        dtype: str, default "float32". "float16" and "bfloat16" keep weights in half precision, and
            compute in it.
        ignore: sequence of str, default empty. Names of settings of the folder's search, such as
            "num_beam_groups", that are ignored where kformer's search does not follow them.
        report: function of a str, default `None`. Called with a sentence about each setting that is
            ignored.
        revision: str, default `None`, for the main one. A branch, tag or commit at the hub.
        source_model, target_model: path, default `None`, for those beside the files. Of another
            toolkit's model: the SentencePiece models that cut the text before the toolkit saw it.
        source_vocabulary, target_vocabulary: path, default `None`, for those beside the files. Of
            another toolkit's model: its own files of tokens.
        pretokenized: bool, default `False`. Of another toolkit's model: whether texts are tokens
            with spaces between them.
        num_heads: int, default `None`, for what the files say. Of another toolkit's model: its
            attention heads.

    Returns:
        `kformer.Translator`. Its default search is the one of the folder's
        `generation_config.json`, in the mode "huggingface", or that of the other toolkit.

    Raises:
        FileNotFoundError: the folder or a file in it is missing.
        ValueError: a file is damaged; a tensor is missing, unknown or of another shape; the
            architecture is not one that kformer reads; or the folder's search has a setting that
            kformer's search does not follow and `ignore` does not name.
        ImportError: the weights' format needs a library that is not installed.

    Example:

    ```python
    translator = kformer.interop.load_checkpoint("opus-mt-en-de")
    translator(["A man rides a horse."])
    # ["Ein Mann reitet auf einem Pferd."]
    ```
    """
    check_choice("dtype", dtype, DTYPES)
    if num_heads is not None:
        check_whole("num_heads", num_heads)
    hub = fetch(str(path), revision) if is_hub_name(path) else None
    if revision is not None and hub is None:
        raise ValueError(f"{path} is a folder here, which has no {named('revision')} to choose.")
    options = ToolkitOptions(
        *(source_model, target_model, source_vocabulary, target_vocabulary),
        *(pretokenized, num_heads, source_language, target_language),
    )
    with unpacked(path) if hub is None else contextlib.nullcontext(hub.path) as local:
        reader = find_reader(local) if hub is None else None
        if reader is not None:
            name = pathlib.Path(path).resolve().name
            return make_translator(reader.read(local, options), local, name, dtype, report)
        if hub is None:
            refuse_other(local)
        for name in ("source_model", "source_vocabulary", "pretokenized", "num_heads"):
            if getattr(options, name) or getattr(options, name.replace("source", "target")):
                raise ValueError(
                    f"{path} is a folder as Hugging Face's library writes it, which has all that "
                    f"it needs: leave out {named(name)}."
                )
        folder = CheckpointFolder(local)
        return _load_published(folder, hub, options, dtype, ignore, report)


def _load_published(folder, hub, languages, dtype, ignore, report):
    # Quick checks come first.
    arguments = model_arguments(folder.config, str(folder.path / "config.json"))
    if dtype == "float16" and arguments["position_encoding"] == "t5":
        raise ValueError(
            f"{folder.path} is a T5, whose sums are too large for float16: import it with "
            f"{named('dtype')} bfloat16."
        )
    generation = folder.read_json("generation_config.json")
    weights = folder.open_weights()
    # Before the tokenizer, whose ids are compared with the number of embeddings.
    check_sizes(arguments, weights, str(folder.path))
    tokenizer = read_tokenizer(
        *(folder.path, folder.config),
        source_language=languages.source_language,
        target_language=languages.target_language,
    )
    for name, theirs in (("pad", tokenizer.pad_id), ("end", tokenizer.end_id)):
        if theirs != arguments[f"{name}_id"]:
            raise ValueError(
                f"{folder.path}: the {name} token is {shown(arguments[f'{name}_id'])} in "
                f"config.json but {theirs} in the tokenizer's files; they are not of one model."
            )
    arguments = settle_tables(arguments, weights)
    try:
        with command_line_names(False):  # They are settings of the file.
            model = Transformer(**{**arguments, "start_id": tokenizer.start_id}, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{folder.path / 'config.json'}: {error}") from None
    where = str(folder.path / f"{'' if generation is None else 'generation_'}config.json")
    options, left_out = search_options(generation, folder.config, model, where)
    check_followed(left_out, ignore, where)
    for setting in left_out.values() if report is not None else ():
        report(f"{where} has {setting}, which is ignored: outputs may differ from the model's own.")
    load_weights(model, weights, str(folder.path))
    about = {
        "model_type": folder.config["model_type"],
        "name": folder.config.get("_name_or_path") or folder.path.resolve().name,
    }
    if hub is not None:
        about |= {"name": hub.name, "revision": hub.revision}
    return Translator(model, tokenizer, options, {"imported": about})


def import_checkpoint(path: Path, output: Path, **options) -> pathlib.Path:
    """Makes a run directory of a published translation model.

    Args:
        path: path of the model's folder, or its name at the hub.
        output: path of the run directory to make.
        **options: as for `load_checkpoint`.

    Returns:
        `pathlib.Path` of the run directory.

    Raises:
        FileExistsError: something exists at `output`.
        FileNotFoundError, ValueError, ImportError: as `load_checkpoint`; nothing is left at
            `output` then.

    Example:

    ```python
    kformer.interop.import_checkpoint("opus-mt-en-de", "runs/opus-mt-en-de")
    # PosixPath('runs/opus-mt-en-de')
    ```
    """
    output = pathlib.Path(output)
    check_new_folder(output)
    translator = load_checkpoint(path, **options)
    with new_folder(output) as folder:
        translator.save(folder)
    return output
