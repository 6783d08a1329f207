"""The peers of benchmarks/training.py and benchmarks/quality.py.

Speed: `open_system` builds kformer or a peer (KerasHub's layers, `torch.nn.Transformer`, Hugging
Face's Marian), all alike. It has `train(dataset, first, count)`, which trains `count` steps of a
data set from step `first` on, and returns a loss and the seconds.

Quality: `Peer` trains the `torch.nn.Transformer` for some seconds, in a process of its own
(`python benchmarks/peers.py JOB RESULT`), and searches with it. It has norms before the sub-layers,
one table for both embeddings and the projection, sinusoidal positions, and the tokenizer, batches,
sizes, label smoothing and clipping of a run of kformer. Adam (0.9, 0.98); the rate rises over the
first fifth of the time, falls with its inverse square root, and to zero over the last quarter. What
is validated and scored is the average of the weights, as kformer has it.

`train_joey` trains Joey NMT by its own code, in an environment of its own. The configuration is its
published one for IWSLT14 German-English (`transformer_iwslt14_deen_bpe`: Adam (0.9, 0.999), label
smoothing 0.1, Xavier, tied tables, beam 5, alpha 1.0) with three differences. The rate rises over
the first fifth of the updates and falls with their root, since the published `plateau` ends in a
TypeError with today's PyTorch. Sizes, tokens per batch and tokenizer are those of a run of kformer,
unless the published sizes are asked for. And validations choose a checkpoint by perplexity, without
the search, which would take longer than the training.
"""

import copy
import datetime
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import read, write  # noqa: E402

LABEL_SMOOTHING, CLIP_NORM, LONGEST = 0.1, 1.0, 256
ADAM = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
RATE = 5e-4


def open_system(name, variants, config, vocabulary_size, pad_id, device):
    """A system by its name and variants (`tuned`, `medium`, `jit`, `packed`)."""
    if "medium" in variants and name == "kformer":
        from kformer.training import configure_machine

        configure_machine("medium")
    elif "medium" in variants:
        import torch

        torch.set_float32_matmul_precision("medium")
    if name in ("torch", "marian"):
        if device == "gpu":
            check_gpu("torch")
        build = {"torch": torch_model, "marian": marian_model}[name]
        return TorchLoop(
            build(config, vocabulary_size, pad_id), pad_id, "tuned" in variants, device
        )
    import keras

    if device == "gpu":
        check_gpu(keras.backend.backend())
        keras.config.set_dtype_policy("mixed_bfloat16")
    build = {"kformer": kformer_model, "keras_hub": keras_hub_model}[name]
    return KerasFit(build(config, vocabulary_size, pad_id, "tuned" in variants, "jit" in variants))


def check_gpu(backend):
    """Ends the process if a backend finds no GPU."""
    if backend == "jax":
        import jax

        found = any(device.platform == "gpu" for device in jax.devices())
    else:
        import torch

        found = backend == "torch" and torch.cuda.is_available()
    if not found:
        raise SystemExit(
            f"There is no GPU that {backend} can use: run with --device cpu, or install its build "
            "for GPUs."
        )


