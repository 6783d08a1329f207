"""A folder of the web format as one HTML file, which opens from `file://`."""

import base64
import hashlib
import pathlib
import re

_UNUSED = {"LICENSE", "encoder.onnx", "decoder_step.onnx", "translator.py"}


def joined(folder):
    """The text of one HTML file that does what the page of a folder does.

    Its content security policy names page and style by their digests, and allows no address but
    those that the page makes of its own files.

    Args:
        folder: `pathlib.Path` of what `kformer.export.web.export_web` writes.
    """
    page, style = (
        (folder / name).read_text(encoding="utf-8") for name in ("index.html", "style.css")
    )
    script = pathlib.Path(__file__).with_suffix(".mjs").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_digest(script)} blob: 'wasm-unsafe-eval'; worker-src "
        f"blob:; style-src {_digest(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    names = {*folder.rglob("*.mjs"), *folder.rglob("*.wasm"), *(folder / "model").rglob("*")}
    files = "".join(
        f'<script type="text/plain" data-file="{path.relative_to(folder).as_posix()}">'
        f"{base64.b64encode(path.read_bytes()).decode()}</script>\n"
        for path in sorted(names)
        if path.is_file() and path.name not in _UNUSED
    )
    license = (folder / "ort" / "LICENSE").read_text(encoding="utf-8")
    for pattern, text in {
        r'(?<=content=")default-src[^"]*': policy,
        r'<link rel="stylesheet"[^>]*>': f"<style>{style}</style>",
        r'(?s)(?<=role="status">).*?(?=</p>)': "",
        r"(?=<html)": f"<!-- onnxruntime-web inside:\n{license}-->\n",
        r'<script type="module" src="app.mjs"></script>': f"{files}<script type="
        f'"module">{script}</script>',
    }.items():
        page = re.sub(pattern, lambda _, text=text: text, page)
    return page


def _digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
