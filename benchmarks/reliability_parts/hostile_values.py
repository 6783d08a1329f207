"""Values that a hostile JSON file may hold, and where they are put."""

import json


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def model_files(folder, *patterns):
    return sorted(path for pattern in patterns for path in folder.rglob(pattern) if path.is_file())


def _hostile_value(rng, secret, canary):
    relative = "../" * int(rng.integers(1, 9))
    return pick(
        rng,
        [
            10 ** int(rng.integers(3, 40)),
            -(10 ** int(rng.integers(0, 12))),
            float(pick(rng, [1e308, -1e308, 1e-308, 0.5])),
            float("nan"),
            None,
            True,
            [],
            {},
            "",
            "x" * int(10 ** rng.uniform(1, 6)),
            str(secret),
            relative + secret.name,
            relative * 3 + str(secret).lstrip("/"),
            f"file://{secret}",
            "/dev/zero",
            list(range(int(10 ** rng.uniform(1, 6)))),
            [[[1]]] * 1000,
            {"class_name": "os.system", "config": f"touch {canary}"},
            "\x00",
            "\ud800",
        ],
    )


def places(value, path=()):
    """Paths of all values within a JSON value."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value[:50])
        for key, part in items:
            yield from places(part, (*path, key))


def put(value, path, new):
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = new
    return value


def changed_json(text, rng, secret, canary, paths=None):
    """JSON with one hostile value, anywhere or at one of some paths, and what it is."""
    value = json.loads(text)
    path = pick(rng, paths or list(places(value)))
    new = _hostile_value(rng, secret, canary)
    text = json.dumps(put(value, path, new))
    return text, f"{'.'.join(map(str, path))} is {new!r:.80}"