def gpu_peak():
    """Peak bytes of this process on the GPU; PyTorch's peers run under Keras's torch backend."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    import torch

    return torch.cuda.max_memory_allocated()


class KerasFit:
    """`fit` of a compiled Keras model."""

    def __init__(self, model):
        self.model = model

    def train(self, dataset, first, count):
        import keras

        class Clock(keras.callbacks.Callback):
            """Times an epoch. At its end Keras reads the metrics, so all steps have finished."""

            def on_epoch_begin(self, epoch, logs=None):
                self.begin = time.perf_counter()

            def on_epoch_end(self, epoch, logs=None):
                self.seconds = time.perf_counter() - self.begin

        clock = Clock()
        options = {"steps_per_epoch": count, "callbacks": [clock], "verbose": 0, "shuffle": False}
        losses = self.model.fit(dataset.from_step(first), **options).history["loss"]
        return losses[-1], clock.seconds


def kformer_model(config, vocabulary_size, pad_id, tuned, jit):
    """Recipe as in `kformer train`; norms and positions as the peers have them."""
    import kformer
    from kformer.training import paper_recipe

    architecture = {**config, "normalize_first": True, "position_encoding": "sinusoidal"}
    model = kformer.Transformer(vocabulary_size, **architecture, pad_id=pad_id, max_length=LONGEST)
    options = {"jit_compile": True} if jit else {}
    model.compile(
        **paper_recipe(model, label_smoothing=LABEL_SMOOTHING, clip_norm=CLIP_NORM), **options
    )
    return model


def keras_hub_model(config, vocabulary_size, pad_id, tuned, jit):
    """The layers of KerasHub, with one table for both embeddings and the projection."""
    import keras
    import keras_hub

    import kformer

    hidden, rate = config["hidden_dim"], config["dropout"]
    initializer = keras.initializers.RandomNormal(stddev=hidden**-0.5)
    embedding = keras_hub.layers.TokenAndPositionEmbedding(
        vocabulary_size, LONGEST, hidden, embeddings_initializer=initializer
    )
    sizes = {
        "intermediate_dim": config["intermediate_dim"],
        "num_heads": config["num_heads"],
        "dropout": rate,
        "normalize_first": True,
    }
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    mask = keras.ops.not_equal(source, pad_id)
    layers = []
    x = keras.layers.Dropout(rate)(embedding(source))
    for _ in range(config["num_encoder_layers"]):
        layers.append(keras_hub.layers.TransformerEncoder(**sizes))
        x = layers[-1](x, padding_mask=mask)
    x = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    y = keras.layers.Dropout(rate)(embedding(target))
    for _ in range(config["num_decoder_layers"]):
        layers.append(keras_hub.layers.TransformerDecoder(**sizes))
        y = layers[-1](y, x, encoder_padding_mask=mask)
    y = keras.layers.LayerNormalization(epsilon=1e-5)(y)
    model = keras.Model(
        {"source_ids": source, "target_ids": target}, embedding.token_embedding(y, reverse=True)
    )
    if tuned:
        # The layers have no option for their dropout on the attention probabilities.
        for attention in (part for layer in layers for part in layer._flatten_layers()):
            if isinstance(attention, keras.layers.MultiHeadAttention):
                attention._dropout = 0.0
        loss = kformer.MaskedCrossentropy(label_smoothing=LABEL_SMOOTHING, pad_id=pad_id)
        jit_compile = jit or keras.backend.backend() == "jax"
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=pad_id)
        jit_compile = "auto"
    optimizer = keras.optimizers.Adam(RATE, **ADAM, global_clipnorm=CLIP_NORM)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    return model


class TorchLoop:
    """The loop that PyTorch's users write.

    Args:
        model: a module that takes source and target ids and returns the decoder's output
            `[B, T, D]`; `model.table` is the projection.
    """

    def __init__(self, model, pad_id, tuned, device):
        import torch

        self.pad_id, self.tuned, self.device = pad_id, tuned, "cuda" if device == "gpu" else "cpu"
        self.model = model.to(self.device).train()
        self.hidden = self.model
        if tuned and device == "gpu":
            self.hidden = torch.compile(self.model)
        rates = {"lr": RATE, "betas": (ADAM["beta_1"], ADAM["beta_2"]), "eps": ADAM["epsilon"]}
        self.optimizer = torch.optim.Adam(self.model.parameters(), **rates, fused=tuned)

    def train(self, dataset, first, count):
        begin = time.perf_counter()
        for step in range(first, first + count):
            loss = self.step(*dataset.batch_at(step))
        loss = float(loss)  # On a GPU, reading the loss waits for the step.
        return loss, time.perf_counter() - begin

    def step(self, inputs, labels):
        import torch

        source, target = (
            torch.from_numpy(inputs[name]).to(self.device) for name in ("source_ids", "target_ids")
        )
        labels = torch.from_numpy(labels).to(self.device, torch.int64)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            hidden = self.hidden(source, target)
            if self.tuned:
                hidden, labels = hidden[labels != self.pad_id], labels[labels != self.pad_id]
            logits = torch.nn.functional.linear(hidden, self.model.table, self.model.bias)
        options = {"ignore_index": self.pad_id, "label_smoothing": LABEL_SMOOTHING}
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, -2).float(), labels.flatten(), **options
        )
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        return loss.detach()


def torch_model(config, vocabulary_size, pad_id):
    """`torch.nn.Transformer` with embeddings, which it does not include."""
    import torch

    hidden, rate = config["hidden_dim"], config["dropout"]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary_size, hidden)
            torch.nn.init.normal_(self.embedding.weight, std=hidden**-0.5)
            self.dropout = torch.nn.Dropout(rate)
            layers = (config["num_encoder_layers"], config["num_decoder_layers"])
            options = {"dropout": rate, "batch_first": True, "norm_first": True}
            self.transformer = torch.nn.Transformer(
                hidden, config["num_heads"], *layers, config["intermediate_dim"], **options
            )
            for module in self.transformer.modules():
                if isinstance(module, torch.nn.MultiheadAttention):
                    module.dropout = 0.0
                if isinstance(
                    module, torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer
                ):
                    module.dropout.p = 0.0  # The one inside the feed-forward network.
            angles = np.arange(LONGEST)[:, None] / 10000 ** (np.arange(0, hidden, 2) / hidden)
            positions = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(LONGEST, hidden)
            self.register_buffer("positions", torch.tensor(positions, dtype=torch.float32))
            self.register_buffer(
                "later", torch.triu(torch.ones(LONGEST, LONGEST, dtype=torch.bool), diagonal=1)
            )
            self.bias = None

        @property
        def table(self):
            return self.embedding.weight

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * hidden**0.5 + self.positions[: ids.shape[1]])

        def encode(self, source):
            """The encoder's output `[B, S, D]`, and which of its positions are padding."""
            padding = source == pad_id
            padding[:, 0] = False  # A row of padding alone would have no key, and give NaN.
            encoder = self.transformer.encoder
            return encoder(self.embed(source), src_key_padding_mask=padding), padding

        def decode(self, target, memory, padding):
            later = self.later[: target.shape[1], : target.shape[1]]
            return self.transformer.decoder(
                self.embed(target),
                memory,
                tgt_mask=later,
                tgt_is_causal=True,
                memory_key_padding_mask=padding,
            )

        def forward(self, source, target):
            return self.decode(target, *self.encode(source))

    return Model()


