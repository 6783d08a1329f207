"""Figures of the structure of kformer, of this checkout or of others.

    python benchmarks/structure.py [CHECKOUT ...] [--static] [--longest 5]

Prints for each checkout

- the circles of files: files that import each other, directly or through others. Imports inside
  functions count; those that `DOORS` of the checkout's `tests/test_imports.py` lists do not;
- the files that text passes in `kformer train`, from the two text files to the first loss;
- the files that text passes in a call of `Translator`, by the layers (JAX) and by the fast decoder
  (PyTorch). The model is the checkout's `tests/frozen_run`;
- the longest functions (lines of code without the docstring), the longest argument lists and the
  longest files of the package;
- the lines beyond 100 columns of all Python files.

A file is passed if one of its functions is executed, which Python's profiler reports; what is
executed while a module is imported does not count, nor does loading the model. `--static` leaves
out what has to be executed, which takes a minute.
"""

import argparse
import ast
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 100
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def package_files(checkout):
    """The Python files of the package and of its command, by module name."""
    files = {}
    for path in sorted(checkout.glob("kformer*/**/*.py")) + sorted(checkout.glob("kformer*.py")):
        parts = path.relative_to(checkout).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


# Circles.


def doors_of(checkout):
    """Pairs of a function and a module that it may import: `DOORS` of the test of imports."""
    path = checkout / "tests" / "test_imports.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        names = [target.id for target in getattr(node, "targets", ()) if hasattr(target, "id")]
        if names == ["DOORS"]:
            return ast.literal_eval(node.value)
    return set()


def imports_of(module, tree, modules, doors):
    """The modules that a module imports, at its top or inside functions."""
    found = set()

    def visit(node, name):
        for child in ast.iter_child_nodes(node):
            targets = []
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom) and not child.level:
                full = [f"{child.module}.{alias.name}" for alias in child.names]
                targets = [each if each in modules else child.module for each in full]
            found.update(each for each in targets if (name, each) not in doors)
            named = isinstance(child, FUNCTION | ast.ClassDef)
            visit(child, f"{name}.{child.name}" if named else name)

    visit(tree, module)
    return (found & set(modules)) - {module}


def circles(edges):
    """The sets of files that import each other: strongly connected components of several files."""

    def reach(start, graph):
        seen, waiting = {start}, [start]
        while waiting:
            for other in graph[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        return seen

    back = {module: {other for other in edges if module in edges[other]} for module in edges}
    found, left = [], set(edges)
    while left:
        module = min(left)
        circle = reach(module, edges) & reach(module, back)
        left -= circle
        found += [sorted(circle)] if len(circle) > 1 else []
    return found


# Lengths.


def functions_of(trees):
    """(lines without the docstring, number of arguments, name) of every function."""
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, FUNCTION):
                continue
            first = node.body[0]
            docstring = 0
            if ast.get_docstring(node, clean=False) is not None:
                docstring = first.end_lineno - first.lineno + 1
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
            names += [each.arg for each in node.args.kwonlyargs]
            count = len([name for name in names if name not in ("self", "cls")])
            length = node.end_lineno - node.lineno + 1 - docstring
            yield length, count, f"{module}.{node.name}"


def longest(rows, count):
    return ", ".join(f"{name} {number}" for number, name in sorted(rows, reverse=True)[:count])


def report_static(checkout, count):
    """Prints what can be read from the files."""
    modules = package_files(checkout)
    texts = {module: path.read_text(encoding="utf-8") for module, path in modules.items()}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    doors = doors_of(checkout)
    edges = {name: imports_of(name, tree, modules, doors) for name, tree in trees.items()}
    found = circles(edges)
    print(f"files: {len(modules)}, lines: {sum(len(text.splitlines()) for text in texts.values())}")
    print(f"circles of files: {len(found)}, leaving out {len(doors)} doors")
    for circle in found:
        print(f"    {len(circle)} files: {', '.join(circle)}")
    functions = list(functions_of(trees))
    print(f"longest functions: {longest([(n, name) for n, _, name in functions], count)}")
    print(f"longest argument lists: {longest([(n, name) for _, n, name in functions], count)}")
    files = [(len(text.splitlines()), name) for name, text in texts.items()]
    print(f"longest files: {longest(files, count)}")
    beyond = 0
    for path in checkout.rglob("*.py"):
        if not any(part.startswith(".") for part in path.relative_to(checkout).parts):
            lines = path.read_text(encoding="utf-8").splitlines()
            beyond += sum(len(line) > COLUMNS for line in lines)
    print(f"lines beyond {COLUMNS} columns: {beyond}", flush=True)


