"""The folder for a browser: what it holds, and what its JavaScript returns in Node."""

import base64
import hashlib
import json
import pathlib
import re
import shutil
import socket
import subprocess

import numpy as np
import pytest

import kformer
from kformer.export.onnx.export import describe_text
from kformer.export.web import export as web_export
from kformer.export.web import export_web
from kformer.interop.tokenizers import read_tokenizer
from kformer.text.sentencepiece_training import SPECIAL_IDS
from kformer.text.text_bound import source_rows
from tests.interop.tokenizer_folders import marian, mbart, nllb, t5, trained, trained_models
from tests.prepared import add_browser_runtime
from tests.text_samples import tricky_texts

pytest.importorskip("onnx")

ROOT = pathlib.Path(__file__).resolve().parents[3]
FROZEN_RUN = ROOT / "tests" / "frozen_run"
FILES = ROOT / "kformer" / "export" / "web" / "files"
LIVE = ROOT / "docs" / "_build" / "html" / "live"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")

IDS = """
import fs from "node:fs";
const [library, path] = process.argv.slice(2);
const { Translator } = await import(library + "/translator.mjs");
const { Vocabulary } = await import(library + "/vocabulary.mjs");
const read = (name) => new Uint8Array(fs.readFileSync(name));
const { texts, cases } = JSON.parse(fs.readFileSync(path));
const results = cases.map(({ text, folder, language, ids }) => {
  const sides = Object.entries(text.sides).map(([name, side]) => {
    const pieces = side.pieces && JSON.parse(fs.readFileSync(`${folder}/${side.pieces}`));
    return [name, new Vocabulary(text, name, read(`${folder}/${side.model}`), pieces)];
  });
  const metadata = { text, languages: { "": language }, max_length: 40 };
  const translator = new Translator(metadata, Object.fromEntries(sides));
  const rows = texts.map((each) => translator.sourceIds(each));
  return [rows, ids.map((row) => translator.vocabularies.target.decode(row))];
});
console.log(JSON.stringify(results));
"""

REFUSALS = """
const { Translator } = await import(process.argv[2] + "/translator.mjs");
const languages = { "": { prefix_ids: [] }, de: { prefix_ids: [] } };
const translator = new Translator({ languages, search: { beam_size: 4, max_length: 9 } }, {});
const search = { beam_size: 4, max_length: 9, shortlist: [3] };
const metadata = { languages, search, text: { unknown_id: 1 } };
const limited = new Translator(metadata, { target: { encode: () => [5] } });
const read = async (name) => { throw new Error(`no ${name}`); };
const attempts = [
  () => translator.translate("text"),
  () => translator.translate(["a", undefined]),
  () => translator.translate(["a"], { prefixes: [null] }),
  () => translator.translate(["a"], { hypotheses: 1.5 }),
  () => translator.translate(["a"], { targetLanguage: "constructor" }),
  () => limited.translate(["a"], { prefixes: ["b"] }),
  () => Translator.load("no model", { runtime: {} }),
  () => Translator.load(new URL("file:///nothing/model/"), { runtime: {} }),
  () => Translator.load("model/", { runtime: {}, read }),
];
const messages = [];
for (const attempt of attempts) {
  try { await attempt(); } catch ({ name, message }) { messages.push(`${name}: ${message}`); }
}
await new Promise((resolve) => setTimeout(resolve, 100));
console.log(JSON.stringify(messages));
"""
SEARCH = """
import fs from "node:fs";
const { Translator } = await import("./web/kformer/translator.mjs");
const translator = await Translator.load("web/model");
const results = await translator.translate(JSON.parse(fs.readFileSync(0)), { hypotheses: 2 });
console.log(JSON.stringify(results));
"""


def in_node(folder, code, *arguments, **options):
    (folder / "code.mjs").write_text(code)
    # Without the optimizing compiler, which takes longer than all that it compiles here.
    command = ["node", "--liftoff-only", folder / "code.mjs", *arguments]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", **options
    )
    assert not result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def runtime(tmp_path):
    return add_browser_runtime(tmp_path)