def marian_model(config, vocabulary_size, pad_id):
    """Hugging Face's Marian without its projection."""
    import torch
    import transformers

    heads, inner = config["num_heads"], config["intermediate_dim"]
    marian = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=vocabulary_size,
            d_model=config["hidden_dim"],
            encoder_layers=config["num_encoder_layers"],
            decoder_layers=config["num_decoder_layers"],
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=inner,
            decoder_ffn_dim=inner,
            activation_function="relu",
            dropout=config["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            init_std=config["hidden_dim"] ** -0.5,
            max_position_embeddings=LONGEST,
            pad_token_id=pad_id,
            decoder_start_token_id=pad_id,
            use_cache=False,
        )
    )

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.marian = marian

        @property
        def table(self):
            return self.marian.lm_head.weight

        @property
        def bias(self):
            return self.marian.final_logits_bias[0]

        def forward(self, source, target):
            mask = (source != pad_id).long()
            mask[:, 0] = 1
            return self.marian.model(
                input_ids=source, attention_mask=mask, decoder_input_ids=target
            ).last_hidden_state

    return Model()


# Quality: torch.nn.Transformer.

BEAM, MAX_TOKENS = 5, 255
# Hypotheses of one search are ranked by log-probability / tokens ** penalty.
PENALTIES = (0.0, 0.6, 1.0, 1.4, 1.8)
WARMUP, COOLDOWN, VALIDATIONS = 0.2, 0.25, 10


