"""Engines for the tests of the page: one that computes, and one that is told what to answer."""

import asyncio

import numpy as np

from kformer.serving import interface
from kformer.serving.interface import ModelVersion, Reply, SignatureInfo, TensorInfo


def version_of(name, outputs, **fields):
    """An available version whose signatures have outputs of these names."""
    signatures = {
        signature: SignatureInfo((), tuple(TensorInfo(output, "", ()) for output in names))
        for signature, names in outputs.items()
    }
    return ModelVersion(
        name, fields.pop("version", 1), interface.AVAILABLE, signatures=signatures, **fields
    )


class TestEngine(interface.Engine):
    """What the engines of the tests share.

    `before` is a coroutine function that sees each request first: it may wait, or raise.
    """

    __test__ = False

    def __init__(self, versions):
        self.listed = versions
        self.requests = []
        self.dropped = 0
        self.before = None

    def models(self):
        return {version.name: [version] for version in self.listed}

    async def run(self, request):
        self.requests.append(request)
        version = self.metadata(request.model, request.version)
        if request.signature not in version.signatures:
            raise interface.UnknownSignature("no such signature")
        try:
            if self.before is not None:
                await self.before(request)
            outputs = await asyncio.to_thread(self.compute, request)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        return Reply(outputs, version.version)

    def compute(self, request):
        raise NotImplementedError

    async def start(self): ...

    async def stats(self):
        return []

    async def drain(self, seconds): ...

    async def close(self): ...


class SavedModelEngine(TestEngine):
    """Computes with a `SavedModelTranslator`."""

    def __init__(self, translator, name, **fields):
        self.translator = translator
        self.signatures = translator._module.signatures
        outputs = {name: list(one.structured_outputs) for name, one in self.signatures.items()}
        super().__init__([version_of(name, outputs, **fields)])

    def compute(self, request):
        import tensorflow as tf

        outputs = self.signatures[request.signature](text=tf.constant(request.texts))
        return {name: value.numpy() for name, value in outputs.items()}


class ToldEngine(TestEngine):
    """Answers each text with what it was told, else with the text in capital letters.

    Args:
        versions: list of `ModelVersion`.
        answers: dict of text to a list of (translation, score), and to the tokens of both sides.
    """

    def __init__(self, versions, answers=None):
        super().__init__(versions)
        self.answers = answers or {}

    def compute(self, request):
        texts = [text.decode("utf-8") for text in request.texts]
        if request.signature == "attention":
            return self.attention(texts[0])
        rows = [self.answers.get(text, {}).get("best") or [(text.upper(), -1.0)] for text in texts]
        most = max(len(row) for row in rows)
        rows = [row + [("", -1e9)] * (most - len(row)) for row in rows]
        best = np.array([[text.encode("utf-8") for text, _ in row] for row in rows], object)
        scores = np.array([[score for _, score in row] for row in rows], "float32")
        found = {"translation": best[:, 0], "score": scores[:, 0]}
        found["truncated"] = np.array([len(text) > 1000 for text in texts])
        if request.signature == "n_best":
            found.update(translations=best, scores=scores)
        return found

    def attention(self, text):
        """Tokens that look at the token of their own index, more or less by layer and head."""
        words = [f"\u2581{word}" for word in text.split()[:200]]
        told = self.answers.get(text, {})
        source = [*told.get("source", words), "</s>"]
        target = [*told.get("target", [word.upper() for word in words]), "</s>"]
        rows, columns = np.arange(len(target)), np.arange(len(source))
        at = rows[:, None] * (len(source) - 1) / max(1, len(target) - 1)
        layers, heads = told.get("shape", (2, 2))
        sharp = np.linspace(0.3, 3, layers * heads).reshape(layers, heads, 1, 1)
        weights = np.exp(-np.abs(at - columns) * sharp)
        weights = weights / weights.sum(-1, keepdims=True)
        tokens = {"source_tokens": source, "target_tokens": target}
        found = {
            name: np.array([[token.encode("utf-8") for token in side]], object)
            for name, side in tokens.items()
        }
        return {**found, "attention": weights[None].astype("float32")}
