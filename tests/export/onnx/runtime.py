"""A greedy search over the ONNX graphs, by ONNX Runtime and NumPy alone."""

import pathlib

import numpy as np
import onnxruntime

from kformer.export.onnx.export import METADATA_FILE
from kformer.utils.files import read_json


class OnnxModel:
    """A folder of `export_onnx` in ONNX Runtime.

    What is past and present in the decoder are dicts, by the names behind `past_` and `present_`.

    Args:
        folder: path.

    Attributes:
        metadata: dict of the folder's `kformer.json`.
        sessions: dict of "encoder" and "decoder_step" to `onnxruntime.InferenceSession`.
    """

    def __init__(self, folder):
        self.metadata = read_json(pathlib.Path(folder) / METADATA_FILE)
        self.sessions = {
            name: onnxruntime.InferenceSession(
                pathlib.Path(folder) / self.metadata[name]["file"],
                providers=["CPUExecutionProvider"],
            )
            for name in ("encoder", "decoder_step")
        }

    def encode(self, source_ids):
        """Returns all outputs of the encoder by name.

        Args:
            source_ids: int array `[B, S]`.
        """
        return self._run("encoder", {"source_ids": source_ids.astype("int64")})

    def empty_past(self, rows):
        """Returns the past at the start of a search."""
        inputs = [part["name"] for part in self.metadata["decoder_step"]["inputs"]]
        layers = range(self.metadata["num_decoder_layers"])
        if "past_length" in inputs:
            state = np.zeros((rows, self.metadata["hidden_dim"]), "float32")
            return {"length": np.array(0), **{f"state_{i}": state for i in layers}}
        shape = (rows, self.metadata["num_heads"], 0, self.metadata["head_dim"])
        names = [f"{kind}_{i}" for i in layers for kind in ("key", "value")]
        return {name: np.zeros(shape, self.metadata["dtype"]) for name in names}

    def step(self, target_ids, encoder_outputs, past):
        """Computes the logits of the tokens that follow.

        Args:
            target_ids: int array `[B, T]`.
            encoder_outputs: dict, from `encode`.
            past: dict, from `empty_past` or `step`.

        Returns:
            Logits `[B, T, V]`, and the present, which is the past of the next step.
        """
        known = {
            **encoder_outputs,
            **{f"past_{name}": value for name, value in past.items()},
            "target_ids": target_ids.astype("int64"),
        }
        parts = self.metadata["decoder_step"]["inputs"]
        outputs = self._run("decoder_step", {part["name"]: known[part["name"]] for part in parts})
        logits = outputs.pop("logits")
        return logits, {name.removeprefix("present_"): outputs[name] for name in outputs}

    def greedy(self, source_ids, steps):
        """Searches greedily until all rows have ended.

        Args:
            source_ids: int array `[B, S]`.
            steps: int. The most tokens, the end token included.

        Returns:
            int array `[B, steps]`: ids, the end token, padding.
        """
        special, encoder_outputs = self.metadata["special_ids"], self.encode(source_ids)
        rows, past = len(source_ids), self.empty_past(len(source_ids))
        found, done = np.full((rows, steps), special["pad"]), np.zeros(rows, bool)
        prefix = self.metadata["search"]["prefix_ids"]
        target_ids = np.tile([special["start"], *prefix], (rows, 1))
        for i in range(steps):
            logits, past = self.step(target_ids, encoder_outputs, past)
            logits[..., self.metadata["forbidden_ids"]] = -np.inf
            ids = np.where(done, special["pad"], logits[:, -1].argmax(-1))
            found[:, i] = ids
            done |= ids == special["end"]
            if done.all():
                break
            target_ids = ids[:, None]
        return found

    def _run(self, name, inputs):
        names = [part["name"] for part in self.metadata[name]["outputs"]]
        return dict(zip(names, self.sessions[name].run(names, inputs), strict=True))
