"""Attacks on folders as other toolkits write them: `tests/interop/toolkits/data` and one of
CTranslate2. Each changes one thing, and says what.
"""

import os
import pickle
import random
import shutil
import zipfile

from benchmarks.reliability_parts.hostile_values import pick
from tests.interop.toolkits.fixtures import DATA
from tests.interop.toolkits.hostile import damage

# The options that a folder needs beside its path.
OPTIONS = {
    "eole-sinusoidal": ["--pretokenized"],
    "fairseq-learned": [],
    "fairseq-multilingual": ["--source-language", "en", "--target-language", "de"],
    "marian-opusmt": [],
    "marian-ssru": ["--source-vocabulary", DATA / "marian-prenorm" / "vocab.spm"],
    "opennmt-py-2": [],
    "opennmt-py-relative": [],
    "opennmt-tf-transformer": [],
    "opennmt-tf-v1": ["--pretokenized"],
    "ctranslate2": [],
}


def attack(folder, rng, secret, canary):
    """Chooses and runs an attack that suits the folder; returns (its name, what it did)."""
    for path in [*folder.glob("*.txt"), *folder.glob("*.pieces")]:
        path.unlink()  # Translations; kformer reads none of them.
    while True:
        name = pick(rng, list(ATTACKS))
        if done := ATTACKS[name](folder, rng, secret, canary):
            return name, done


def damaged(folder, rng, secret, canary):
    seed = int(rng.integers(2**31))
    damage(folder, random.Random(seed), first=int(pick(rng, [200, 8192, 600_000])))
    return f"seed {seed}"


def pickled(folder, rng, secret, canary):
    """A pickle that makes the canary, in the place of a checkpoint's or of any file."""

    class Code:
        def __reduce__(self):
            return pick(rng, [(open, (str(canary), "w")), (os.system, (f"touch {canary}",))])

    content = pickle.dumps({"model": Code(), "opt": Code()}, protocol=2)
    checkpoints = [path for path in _files(folder) if path.suffix == ".pt"]
    path = pick(rng, checkpoints or _files(folder))
    if zipfile.is_zipfile(path) and path.suffix == ".pt" and rng.random() < 0.7:
        aside = path.with_name("aside")
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(aside, "w") as new:
            for name in old.namelist():
                new.writestr(name, content if name.endswith("data.pkl") else old.read(name))
        aside.rename(path)
    else:
        path.write_bytes(content)
    return path.name


def code(folder, rng, secret, canary):
    """Settings that are code, for readers that run them."""
    python = f"import os\nos.system('touch {canary}')\nmodel = lambda: open({str(canary)!r}, 'w')\n"
    yaml = f"a: !!python/object/apply:os.system ['touch {canary}']\n"
    names = ("model_description.py", "decoder.yml", "data.yml", "config.yml", "model.yml")
    name = pick(rng, names)
    for parent in {path.parent for path in _files(folder)}:
        (parent / name).write_text(python if name.endswith(".py") else yaml)
    return name


def elsewhere(folder, rng, secret, canary):
    """A file that is a link to the secret, or settings that name it."""
    path = pick(rng, _files(folder))
    if path.suffix in (".yml", ".yaml", ".json") and rng.random() < 0.5:
        text, name = path.read_text(encoding="utf-8"), f'"{pick(rng, [secret, "../secret.txt"])}"'
        words = [word.strip("-,'\"") for word in text.split() if "." in word]
        if words:
            word = pick(rng, words)
            path.write_text(text.replace(word, name), encoding="utf-8")
            return f"{path.name}: {word} is {name}"
    path.unlink()
    path.symlink_to(secret)
    return f"{path.name} is a link"


def archived(folder, rng, secret, canary):
    """A package with a member that leaves it."""
    content = pick(rng, _files(folder)).read_bytes()
    names = ["../outside", "/tmp/../" + str(canary).lstrip("/"), str(canary), "a/../../outside"]
    name = pick(rng, names)
    members = {path.name: path.read_bytes() for path in _files(folder)}
    shutil.rmtree(folder)
    with zipfile.ZipFile(folder, "w") as archive:
        for member, bytes_of_member in members.items():
            archive.writestr(member, bytes_of_member)
        archive.writestr(name, content)
    return name


def _files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


ATTACKS = {each.__name__: each for each in (damaged, pickled, code, elsewhere, archived)}