def average_of(decay):
    """How `AveragedModel` averages: the latest tenth of the steps, at most `1 / (1 - decay)`."""
    from torch.optim.swa_utils import get_ema_multi_avg_fn

    def update(averages, weights, count):
        get_ema_multi_avg_fn(min(decay, 1 - 10 / (10 + int(count))))(averages, weights, count)

    return update


def rate_at(progress):
    """The learning rate, as a share of its peak, after a share of the time."""
    rising = min(progress / WARMUP, (WARMUP / max(progress, 1e-9)) ** 0.5)
    return rising * max(0.0, min(1.0, (1 - progress) / COOLDOWN))


def settings_of(run):
    """The settings of a run's training; of `--effort 2` and above, of the student's."""
    from kformer.saving import read_config

    student = pathlib.Path(run) / "parts" / "student"
    return read_config(student if student.exists() else run)["training"]


def beam_search(model, source, beam_size, longest, start_id, end_id):
    """Finished hypotheses of each source.

    The beam's best unfinished hypotheses are extended until as many as the beam is wide have
    finished. At the limit all that live are ended.

    Args:
        model: the peer's model, in evaluation mode.
        source: int tensor `[B, S]`, padded.
        beam_size: int. With 1 this is greedy search.
        longest: int. The most tokens of a hypothesis, its end included.
        start_id, end_id: int.

    Returns:
        A list for each source, of pairs: the ids without start and end, and the sum of the
        log-probabilities, that of the end included.
    """
    import torch

    memory, padding = model.encode(source)
    finished = [[] for _ in source]
    active = torch.arange(len(source))
    ids = torch.full((len(source), 1, 1), start_id)  # [B, K, T]
    scores = torch.zeros(len(source), 1)
    for length in range(1, longest + 1):
        rows = active.repeat_interleave(ids.shape[1])
        hidden = model.decode(ids.flatten(0, 1), memory[rows], padding[rows])[:, -1]
        logits = torch.nn.functional.linear(hidden, model.table, model.bias)
        total = scores[..., None] + logits.log_softmax(-1).view(*scores.shape, -1)  # [B, K, V]
        if length == longest:
            for b, k in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
                finished[active[b]].append((ids[b, k, 1:].tolist(), float(total[b, k, end_id])))
            break
        # At most one candidate of each live hypothesis ends, so enough of these go on.
        best, index = total.flatten(1).topk(2 * beam_size)
        beam, token = index // total.shape[-1], index % total.shape[-1]
        ends = token == end_id
        for b, c in ends[:, :beam_size].nonzero().tolist():
            finished[active[b]].append((ids[b, beam[b, c], 1:].tolist(), float(best[b, c])))
        lives = ends.long().sort(dim=1, stable=True).indices[:, :beam_size]
        origin = beam.gather(1, lives)[..., None].expand(-1, -1, ids.shape[2])
        ids = torch.cat([ids.gather(1, origin), token.gather(1, lives)[..., None]], dim=2)
        scores = best.gather(1, lives)
        left = torch.tensor([len(finished[index]) < beam_size for index in active.tolist()])
        active, ids, scores = active[left], ids[left], scores[left]
        if not len(active):
            break
    return finished


def best_of(hypotheses, penalty):
    """The ids of the hypothesis with the best mean log-probability, to a power of the length."""
    return max(hypotheses, key=lambda pair: pair[1] / (len(pair[0]) + 1) ** penalty)[0]


