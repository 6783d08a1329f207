"""The export formats: one entry each, from which `kformer.export`, the options of `kformer export`
and their help are made. It imports only the standard library, so that help needs no Keras.
"""

import dataclasses

from kformer_options.installed import check_extra


@dataclasses.dataclass(frozen=True)
class ExportFormat:
    """One export format. It names its module, so that the registry imports none.

    Args:
        name: str. As `format=` and `--format` take it.
        about: str. What it is for, in a few words.
        module: str. The module with the function that writes it.
        function: str. That function: (translator, path, **options) -> path.
        dtypes: tuple of str. How weights can be stored.
        default_dtype: str, default `None`, for the model's own dtype.
        has_search: bool, default `True`. Whether it keeps search options.
        options: tuple of str, default empty. Options of `kformer export` that not all formats have.
        extra: str or `None`. The extra of kformer whose packages it needs.
    """

    name: str
    about: str
    module: str
    function: str
    dtypes: tuple
    extra: str | None
    default_dtype: str | None = None
    has_search: bool = True
    options: tuple = ()


FORMATS = {
    entry.name: entry
    for entry in (
        ExportFormat(
            "saved_model",
            "TensorFlow Serving",
            "kformer.export.saved_model",
            "export_saved_model",
            dtypes=("float32", "bfloat16", "int8"),
            extra="tensorflow",
            options=("single", "signatures", "imports", "serving_config", "max_text_bytes"),
        ),
        ExportFormat(
            "ctranslate2",
            "a C++ engine",
            "kformer.export.ctranslate2",
            "export_ctranslate2",
            dtypes=(
                *("float32", "float16", "bfloat16"),
                *("int8", "int8_float32", "int8_float16", "int8_bfloat16"),
            ),
            default_dtype="float32",
            has_search=False,
            extra="ctranslate2",
        ),
        ExportFormat(
            "hf",
            "a folder for transformers",
            "kformer.export.huggingface",
            "export_huggingface",
            dtypes=("float32", "float16", "bfloat16"),
            extra="interop",
        ),
        ExportFormat(
            "onnx",
            "encoder, decoder step, search",
            "kformer.export.onnx",
            "export_onnx",
            dtypes=("float32", "float16", "int8"),
            default_dtype="float32",
            options=("max_text_bytes",),
            extra="onnx",
        ),
        ExportFormat(
            "web",
            "a page that translates in a browser",
            "kformer.export.web",
            "export_web",
            dtypes=("float32", "float16", "int8"),
            default_dtype="float32",
            options=("runtime", "single_file", "max_text_bytes"),
            extra="onnx",
        ),
        ExportFormat(
            "marian",
            "Marian and the engine of Firefox",
            "kformer.export.marian",
            "export_marian",
            dtypes=("float32",),
            default_dtype="float32",
            extra=None,
        ),
    )
}


def check_installed(format):
    """Checks that the packages that a format needs are installed.

    Args:
        format: str. A name in `FORMATS`.

    Raises:
        ImportError: one is not. The message names what to install.
    """
    if (extra := FORMATS[format].extra) is not None:
        check_extra(f"The export format {format}", extra)


def formats_help():
    """The names of the formats and what they are for, for the help of `--format`."""
    return ", ".join(f"{entry.name} ({entry.about})" for entry in FORMATS.values()) + "."


def dtypes_help():
    """The dtypes of each format, for the help of `--dtype`."""
    parts = []
    for entry in FORMATS.values():
        names = [
            f"{dtype} (default)" if dtype == entry.default_dtype else dtype
            for dtype in entry.dtypes
        ]
        parts.append(f"{entry.name}: {', '.join(names)}")
    return f"How weights are stored, by default as the model has them. {'; '.join(parts)}."
