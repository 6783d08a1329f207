"""The order of the packages: imports run one way, and none needs a backend's library at import."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

from tests.hiding import hiding

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A module may import from its own package and from those before it, also inside functions.
ORDER = [
    "kformer_options",
    "kformer.utils",
    "kformer.layers",
    "kformer.models",
    "kformer.decoding",
    "kformer.text",
    "kformer.data",
    "kformer.saving",
    "kformer.training",
    "kformer.translating",
    "kformer.evaluation",
    "kformer.distillation",
    "kformer.interop",
    "kformer.export",
    "kformer.trainer",
    "kformer.documents",
    "kformer.plots",
    "kformer.serving",
    "kformer.examples",
    "kformer",
    "kformer_cli",
]
# Methods that lead a user to a later package import it when they are called:
# (the function's qualified name, the package that it imports).
DOORS = {
    ("kformer.models.language_model.TransformerDecoder.generate", "kformer.decoding"),
    ("kformer.models.language_model.TransformerDecoder.continuation_options", "kformer.decoding"),
    ("kformer.export.saved_model.reader.SavedModelTranslator.document", "kformer.documents"),
    ("kformer.translating.translator.Translator.document", "kformer.documents"),
    ("kformer.translating.translator.Translator.export", "kformer.export"),
    ("kformer.translating.streaming.open_translator", "kformer.export"),
    ("kformer.translating.translator.Translator.from_pretrained", "kformer.interop"),
}
# The modules that may import a backend's library, inside functions.
BACKEND_MODULES = (
    "kformer.export.",
    "kformer.training.devices",
    "kformer.training.hosts",
    "kformer.training.machine",
    "kformer.training.projected_loss_torch",
    "kformer.utils.backend",
    "kformer.decoding.fast.",
    "kformer.serving.",
)
# Modules that need TensorFlow, which others import inside functions.
GRAPH_MODULES = {
    *(
        f"kformer.export.saved_model.{name}"
        for name in (
            "alignment",
            "constrained",
            "graph",
            "languages",
            "lists",
            "signatures",
            "tokenizer",
            "translation",
        )
    ),
    "kformer.serving.ingress.grpc_server",
}

pytestmark = pytest.mark.any_backend


def _name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    _name_of(path): path
    for package in ("kformer_options", "kformer", "kformer_cli")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _rank(module):
    """Position in `ORDER` of the longest entry that is the module or a package around it."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((ORDER.index(name) for name in names if name in ORDER), None)


def imports_of(module):
    """(imported module, name of the function around the import or None) for every import."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))

    def visit(node, inside, name):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert not child.level, f"{module} must name the package in full where it imports"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield (full if full in MODULES else child.module), inside
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from visit(child, f"{name}.{child.name}", f"{name}.{child.name}")
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, inside, f"{name}.{child.name}")
            else:
                yield from visit(child, inside, name)

    return list(visit(tree, None, module))


def test_every_package_is_in_the_order():
    found = {".".join(module.split(".")[:2]) for module in MODULES if module.startswith("kformer.")}
    assert found | {name for name in ORDER if "." not in name} == set(ORDER)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    for imported, function in imports_of(module):
        top = imported.split(".")[0]
        is_ours = top in ("kformer_options", "kformer", "kformer_cli")
        if is_ours and (function, imported) not in DOORS:
            assert _rank(imported) <= _rank(module), f"{module} imports {imported}, a later one"
        if top == "kformer" and module.startswith("kformer_cli"):
            assert function, f"{module} imports {imported} before a command needs it"
        needs_backend = top in ("tensorflow", "tensorflow_text", "torch", "jax")
        if needs_backend or imported in GRAPH_MODULES:
            is_lazy = function or module in GRAPH_MODULES
            assert is_lazy, f"{module} needs {imported} to be imported"
        if needs_backend:
            allowed = module.startswith(BACKEND_MODULES) or module == "kformer_cli.environment"
            assert allowed, f"{module} must do with keras.ops, but imports {imported}"


def test_every_door_is_used():
    used = {(function, imported) for module in MODULES for imported, function in imports_of(module)}
    assert used >= DOORS


def test_no_circle_of_files():
    """Imports inside functions count, and so do the packages that importing a module runs first."""
    edges = {}
    for module in MODULES:
        edges[module] = {
            imported
            for imported, function in imports_of(module)
            if imported in MODULES and imported != module and (function, imported) not in DOORS
        }
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for imported in sorted(edges[module]):
                visit(imported)
            path.pop()
            done.add(module)

    for module in MODULES:
        visit(module)


@pytest.mark.heavy
def test_backends_without_tensorflow_and_matplotlib():
    """`import kformer` on JAX and PyTorch needs neither TensorFlow nor Matplotlib."""
    code = (
        hiding("tensorflow", "tensorflow_text", "matplotlib")
        + """
import kformer
sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
kformer.Transformer(50, num_encoder_layers=1, num_decoder_layers=1, **sizes)
assert kformer.plots.plot_attention and kformer.export.export
assert "tensorflow" not in sys.modules and "matplotlib" not in sys.modules
"""
    )
    for backend in ("jax", "torch"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "KERAS_BACKEND": backend},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout == run.stderr == "", "import kformer prints nothing"


@pytest.mark.heavy
def test_an_import_on_tensorflow_prints_no_banner_and_keeps_what_others_say():
    code = "import kformer_options.banner, os\nwith kformer_options.banner.without_banner():\n"
    code += "    os.write(2, b'a user\\'s own line\\n')\n    import kformer"
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)  # That would silence TensorFlow by itself.
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "a user's own line\n")