class Peer:
    """A model and its data, for one training.

    Args:
        job: dict with the paths `run` and `data`, the languages `source` and `target`, `seed`,
            `rate`, `dropout`, `seconds` and `threads`.
    """

    def __init__(self, job):
        import torch

        from kformer import Tokenizer
        from kformer.data import ParallelDataset
        from kformer.models import PRESETS

        torch.manual_seed(job["seed"])
        self.job, run = job, pathlib.Path(job["run"])
        settings = settings_of(run)
        self.average = settings["ema"]
        self.tokenizer = Tokenizer.load(run / "tokenizer")
        sides = job["source"], job["target"]
        batches = {name: settings[name] for name in ("batch_tokens", "max_length", "max_shapes")}
        files = {
            part: [f"{job['data']}/{part}.{side}" for side in sides] for part in ("train", "val")
        }
        self.train_set = ParallelDataset(
            *files["train"], self.tokenizer, **batches, seed=job["seed"]
        )
        self.valid_set = ParallelDataset(*files["val"], self.tokenizer, **batches, shuffle=False)
        config = {**PRESETS[settings["preset"]].config, "dropout": job["dropout"]}
        model = torch_model(config, self.tokenizer.vocabulary_size, self.tokenizer.pad_id)
        self.loop = TorchLoop(model, self.tokenizer.pad_id, tuned=True, device="cpu")

    def train(self):
        """Trains for the job's seconds of CPU time, and keeps the average that validates best.

        Returns:
            Its result: dict with `seconds`, `epochs`, `parameters` and `nll`.
        """
        from torch.optim.swa_utils import AveragedModel

        model, seconds = self.loop.model, self.job["seconds"]
        average = AveragedModel(model, multi_avg_fn=average_of(self.average))
        step, spent, best, self.model = 0, 0.0, math.inf, None
        for number in range(1, VALIDATIONS + 1):
            begin = time.process_time() - spent
            while spent < seconds * number / VALIDATIONS:
                for group in self.loop.optimizer.param_groups:
                    group["lr"] = self.job["rate"] * rate_at(spent / seconds)
                self.loop.step(*self.train_set.batch_at(step))
                average.update_parameters(model)
                step, spent = step + 1, time.process_time() - begin
            nll = self.validate(average.module)
            if nll < best or self.model is None:  # At too high a rate every loss is NaN.
                best, self.model = nll, copy.deepcopy(average.module).eval()
            print(f"{spent:,.0f} s, step {step}, validation {nll:.4f}", file=sys.stderr, flush=True)
        return {
            "seconds": spent,
            "epochs": step / self.train_set.steps_per_epoch,
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "nll": best,
        }

    def validate(self, model):
        """The negative log-likelihood of a token of the validation set, in nats."""
        import torch

        total, count = 0.0, 0
        model.eval()
        for index in range(self.valid_set.steps_per_epoch):
            inputs, labels = self.valid_set.batch_at(index)
            source, target, labels = (
                torch.from_numpy(array).long()
                for array in (inputs["source_ids"], inputs["target_ids"], labels)
            )
            real = labels != self.tokenizer.pad_id
            with torch.no_grad():
                hidden = model(source, target)[real]
                logits = torch.nn.functional.linear(hidden, model.table, model.bias)
            total += float(torch.nn.functional.cross_entropy(logits, labels[real], reduction="sum"))
            count += int(real.sum())
        return total / count

    def search(self, sources):
        """The finished hypotheses of each text."""
        import torch

        ids = self.tokenizer.tokenize(sources, special_tokens=True)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        found = [None] * len(ids)
        for begin in range(0, len(order), 32):
            chosen = order[begin : begin + 32]
            batch = [torch.tensor(ids[index]) for index in chosen]
            batch = torch.nn.utils.rnn.pad_sequence(batch, True, self.tokenizer.pad_id)
            longest = min(MAX_TOKENS, 2 * batch.shape[1] + 32)
            special = self.tokenizer.start_id, self.tokenizer.end_id
            with torch.no_grad():
                results = beam_search(self.model, batch, BEAM, longest, *special)
            for index, result in zip(chosen, results, strict=True):
                found[index] = result
        return found

    def texts(self, found, penalty):
        """The best texts of a search."""
        return self.tokenizer.detokenize([best_of(one, penalty) for one in found])


def lines(job, part, side):
    """The lines of a part of the data; `side` is "source" or "target"."""
    return read(f"{job['data']}/{part}.{job[side]}")


def scores(job, part, texts):
    """BLEU, chrF and their signatures."""
    from sacrebleu.metrics import BLEU, CHRF

    found, references = {}, lines(job, part, "target")
    for name, metric in (("bleu", BLEU(tokenize=job["tokenize"], force=True)), ("chrf", CHRF())):
        found[name] = metric.corpus_score(texts, [references]).score
        found[f"{name}_signature"] = str(metric.get_signature())
    return found