def tokenizers(folder):
    models = trained_models()
    for name, write in (("marian", marian), ("nllb", nllb), ("mbart", mbart), ("t5", t5)):
        yield read_tokenizer(folder / name, write(folder / name, models))
    texts = [pair.source for pair in kformer.examples.generate_pairs(400, seed=1)]
    train = kformer.Tokenizer.train
    yield kformer.Tokenizer.load(FROZEN_RUN / "tokenizer")
    yield train(texts=texts, vocabulary_size=340, model_type="unigram", languages=["de", "fr"])
    yield train(texts=texts, vocabulary_size=90, normalization="identity", byte_fallback=False)
    model = train(
        texts=texts, vocabulary_size=90, byte_fallback=False, model_type="unigram"
    ).sentencepiece_model()
    added = {"raw": ["half", "<well-known>"], "normalized": ["at"]}
    added |= {"lstrip": ["half"], "rstrip": ["at"]}
    own = kformer.Tokenizer.from_sentencepiece(model)
    pieces = [own.id_to_token(i) for i in range(own.vocabulary_size)]
    yield kformer.Tokenizer.from_sentencepiece(
        model,
        vocabulary=[*pieces, "half", "at", "é", "<well-known>"],
        **{"pad_id": 0, "unknown_id": 1, "start_id": 2, "end_id": 3},
        added_words={**added, "keeps_spaces": True},
    )
    # Their scores are no multiples of a power of two: rounding decides where sums are equal.
    for symbols in ([], ["00", "1", "11", "éé"]):
        model = raw_model(texts, "unigram", user_defined_symbols=symbols)
        yield kformer.Tokenizer.from_sentencepiece(model)


def raw_model(texts, model_type, **settings):
    return trained(model_type, texts, vocabulary_size=90, **SPECIAL_IDS, **settings)


@needs_node
@pytest.mark.any_backend
def test_ids_and_texts_equal_the_tokenizers(tmp_path):
    texts = tricky_texts(150, bad_bytes=False) + [
        " half  past at é",
        "a <well-known> sign",
        *(f"{i},000{i}00 1{i}11 pééé{i}0000" for i in range(0, 3000, 37)),
        ">>fr<< one",
        ">>x<< 1",
        ">>fra<< one",
        "eng_Latn",
        "<mask> a",
        "<extra_id_1>",
        "",
    ]
    texts = [text if isinstance(text, str) else text.decode("utf-8", "replace") for text in texts]
    texts += ["lone \ud800 sign", "noon " * 60, "\ufeffé\u0301" * 70]
    cases, expected = [], []
    for number, tokenizer in enumerate(tokenizers(tmp_path)):
        folder = tmp_path / str(number)
        tokenizer.save(folder)
        ids = [list(range(i, tokenizer.target_vocabulary_size + 2, 7)) for i in range(7)]
        language = {
            "source_prefix": tokenizer.source_prefix,
            "source_suffix": tokenizer.source_suffix,
        }
        text = describe_text(tokenizer, 200, folder)
        cases.append({"text": text, "folder": str(folder), "language": language, "ids": ids})
        rows, truncated = source_rows(tokenizer, texts, 40, 200)
        rows = [{"ids": ids, "truncated": cut} for ids, cut in zip(rows, truncated, strict=True)]
        expected.append([rows, tokenizer.detokenize(ids)])
    (tmp_path / "cases.json").write_text(json.dumps({"texts": texts, "cases": cases}))
    assert in_node(tmp_path, IDS, FILES / "kformer", tmp_path / "cases.json") == expected


@needs_node
@pytest.mark.any_backend
def test_what_the_library_refuses(tmp_path):
    *messages, by_path, by_address, by_reader = in_node(tmp_path, REFUSALS, FILES / "kformer")
    assert messages == [
        "TypeError: texts must be an array of strings, but is of the type string.",
        "TypeError: texts[1] is undefined, but must be a string.",
        "TypeError: prefixes[0] is null, but must be a string.",
        "RangeError: hypotheses is 1.5, but must be a whole number from 1 to 4, the width of the "
        "beam.",
        'RangeError: The language "constructor" is unknown; there are de.',
        'RangeError: The vocabulary, or its shortlist, cannot write the prefix "b".',
    ]
    for path, message in ((tmp_path / "no model", by_path), ("/nothing/model", by_address)):
        assert re.search(f"ENOENT: no such file or directory, open '{path}/[a-z]", message)
    assert re.fullmatch("Error: no (kformer.json|search.onnx|weights.bin)", by_reader)


@needs_node
@pytest.mark.skipif(not LIVE.exists(), reason="python -m docs made no live example, without npm")
@pytest.mark.any_backend
def test_node_translates_as_python_does(tmp_path, runtime):
    for name in web_export.RUNTIME_FILES:
        shutil.copyfile(LIVE / "ort" / name, runtime / "dist" / name)
    translator = kformer.Translator.load(FROZEN_RUN)
    export_web(translator, tmp_path / "web", runtime=runtime, beam_size=4)
    expected = json.loads((FROZEN_RUN / "expected.json").read_text(encoding="utf-8"))
    results = in_node(tmp_path, SEARCH, input=json.dumps(expected["texts"]))
    assert [each["translation"] for each in results] == expected["beam_4"]
    scores = [each["score"] for each in results]
    np.testing.assert_allclose(scores, expected["scores"], atol=1e-3)
    [result] = translator.translate(expected["texts"][:1], beam_size=4, n_best=2)
    translations = [each["translation"] for each in results[0]["hypotheses"]]
    assert translations == [each.text for each in result.hypotheses]


