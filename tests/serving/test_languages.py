"""Models of several target languages: every protocol offers them, and a batch may have them all."""

import json

import grpc
import httpx
import libretranslatepy
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils

import kformer
from kformer.export.saved_model.folder import GRAPH_FILE
from kformer.serving import engine_local, languages
from kformer.serving.interface import SignatureInfo, TensorInfo
from kformer.serving.served_translator import served_folder
from kformer.serving.settings import ModelSettings, ServerSettings
from kformer.serving.versions import NEEDED
from tests import two_languages
from tests.serving.conftest import TERMS, Here

pytestmark = [pytest.mark.any_backend, pytest.mark.heavy]

TEXTS = ["noon", "a quarter to three", "ten to six"]
PREDICT = "/v1/models/many:predict"
OUTPUTS = {"translation": "string", "score": "float32", "truncated": "bool"}


class Model:
    """Stands for `ServedModel`: a translation is the text behind its language."""

    texts_per_second = 0.0
    batches = []

    def __init__(self, folder, trust_models):
        config = {"directions": ["en-de", "de-en", "en-fr"]}
        self.metadata = {"search": {"n_best": 2}, "languages": ["de", "en", "fr"]}
        if folder.parent.name == "many":
            self.metadata["config"] = config
        names = "target_language", "text"
        inputs = tuple(TensorInfo(name, "string", (-1,), f"{name}:0") for name in names)
        outputs = [TensorInfo(name, dtype, (-1,)) for name, dtype in OUTPUTS.items()]
        n_best = [TensorInfo("translations", "string", (-1, 2))]
        self.signatures = {
            "serving_default": SignatureInfo(inputs, tuple(outputs)),
            "n_best": SignatureInfo(inputs, (*outputs, *n_best, TensorInfo("scores", "", (-1, 2)))),
        }

    def warm_up(self, max_texts): ...

    def call(self, signature, texts, codes):
        self.batches.append(list(zip(texts, codes, strict=True)))
        best = np.array([(code or b"de") + b" " + text for text, code in self.batches[-1]], object)
        zeros = np.zeros(len(texts), "float32")
        found = {"translation": best, "score": zeros, "truncated": zeros > 0}
        if signature == "n_best":
            found["translations"] = np.stack([best, best + b"!"], axis=1)
            found["scores"] = np.stack([zeros, zeros - 1], axis=1)
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a model with known directions, one without, and one that is named by its pair."""
    folder, names = tmp_path_factory.mktemp("models"), ("many", "all", "en-zh")
    for name in names:
        for file in (folder / name / "1" / each for each in (GRAPH_FILE, *NEEDED[GRAPH_FILE])):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"")
    other = folder / "other.tsv"
    other.write_text("noon\tMittag\n", encoding="utf-8")
    settings = ServerSettings(
        [ModelSettings(name, folder / name) for name in names],
        port=0,
        grpc_port=0,
        batch_wait_ms=50,
        glossaries=[f"times={TERMS}", f"words:en-de={other}", f"times:en-de={other}"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_local, "ServedModel", Model)
        server = Here(settings)
        yield server
        server.end()


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def expected(*codes, texts=TEXTS):
    return [f"{code} {text}" for code, text in zip(codes, texts, strict=True)]


def test_a_saved_model(tmp_path):
    """Its default, texts of both languages in one batch, and a document."""
    pytest.importorskip("tensorflow_text")
    from kformer.serving.served_model import ServedModel

    translator = two_languages.new_translator()
    options = {"beam_size": 2, "signatures": ["serving_default", "n_best", "attention"]}
    folder = kformer.export.export_saved_model(translator, tmp_path / "m", **options)
    served = ServedModel(folder)
    assert served.metadata["languages"] == two_languages.CODES
    served.warm_up(8)
    texts, codes = two_languages.TEXTS, ["fr", "", "de", "fr"]
    expected_texts = translator(
        texts, target_language=[code or None for code in codes], beam_size=2
    )
    arguments = [[value.encode() for value in values] for values in (texts, codes)]
    for name, signature in served.signatures.items():
        assert signature.has_languages
        found = served.call(name, *arguments)["translation"]
        assert [text.decode() for text in found] == expected_texts
    reader, arguments = kformer.export.SavedModelTranslator(folder), ("<p>noon</p>", "html")
    for code in two_languages.CODES:
        found = reader.document(*arguments, target_language=code)
        assert found == translator.document(*arguments, target_language=code, beam_size=2)


# ---- TensorFlow Serving, REST ----


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        (["fr", "en", ""], ["fr", "en", "de"]),
        ("fr", ["fr"] * 3),
        (["fr"], ["fr"] * 3),
        ({"b64": "ZnI="}, ["fr"] * 3),
    ],
)
def test_columns(client, column, codes):
    body = {"inputs": {"text": TEXTS, "target_language": column}}
    outputs = client.post(PREDICT, json=body).json()["outputs"]
    assert outputs["translation"] == expected(*codes)


def test_rows(client):
    """A row without a language has the model's own, and so has a text without a name."""
    rows = [{"text": TEXTS[0], "target_language": "fr"}, {"text": TEXTS[1]}, TEXTS[2]]
    found = client.post(PREDICT, json={"instances": rows}).json()["predictions"]
    assert [row["translation"] for row in found] == expected("fr", "de", "de")
    found = client.post(PREDICT, json={"instances": TEXTS}).json()["predictions"]
    assert [row["translation"] for row in found] == expected("de", "de", "de")