# Quality: Joey NMT.

# What the published configuration has instead of a run's sizes and what trials choose.
JOEY_PUBLISHED = {
    "sizes": {"layers": 6, "hidden": 256, "inner": 1024, "heads": 4, "batch_tokens": 4096},
    "rate": 0.0003,
    "dropout": 0.3,
}
JOEY_ALPHA = 1.0
JOEY_VALIDATIONS, JOEY_TOKENS = 5, 100
JOEY_STEPS = 60


def joey_sizes(run):
    """The sizes and tokens per batch of a run of kformer."""
    from kformer.models import PRESETS

    settings = settings_of(run)
    config = PRESETS[settings["preset"]].config
    return {
        "layers": config["num_encoder_layers"],
        "hidden": config["hidden_dim"],
        "inner": config["intermediate_dim"],
        "heads": config["num_heads"],
        "batch_tokens": settings["batch_tokens"],
    }


def joey_configuration(job, updates):
    """The configuration of a training, dict."""
    sizes = job["sizes"]
    pathlib.Path(job["folder"]).mkdir(parents=True, exist_ok=True)
    stack = {
        "type": "transformer",
        "num_layers": sizes["layers"],
        "num_heads": sizes["heads"],
        "embeddings": {"embedding_dim": sizes["hidden"], "scale": True, "dropout": 0.0},
        "hidden_size": sizes["hidden"],
        "ff_size": sizes["inner"],
        "dropout": job["dropout"],
        "layer_norm": "pre",
    }
    every = max(1, updates // JOEY_VALIDATIONS)
    return {
        "name": "peer",
        "joeynmt_version": "2.3.0",
        "model_dir": f"{job['folder']}/model",
        "use_cuda": False,
        "random_seed": job["seed"],
        "data": {
            **{
                name: f"{job['data']}/{part}" for name, part in (("train", "train"), ("dev", "val"))
            },
            "dataset_type": "plain",
            "src": joey_side(job, "source"),
            "trg": joey_side(job, "target"),
        },
        "testing": {
            "beam_size": 5,
            "beam_alpha": JOEY_ALPHA,
            "batch_size": 64,
            "max_output_length": 1,  # Of validations; `joey_translations` sets it.
            "eval_metrics": ["bleu"],
        },
        "training": {
            "optimizer": "adam",
            "normalization": "tokens",
            "adam_betas": [0.9, 0.999],
            "scheduling": "warmupinversesquareroot",
            "learning_rate": job["rate"],
            "learning_rate_warmup": max(1, int(WARMUP * updates)),
            "learning_rate_min": 0.0,
            "label_smoothing": 0.1,
            "batch_size": sizes["batch_tokens"],
            "batch_type": "token",
            "early_stopping_metric": "ppl",
            "epochs": 100_000,
            "updates": every * JOEY_VALIDATIONS,
            "validation_freq": every,
            "logging_freq": every,
            "overwrite": True,
            "print_valid_sents": [],
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def joey_side(job, side):
    """A language, with the tokenizer of a run of kformer, whose pieces are the vocabulary."""
    import sentencepiece

    tokenizer = pathlib.Path(job["run"]) / "tokenizer"
    described = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    model = str(tokenizer / described[side]["model"])
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    pieces = pathlib.Path(job["folder"]) / f"{side}.pieces"
    text = "".join(f"{processor.id_to_piece(i)}\n" for i in range(processor.vocab_size()))
    pieces.write_text(text, encoding="utf-8")
    return {
        "lang": job[side],
        "level": "bpe",
        "voc_file": str(pieces),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": model},
    }


def run_joey(job, verb, config, *arguments, source=os.devnull):
    """Runs Joey NMT.

    Returns:
        What it printed, its log, and the seconds of CPU time of a second on the clock.
    """
    folder = pathlib.Path(job["folder"])
    path = folder / f"{verb}.yaml"
    # JSON is YAML, but for numbers such as 1e-05.
    path.write_text(re.sub(r"\b(\d)e-", r"\1.0e-", json.dumps(config)), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"])}
    environment.pop("PYTHONPATH", None)
    command = [job["python"], "-m", "joeynmt", verb, str(path), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begin, spent = time.perf_counter(), cpu_seconds()
    with open(source, "rb") as file:
        process = subprocess.run(command, stdin=file, **pipes, cwd=folder, env=environment)
    if process.returncode:
        raise SystemExit(f"Joey NMT failed:\n{process.stderr[-3000:]}")
    share = (cpu_seconds() - spent) / (time.perf_counter() - begin)
    return process.stdout, process.stderr, share


def cpu_seconds():
    """The CPU time of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def joey_seconds(log):
    """The seconds of a training's steps on the clock, by its log."""

    def time_of(words):
        stamp = re.search(rf"^(\S+ \S+),(\d+) - .*{words}", log, re.MULTILINE)
        moment = datetime.datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S")
        return moment.timestamp() + int(stamp[2]) / 1000

    validations = sum(map(float, re.findall(r"Generation took ([\d.]+)", log)))
    return time_of("Training ended") - time_of(r"EPOCH 1\b") - validations


def joey_pace(job):
    """The seconds of CPU time of an update."""
    _, log, share = run_joey(job, "train", joey_configuration(job, JOEY_STEPS), "-t")
    return share * joey_seconds(log) / JOEY_STEPS


def train_joey(job):
    """Trains for about the job's seconds of CPU time; takes the checkpoint of best perplexity.

    Args:
        job: dict with the paths `run`, `data`, `folder` and `python`, the languages `source` and
            `target`, `sizes`, `seed`, `rate`, `dropout`, `seconds`, `pace` and `threads`.

    Returns:
        Its result: dict with `seconds`, `epochs`, `parameters` and `nll`.
    """
    folder = pathlib.Path(job["folder"])
    updates = max(JOEY_STEPS, int(job["seconds"] / job["pace"]))
    _, log, share = run_joey(job, "train", joey_configuration(job, updates), "-t")
    (folder / "train.log").write_text(log, encoding="utf-8")
    print(log[-600:], file=sys.stderr)
    losses = [float(ppl) for ppl in re.findall(r"ppl: +([\d.]+|nan|inf),", log)]
    return {
        "seconds": share * joey_seconds(log),
        "epochs": int(re.findall(r"EPOCH (\d+)", log)[-1]),
        "parameters": int(re.search(r"Total params: (\d+)", log)[1]),
        "nll": math.log(min(losses)),
    }


def joey_translations(job, source):
    """The translations of a file's lines by a beam of 5."""
    config = joey_configuration(job, JOEY_STEPS)
    config["testing"]["max_output_length"] = JOEY_TOKENS
    printed, *_ = run_joey(job, "translate", config, source=source)
    return [joey_text(line) for line in printed.split("\n")[:-1]]


def joey_text(line):
    """A translation without the names of bytes, which Joey's tokenizer leaves as they are."""

    def character(found):
        return bytes.fromhex("".join(re.findall("x(..)", found[0]))).decode(errors="replace")

    return re.sub(r"(<0x[0-9A-F]{2}>)+", character, line)


def main():
    """Does the job of a JSON file; writes the result to another."""
    import torch

    from kformer.training import configure_machine

    job_file, result_file = map(pathlib.Path, sys.argv[1:])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    configure_machine(keep_memory=True)  # As `kformer train` does.
    peer = Peer(job)
    result = peer.train()
    if not job["is_trial"]:
        found = peer.search(lines(job, "val", "source"))
        val = {
            penalty: scores(job, "val", peer.texts(found, penalty))["bleu"] for penalty in PENALTIES
        }
        penalty = max(val, key=val.get)
        texts = peer.texts(peer.search(lines(job, job["test"], "source")), penalty)
        result |= {"penalty": penalty, "val": val[penalty], "texts": texts}
    write(result_file, [json.dumps(result)])


if __name__ == "__main__":
    main()
