"""Attacks on the `.keras` files of a folder; see `attacks`."""

import base64
import io
import json
import marshal
import zipfile

import h5py
import numpy as np

from benchmarks.reliability_parts.hostile_values import changed_json, model_files, pick, places, put


def _keras_files(folder):
    return model_files(folder, "*.keras")


def _rewritten(path, change):
    """Rewrites a `.keras` archive; `change` takes and returns a dict of member to bytes."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members = change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def keras_value(folder, rng, secret, canary):
    files, what = _keras_files(folder), []
    if not files:
        return None

    def change(members):
        text, done = changed_json(members["config.json"].decode(), rng, secret, canary)
        what.append(done)
        return {**members, "config.json": text.encode(errors="replace")}

    for path in files[:1]:
        _rewritten(path, change)
    return f"{files[0].name}: {what[0]}"


def keras_class(folder, rng, secret, canary):
    """A class or function that a configuration names, instead of one of kformer's."""
    files = _keras_files(folder)
    if not files:
        return None
    command = f"touch {canary}"
    code = compile(f"import os; os.system({command!r})", "x", "exec")
    marshalled = base64.b64encode(marshal.dumps(code)).decode()
    lambda_config = {"class_name": "__lambda__", "config": {"value": marshalled}}
    lambda_config["config"] |= {"code": marshalled, "defaults": None, "closure": None}
    named = [
        ("os", "system", {"command": command}),
        ("subprocess", "run", {"args": ["touch", str(canary)]}),
        ("subprocess", "Popen", {"args": ["touch", str(canary)]}),
        ("builtins", "eval", {"source": f"__import__('os').system({command!r})"}),
        ("builtins", "exec", command),
        ("posix", "system", command),
        ("keras.layers", "Lambda", {"function": lambda_config, "name": "x"}),
        ("keras.layers", "TorchModuleWrapper", {"module": marshalled, "name": "x"}),
        ("keras.layers", "TFSMLayer", {"filepath": str(secret.parent), "name": "x"}),
        ("keras.layers", "StringLookup", {"vocabulary": str(secret), "name": "x"}),
        ("keras.layers", "TextVectorization", {"vocabulary": str(secret), "name": "x"}),
        ("keras.config", "enable_unsafe_deserialization", {}),
        ("keras.utils", "get_file", {"fname": str(canary), "origin": f"file://{secret}"}),
        ("keras.src.utils.file_utils", "copy", {"src": str(secret), "dst": str(canary)}),
        ("numpy", "load", {"file": str(secret), "allow_pickle": True}),
        ("kformer.utils.files", "remove_tree", {"path": str(secret.parent)}),
        ("shutil", "rmtree", {"path": str(secret.parent)}),
    ]
    module, name, config = pick(rng, named)
    new = {"module": module, "class_name": name, "config": config}
    registered = [None, name, f"kformer>{name}", f"{module}>{name}", f"{module}.{name}"]
    new["registered_name"] = pick(rng, registered)
    if rng.random() < 0.3:
        new["build_config"] = {"input_shape": [None, 4]}
    path = []

    def change(members):
        value = json.loads(members["config.json"])
        path.append(pick(rng, list(places(value))))
        return {**members, "config.json": json.dumps(put(value, path[0], new)).encode()}

    _rewritten(files[0], change)
    return f"{'.'.join(map(str, path[0]))} is {module}.{name}, {new['registered_name']}"


def keras_archive(folder, rng, secret, canary):
    files = _keras_files(folder)
    if not files:
        return None
    kind = pick(rng, ["traversal", "big config", "big weights", "many", "double", "link", "extra"])
    with zipfile.ZipFile(files[0]) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(files[0], "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            if kind == "big config" and name == "config.json":
                data = b" " * 300_000_000 + data
            if kind == "big weights" and name.endswith(".h5"):
                data = data + bytes(600_000_000)
            archive.writestr(name, data)
        if kind == "traversal":
            for name in ("../" * int(rng.integers(1, 6)) + canary.name, str(canary)):
                archive.writestr(name, "x")
        if kind == "many":
            for number in range(20_000):
                archive.writestr(f"assets/{number}", "x")
        if kind == "double":
            archive.writestr("config.json", json.dumps({"module": "os", "class_name": "system"}))
        if kind == "link":
            info = zipfile.ZipInfo("assets/link")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, str(secret))
        if kind == "extra":
            archive.writestr(f"assets/{'a/' * 2000}x", "x")
    return f"{files[0].name}: {kind}"


def keras_weights(folder, rng, secret, canary):
    """Weights that lie in another file, or that would fill the memory."""
    files = _keras_files(folder)
    if not files:
        return None
    kind, done = pick(rng, ["external", "link", "huge", "soft", "virtual", "type"]), []

    def change(members):
        (name,) = [name for name in members if name.endswith(".h5")]
        file = io.BytesIO(members[name])
        with h5py.File(file, "r+") as weights:
            paths = []
            weights.visititems(
                lambda path, item: paths.append(path) if isinstance(item, h5py.Dataset) else None
            )
            path = pick(rng, sorted(paths))
            done.append(path)
            shape, dtype = weights[path].shape, weights[path].dtype
            del weights[path]
            size = int(np.prod(shape)) * 4
            if kind == "external":
                weights.create_dataset(path, shape, dtype, external=[(str(secret), 0, size)])
            elif kind == "link":
                weights[path] = h5py.ExternalLink(str(secret), "/")
            elif kind == "soft":
                weights[path] = h5py.SoftLink(pick(rng, ["/", path, "/nowhere"]))
            elif kind == "huge":
                weights.create_dataset(path, (10**6, 10**5), "float32", chunks=(1000, 1000))
            elif kind == "virtual":
                layout = h5py.VirtualLayout(shape, dtype)
                layout[...] = h5py.VirtualSource(str(secret), "x", shape=shape)
                weights.create_virtual_dataset(path, layout)
            else:
                weights[path] = np.full(shape, "text", dtype=object).astype("S4")
        return {**members, name: file.getvalue()}

    _rewritten(files[0], change)
    return f"{files[0].name}: {done[0]}, {kind}"