def test_metadata(client):
    found = client.get("/v1/models/many/metadata").json()["metadata"]["signature_def"]
    inputs = found["signature_def"]["n_best"]["inputs"]
    assert sorted(inputs) == ["target_language", "text"]
    assert inputs["target_language"]["dtype"] == "DT_STRING"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text": TEXTS, "target_language": "es"}, "'es' is unknown; choose one of de, en, fr."),
        ({"text": TEXTS, "target_language": ["de", "en"]}, "2 target languages for 3 texts"),
        ({"text": TEXTS, "target_language": []}, "0 target languages for 3 texts"),
        ({"text": TEXTS, "target_language": [1, 2, 3]}, "must be a string"),
        ({"target_language": "de"}, "has the input text, the optional target_language and no oth"),
        ({"text": TEXTS, "source_language": "de"}, "the optional target_language and no other"),
    ],
)
def test_errors_in_rest(client, inputs, message):
    answered = client.post(PREDICT, json={"inputs": inputs})
    assert answered.status_code == 400 and message in answered.json()["error"]


def test_an_unknown_language_spoils_no_other_request(server):
    """Texts of several clients are in one batch, and the one with the mistake never is."""
    import asyncio

    async def ask():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            bodies = [
                {"inputs": {"text": [f"text {i}"], "target_language": code}}
                for i, code in enumerate(["fr", "es", "en", "\ud800", "de", ""])
            ]
            contents = [json.dumps(body) for body in bodies]
            return await asyncio.gather(*(client.post(PREDICT, content=one) for one in contents))

    Model.batches.clear()
    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400, 200, 200]
    found = [answers[i].json()["outputs"]["translation"] for i in (0, 2, 4, 5)]
    assert found == [["fr text 0"], ["en text 2"], ["de text 4"], ["de text 5"]]
    assert max(map(len, Model.batches)) > 1
    assert {code for batch in Model.batches for _, code in batch} == {b"fr", b"en", b"de", b""}


# ---- TensorFlow Serving, gRPC ----


def test_grpc(server):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    def ask(**inputs):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "many"
        for name, values in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
        response = stub.Predict(request, timeout=60)
        return [text.decode() for text in tf.make_ndarray(response.outputs["translation"])]

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        codes = ["fr", "", "en"]
        assert ask(text=TEXTS, target_language=codes) == expected("fr", "de", "en")
        assert ask(text=TEXTS, target_language=["fr"]) == expected("fr", "fr", "fr")
        assert ask(text=TEXTS) == expected("de", "de", "de")
        for inputs in ({"target_language": ["es"]}, {"language": ["de"]}):
            with pytest.raises(grpc.RpcError) as error:
                ask(text=TEXTS, **inputs)
            assert error.value.code().name == "INVALID_ARGUMENT" and error.value.details()


# ---- Open Inference ----


@pytest.mark.parametrize("is_binary", [True, False])
def test_open_inference(server, is_binary):
    def tensor(name, values):
        tensor = triton.InferInput(name, [len(values)], "BYTES")
        tensor.set_data_from_numpy(np.array(values, object), binary_data=is_binary)
        return tensor

    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as inference:
        inputs = inference.get_model_metadata("many")["inputs"]
        assert [one["name"] for one in inputs] == ["target_language", "text"]

        def ask(*inputs):
            outputs = [triton.InferRequestedOutput("translation", binary_data=is_binary)]
            found = inference.infer("many", list(inputs), outputs=outputs).as_numpy("translation")
            return [text.decode() if isinstance(text, bytes) else text for text in found]

        text = tensor("text", TEXTS)
        assert ask(text) == expected("de", "de", "de")
        for codes in (["fr", "en", "fr"], ["fr"]):
            found = expected(*codes) if len(codes) == 3 else expected("fr", "fr", "fr")
            assert ask(text, tensor("target_language", codes)) == found
            assert ask(tensor("target_language", codes), text) == found
        for others in ([tensor("target_language", ["es"])], [text], [tensor("language", ["de"])]):
            with pytest.raises(tritonclient.utils.InferenceServerException) as error:
                ask(text, *others)
            assert error.value.status() == "400" and error.value.message()


# ---- LibreTranslate ----


