"""The systems of benchmarks/training.py: kformer and its peers, built alike and trained on the same
batches.

`open_system` returns an object with `train(dataset, first, count)`, which trains `count` steps of a
data set from step `first` on, and returns a loss and the seconds.
"""

import time

import numpy as np

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
