"""200 damaged or hostile variants of each of Marian's formats."""

import gzip
import shutil
import zipfile

import pytest

from kformer.interop.toolkits.model import ToolkitOptions
from tests.interop.toolkits.fixtures import DATA
from tests.interop.toolkits.hostile import check_variants, damage

pytestmark = [pytest.mark.any_backend, pytest.mark.heavy]


def zipped(folder, rng):
    """Damages an archive of the folder, or a name in it."""
    path = folder.parent / f"{folder.name}.zip"
    with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for each in sorted(folder.iterdir()):
            name = each.name
            if rng.random() < 0.05:
                name = rng.choice(("../", "/tmp/", "C:\\", "a/../../", "x\0", "")) + name
            file.write(each, name)
        if rng.random() < 0.1:
            file.writestr("zeros", bytes(40 << 20), zipfile.ZIP_DEFLATED)
        if rng.random() < 0.1:
            link = zipfile.ZipInfo("link")
            link.external_attr = 0o120777 << 16
            file.writestr(link, "/etc/passwd")
    if rng.random() < 0.7:
        shutil.rmtree(folder)
        folder.mkdir()
        path.rename(folder / "opus.zip")
        damage(folder, rng, first=rng.choice((200, 4000, 600_000)))
        path = folder / "opus.zip"
    return path


def packed(folder, rng):
    """Damages a folder as Firefox has it."""
    path = folder / "model.intgemm8.bin"
    if rng.random() < 0.5:
        damage(folder, rng)
    if path.is_file() and not path.is_symlink():
        (folder / "model.bin.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path.unlink()
        damage(folder, rng, first=rng.choice((40, 60_000)))


@pytest.mark.parametrize("name", ["npz", "bin", "zip", "bin.gz"])
def test_damaged_variants_are_refused_in_one_sentence(name, tmp_path):
    source = tmp_path / "source"
    options, into = ToolkitOptions(), damage
    if name in ("npz", "zip"):
        shutil.copytree(DATA / "marian-opusmt", source)
        for path in [*source.glob("*.txt"), *source.glob("*.pieces")]:
            path.unlink()
        into = zipped if name == "zip" else damage
        # A small model cuts texts in less time.
        shutil.copy(source / "target.spm", source / "source.spm")
    else:
        source.mkdir()
        fixture, file = ("marian-prenorm", "model.bin")
        if name == "bin.gz":
            fixture, file, into = "marian-ssru", "model.intgemm8.bin", packed
        shutil.copy(DATA / fixture / file, source)
        vocabulary = str(DATA / "marian-prenorm" / "vocab.spm")
        options = ToolkitOptions(source_vocabulary=vocabulary)
    refused = check_variants(source, tmp_path, seed=1, options=options, into=into)
    assert refused > 60