def test_libretranslate(server, client):
    api = libretranslatepy.LibreTranslateAPI(server.url)
    found = {one["code"]: one["targets"] for one in api.languages()}
    # Those of `many` by its directions, all of `all`, and the name of `en-zh`.
    assert found == {
        "de": ["en", "fr"],
        "en": ["de", "fr", "zh"],
        "fr": ["de", "en"],
        "zh": [],
    }
    assert api.translate("It is noon.", "en", "de") == "de It is noon."
    assert api.translate("It is noon.", "fr", "en") == "en It is noon."
    # The model has no such language: its name is the administrator's word for it.
    assert api.translate("It is noon.", "en", "zh") == "de It is noon."
    body = {"q": TEXTS, "source": "en", "target": "fr", "alternatives": 1}
    found = client.post("/translate", json=body).json()
    assert found["translatedText"] == expected("fr", "fr", "fr")
    assert found["alternatives"] == [[f"{text}!"] for text in expected("fr", "fr", "fr")]
    body = {"q": "<p>It is noon.</p>", "source": "en", "target": "fr", "format": "html"}
    assert client.post("/translate", json=body).json()["translatedText"] == "<p>fr It is noon.</p>"
    answered = client.post("/translate", json={"q": "noon", "source": "zh", "target": "en"})
    assert answered.status_code == 400
    expected_error = "There is no model from 'zh' to 'en', but en to de, de to en, en to fr, "
    assert answered.json()["error"].startswith(expected_error)


def test_glossaries_by_pair(client):
    def ask(name, target):
        body = {"q": "noon", "source": "en", "target": target, "glossary": name}
        answered = client.post("/translate", json=body)
        return answered.json().get("translatedText", answered.json().get("error"))

    assert ask("times", "fr") == "中午"
    assert ask("times", "de") == ask("words", "de") == "Mittag"
    assert ask("words", "fr") == "There is no glossary of that name for en-fr, but times."


# ---- the page ----


def test_the_page(client):
    models = client.get("/page/models").json()["models"]
    pairs = [(one["name"], *one["languages"]) for one in models]
    assert pairs[:3] == [("many", "en", "de"), ("many", "de", "en"), ("many", "en", "fr")]
    assert len([name for name, *_ in pairs if name == "all"]) == 6
    assert pairs[-1] == ("en-zh", "en", "zh")
    assert [one["glossaries"] for one in models[:3]] == [["times", "words"], ["times"], ["times"]]
    examples = [one["example"] for one in models[:3]]
    assert examples == [languages.example_for(code) for code in ("en", "de", "en")]

    def ask(**fields):
        return client.post("/page/translate", json={"model": "many", "text": "noon", **fields})

    found = ask(languages=["en", "fr"]).json()
    assert [one["text"] for one in found["lines"][0]["hypotheses"]] == ["fr noon", "fr noon!"]
    assert found["model"]["target"]["lang"] == "fr"
    assert ask().json()["lines"][0]["hypotheses"][0]["text"] == "de noon"
    found = ask(languages=["en", "de"], glossary="words", text="It is noon").json()
    assert found["lines"][0]["hypotheses"][0]["text"] == "de It is Mittag"
    for wrong in (["fr", "en"], "en-fr", [["en"], "fr"]):
        answered = ask(languages=wrong)
        assert answered.status_code == 400 and "a pair of the model many" in answered.text


def test_a_source_language_that_the_export_fixed_is_that_of_each_pair():
    metadata = {"languages": ["de", "en", "fr"], "source_language": "en"}
    assert languages.pairs_of(metadata) == (("en", "de"), ("en", "fr"))
    assert len(languages.pairs_of({"languages": ["de", "en", "fr"], "source_language": None})) == 6
    metadata["config"] = {"directions": ["de-en", "en-de"]}
    assert languages.pairs_of(metadata) == (("en", "de"),)


def test_a_folder_for_ctranslate2_keeps_its_source_language(tmp_path):
    pytest.importorskip("ctranslate2")
    trained = two_languages.new_translator()
    codes = trained.tokenizer.languages
    tokenizer = kformer.Tokenizer.from_sentencepiece(
        trained.tokenizer.sentencepiece_model(),
        control_ids=codes.values(),
        languages=codes,
        language_places={"source": ["source_prefix"], "target": ["target_prefix"]},
    ).for_languages("de", "fr")
    translator = kformer.Translator(trained.model, tokenizer)
    folder = translator.export(tmp_path / "folder", format="ctranslate2")
    assert languages.pairs_of(served_folder(folder).metadata) == (("de", "fr"),)
    texts = two_languages.TEXTS
    translator.token_lists = kformer.data.TokenLists.build(tokenizer, texts, texts, 5, 5)
    folder = translator.export(tmp_path / "lists", format="ctranslate2")
    assert served_folder(folder).metadata["languages"] == []  # The lists are of one language.
