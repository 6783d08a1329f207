"""The options of commands beside those of a training, a search and a server.

This module imports only the standard library, so that help is quick.
"""

import dataclasses
from collections.abc import Sequence

from kformer_options.field import Path, option, options_of
from kformer_options.names import add_flags


def _devices(name, value):
    """Returns a number of devices as an int, or "all"."""
    if value == "all":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(
            f"{name} must be a whole number of at least 1, or all, but {value!r} was given."
        )
    return int(value)


@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """The options that commands choose from by their names."""

    document: Path | None = option(
        "Translate a whole document in place of lines: text, HTML, DOCX and others. Its "
        "markup stays as it is.",
        settled="",
        group="Documents",
    )
    format: str | None = option(
        "With --document: text, html, markdown, srt, vtt, po, docx, pptx, odt or xliff.",
        settled="by the ending of the file's name, else text",
        metavar="NAME",
    )
    language_pair: str | None = option(
        "With --document, --split or --glossary: the languages, such as de-en. The first "
        "decides where sentences end, and is the source language of a model that reads one; the "
        "second is written into an HTML page or a PO file, and is what a model of several "
        "languages translates into.",
        settled="the run's, else English, and a page names no language",
        metavar="SOURCE-TARGET",
    )
    glossary: Path | None = option(
        "Terms and their translations, with a tab between them, a line for each; forms with | "
        "between them. A line without a translation is a term that is not translated.",
        settled="",
    )
    split: bool = option(
        "Translate lines of several sentences, or that are too long, sentence by sentence.", False
    )
    strict: bool = option(
        "End with an error code if anything of the text was cut, or is doubtful by --coverage.",
        False,
    )
    sample: bool = option(
        "Sample translations instead of searching for the best.", False, group="Sampling"
    )
    mbr: int | None = option(
        "Minimum Bayes risk decoding: of N samples the translation that is most like the "
        "others (by chrF).",
        settled="no samples",
        at_least=2,
    )
    terms: Path | None = option(
        "Words and phrases that each translation must contain: a line for each line of the "
        "text, terms with tabs between them, forms of a term, one of which is enough, with | "
        "between them. It needs a beam.",
        settled="none",
        group="Options",
    )
    forbidden_terms: Path | None = option(
        "What each translation must not contain: a line for each line, terms with tabs "
        "between them.",
        settled="nothing",
    )
    prefix: Path | None = option(
        "How each translation begins: a line for each line.", settled="freely"
    )
    alternatives: int | None = option(
        "N translations per line, which differ in the first token after the prefix, in "
        "columns as with --n-best.",
        settled="one, the best",
        at_least=1,
    )
    alignment: bool | None = option(
        "After each translation a column with its aligned words, such as 0-0 1-2: the index "
        "of a source word and that of its translation, from 0.",
        settled="",
    )
    confidence: bool | None = option(
        "After each translation a column with the model's confidence in it, from 0 to 1, and "
        "one with that in each word. kformer calibrate fits it.",
        settled="",
    )
    coverage: Path | None = option(
        "Where to write, for each line or for each sentence of a document, what its translation "
        "left out and what it has without a source: JSON lines. With --strict a doubtful one is "
        "an error.",
        settled="",
    )
    retry: bool = option(
        "With --coverage: translate what is doubtful again, by a wider search and by clauses, and "
        "take the better translation; the file marks it.",
        False,
    )
    workers: int | None = option(
        "Translate a file with N processes, each with one thread or --threads. A job that "
        "ended early goes on when the command is given again.",
        settled="",
        at_least=1,
    )
    ray_address: str | None = option(
        "With --workers: a Ray cluster to work on, such as 10.0.0.1:6379. Its machines see "
        "model and output by the same paths.",
        settled="this machine",
        metavar="ADDRESS",
    )
    field: str | None = option(
        "With --workers: the field of JSON lines or the column of Parquet with the text.",
        settled="text",
        metavar="NAME",
    )
    output_field: str | None = option(
        "With --workers: the field or column for the translation.",
        settled="translation",
        metavar="NAME",
    )
    ensemble: Sequence[str] | None = option(
        "A further run that translates together with the first. Give the option again for more.",
        settled="",
        metavar="RUN",
    )
    dtype: str | None = option(
        "How a run's matrices are multiplied.",
        choices=("float32", "bfloat16", "int8"),
        metavar="NAME",
        help="How a run's matrices are multiplied on TensorFlow and PyTorch: float32, bfloat16 or "
        "int8. int8 is faster for wide models, bfloat16 on CPUs that multiply it, and slower on "
        "others; both change a few words. Default: the model's own.",
    )
    trust_models: bool = option(
        "Load a SavedModel whose graph may do more than translate, such as read and write files.",
        False,
    )
    as_json: bool = option("Print one JSON object instead of lines to read.", False, flag="json")
    shortlist: Path | None = option(
        "Text in the target language: only its tokens are ever generated, in less time.",
        settled="all tokens",
    )
    serving_config: bool = option(
        "saved_model: also write models.config, batching_parameters.txt and compose.yaml of "
        "TensorFlow Serving into the folder around FOLDER.",
        False,
    )
    import_module: Sequence[str] | None = option(
        "A Python module to import first, which registers layers of your own.",
        settled="",
        flag="import",
        metavar="MODULE",
    )
    ignore: Sequence[str] | None = option(
        "A setting of the model's generation_config.json that is ignored if kformer's search "
        "does not follow it; it is an error otherwise. Give the option again for more.",
        settled="",
        metavar="SETTING",
    )
    revision: str | None = option(
        "A branch, tag or commit of a model at the hub.", settled="its main branch", metavar="NAME"
    )
    source_model: Path | None = option(
        "A SentencePiece model that cuts the source text, of a model of another toolkit.",
        settled="the one beside the files",
        group="Other toolkits",
    )
    target_model: Path | None = option(
        "The same for the target side.", settled="the one beside the files, or that of the source"
    )
    source_vocabulary: Path | None = option(
        "The toolkit's own file of source tokens.", settled="the one beside the files"
    )
    target_vocabulary: Path | None = option(
        "The same for the target side.", settled="the one beside the files"
    )
    pretokenized: bool = option("Texts are tokens with spaces between them.", False)
    num_heads: int | None = option(
        "Attention heads, where the files do not tell.",
        settled="what the files say",
        at_least=1,
        flag="heads",
    )
    source_language: str | None = option(
        "Source language, of a model of several, such as eng_Latn.",
        settled="its own",
        metavar="CODE",
        group="Languages",
    )
    target_language: str | None = option(
        "Target language, of a model of several.", settled="its own", metavar="CODE"
    )
    resume: bool = option(
        "Go on where the training in RUN was interrupted, with the options that it began with.",
        False,
        group="Output",
    )
    overwrite: bool = option("Replace an earlier training in RUN.", False)
    threads: int | None = option(
        "Threads to compute with.", settled="one for each CPU core", at_least=1, group="Machine"
    )
    backend: str | None = option(
        "The library that computes: tensorflow, jax or torch.",
        settled="$KERAS_BACKEND, else Keras's own choice (tensorflow)",
        metavar="NAME",
    )
    batch_size: int = option(
        "Sentences translated at once: more is faster, until memory runs out.",
        64,
        settled="",
        at_least=1,
    )
    devices: str | None = option(
        "Devices of this machine that share each batch of texts, as several GPUs (a run, with "
        "JAX).",
        settled="1",
        check=_devices,
        metavar="N|all",
    )
    model_parallel: int | None = option(
        "How many of the devices share a model, for models that one cannot hold (JAX).",
        settled="1, a whole model on each",
        at_least=1,
    )
    jobs: int | None = option(
        "Trainings of an --effort of 2 or 3 that run at once, each with an equal share of the "
        "cores: a tiny model keeps one busy, hardly more.",
        settled="1",
        at_least=1,
    )
    matmul_precision: str | None = option(
        "Precision of float32 products: highest, high or medium; lower is faster on GPUs, and "
        "on some CPUs.",
        settled="the backend's",
        metavar="NAME",
    )
    keep_memory: bool = option(
        "Keep memory that a step frees for the next (Linux): saves PyTorch a tenth of its "
        "time on CPUs.",
        True,
        settled="yes",
    )
    hosts: Sequence[str] | None = option(
        "The addresses of all hosts that train together, the first of which writes RUN, with "
        "commas between them (JAX); auto takes those of Slurm, torchrun or KFORMER_HOSTS. All "
        "need the same files and a private network. Give the option again for more.",
        settled="this host alone",
        metavar="HOST[:PORT]",
    )
    host_index: int | None = option(
        "The number of this host among --hosts, from 0.", settled="that of --hosts auto", at_least=0
    )


COMMANDS = options_of(CommandOptions)
add_flags(COMMANDS)