@pytest.mark.any_backend
def test_the_folder_has_all_that_it_needs(tmp_path, runtime):
    translator = kformer.Translator.load(FROZEN_RUN)
    folder = export_web(translator, tmp_path / "web", runtime=runtime, dtype="int8")
    assert {path.name for path in (folder / "ort").iterdir()} == {
        *web_export.RUNTIME_FILES,
        "LICENSE",
    }
    for name in ("index.html", *(f"{stem}.mjs" for stem in ("app", "worker"))):
        text = (folder / name).read_text(encoding="utf-8")
        assert "http:" not in text and "https:" not in text
        for link in re.findall(r'(?:src|href|from|URL\()[=( ]*"([^"]+)"', text):
            assert link.startswith("data:") or (folder / link).exists(), link
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "unsafe-inline" not in page
    # What stands there until the module runs, which no browser does from `file://`.
    [status] = re.findall(r'(?s)role="status">(.*?)</p>', page)
    assert "from a server alone" in status and "双击" in status
    assert (folder / "model" / "search.onnx").is_file()


@pytest.mark.any_backend
def test_a_single_file_holds_what_the_folder_holds(tmp_path, runtime):
    translator = kformer.Translator.load(FROZEN_RUN)
    folder = export_web(translator, tmp_path / "web", runtime=runtime)
    path = tmp_path / "new" / "web.html"
    assert export_web(translator, path, runtime=runtime, single_file=True) == path
    page = path.read_text(encoding="utf-8")
    files = dict(re.findall(r'data-file="([^"]+)">([^<]+)<', page))
    assert "model/weights.bin" in files and "kformer/translator.mjs" in files
    for name, content in files.items():
        assert base64.b64decode(content) == (folder / name).read_bytes()
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert 'role="status"></p>' in page
    assert "onnxruntime-web inside:\nMIT License" in page
    for part in re.findall(
        r"<style>(.+?)</style>|<script type=.module.>(.+?)</script>", page, re.S
    ):
        digest = hashlib.sha256("".join(part).encode()).digest()
        assert f"'sha256-{base64.b64encode(digest).decode()}'" in page


@pytest.mark.any_backend
def test_refusals(tmp_path, runtime, monkeypatch):
    translator = kformer.Translator.load(FROZEN_RUN)
    with pytest.raises(ValueError, match="does not sample"):
        export_web(translator, tmp_path / "web", runtime=runtime, sampling=True)
    texts = [pair.source for pair in kformer.examples.generate_pairs(400, seed=1)]
    words = kformer.Tokenizer.from_sentencepiece(raw_model(texts, "word"))
    model = kformer.Transformer.from_preset("tiny", words.vocabulary_size)
    with pytest.raises(ValueError, match="of type word"):
        export_web(kformer.Translator(model, words), tmp_path / "web", runtime=runtime)
    with pytest.raises(ValueError, match="onnxruntime-web, version"):
        export_web(translator, tmp_path / "web", runtime=tmp_path / "nothing")
    (runtime / "package.json").write_text('{"version": "1.29.1"}')
    with pytest.raises(ValueError, match="has version 1.29.1: .* takes .*, version 1.30.0"):
        export_web(translator, tmp_path / "web", runtime=runtime)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="npm, which is missing: give the folder"):
        export_web(translator, tmp_path / "web")
    assert not (tmp_path / "web").exists()


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
@pytest.mark.any_backend
@pytest.mark.parametrize("is_open", [False, True])
def test_what_keeps_npm_from_the_runtime(tmp_path, monkeypatch, is_open):
    """A port where nothing listens, and one that never answers."""
    translator = kformer.Translator.load(FROZEN_RUN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_open:
            server.close()
        monkeypatch.setattr(web_export, "_SECONDS", 2 if is_open else 60)
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
        reason = "no answer within 2 seconds" if is_open else f"ECONNREFUSED 127.0.0.1:{port}"
        with pytest.raises(ValueError, match=f"npm cannot fetch .*{reason}.*: give the folder"):
            export_web(translator, tmp_path / "web")