# Files that text passes.


class Passed:
    """Notes the files of a checkout in which a function is executed, while it is active.

    Args:
        checkout: path.
        last: name of the function whose first return ends the way; `None` for no end.
    """

    def __init__(self, checkout, last=None):
        self.files, self._last, self._done = set(), last, False
        self._folder, self._package = f"{checkout}{os.sep}", f"{checkout}{os.sep}kformer"
        self._importing = threading.local()

    def _note(self, frame, event, argument):
        code = frame.f_code
        if code.co_name == "<module>":
            change = {"call": 1, "return": -1}.get(event, 0)
            self._importing.depth = getattr(self._importing, "depth", 0) + change
        elif event == "call" and not self._done and not getattr(self._importing, "depth", 0):
            if code.co_filename.startswith(self._package):
                self.files.add(code.co_filename.removeprefix(self._folder))
        elif event == "return" and code.co_name == self._last:
            self._done = True
            sys.setprofile(None)

    def __enter__(self):
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)


def trace_training(checkout):
    """Files from the start of `kformer train` to the first return of `compute_loss`."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = []
        for side, word in (("source", "one two three four"), ("target", "eins zwei drei vier")):
            text = "".join(f"{word} {i} {i * 7 % 100} {i * 13 % 1000}\n" for i in range(300))
            (folder / side).write_text(text, encoding="utf-8")
            files += [f"--train-{side}", str(folder / side)]
        if (checkout / "kformer_command.py").exists():
            from kformer_command import main
        else:
            from kformer_cli.main import main
        options = ["--output", str(folder / "run"), "--steps", "1", "--vocabulary-size", "300"]
        with Passed(checkout, last="compute_loss") as passed:
            status = main(["train", *files, *options, "--backend", "torch", "--threads", "1"])
    if status:
        raise SystemExit(f"kformer train returned {status}")
    return passed.files


def trace_translation(checkout):
    """Files from a text to its translation; the model is loaded before."""
    import kformer

    translator = kformer.Translator.load(checkout / "tests" / "frozen_run")
    with Passed(checkout) as passed:
        translator(["a quarter past ten"])
    return passed.files


WAYS = {
    "the loss": ("torch", trace_training),
    "a translation, by the layers": ("jax", trace_translation),
    "a translation, by the fast decoder": ("torch", trace_translation),
}


def report_ways(checkout):
    """Prints the files that text passes, each way in a process of its own."""
    for name, (backend, _) in WAYS.items():
        command = [sys.executable, __file__, str(checkout), "--way", name]
        variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        process = subprocess.run(
            command, env=variables | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True
        )
        if process.returncode:
            raise SystemExit(f"{name} failed:\n{process.stderr[-3000:]}")
        files = json.loads(process.stdout.splitlines()[-1])
        print(f"files on the way to {name}: {len(files)}")
        print(f"    {', '.join(files)}", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=pathlib.Path, default=[ROOT])
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--longest", type=int, default=5)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for checkout in [path.resolve() for path in options.checkouts]:
        if options.way:
            sys.path[0] = str(checkout)
            print(json.dumps(sorted(WAYS[options.way][1](checkout))))
            continue
        command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        print(f"# {checkout.name} {commit}")
        report_static(checkout, options.longest)
        if not options.static:
            report_ways(checkout)
        print()


if __name__ == "__main__":
    main()
