# %% [markdown] lang="en"
# # One model, three backends
#
# **What it shows.** Keras 3 runs on TensorFlow, JAX or PyTorch; the environment variable
# `KERAS_BACKEND` chooses one for each process. Here one model is made, and three processes load it:
# their logits, their translations and their losses in training must be the same.
#
# **For whom.** You train with one library and serve with another, or want to know how far "the same
# on every backend" goes.
#
# **Time.** About a minute on a CPU core. It needs all three libraries:
# `pip install ".[jax,torch,plots]"`.

# %% [markdown] lang="zh"
# # 一个模型，三种后端
#
# **内容。** Keras 3 可以跑在 TensorFlow、JAX 或 PyTorch 上，每个进程用环境变量 `KERAS_BACKEND` 选一
# 种。本篇训练一个模型，再由三个进程分别加载：三边的 logits、译文和训练损失都应当一致。
#
# **适合谁。** 训练用一种框架、部署用另一种的人；想知道“各后端结果一致”到底能一致到什么程度的人。
#
# **用时。** 一个 CPU 核上约一分钟。三个库都要装：`pip install ".[jax,torch,plots]"`。

# %%
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras
import matplotlib.pyplot as plt
import numpy as np

import kformer

keras.utils.set_random_seed(0)
folder = pathlib.Path(tempfile.mkdtemp())
print("this notebook runs on", keras.backend.backend())

# %% [markdown] lang="en"
# ## One model, saved
#
# A short training on English numbers and their Chinese, so that the model writes meaningful text;
# then one `.keras` file.

# %% [markdown] lang="zh"
# ## 训练一个模型，存下来
#
# 用英语数字和对应的中文短短训练一下，让它写得出像样的文字，然后存成一个 `.keras` 文件。

# %%
pairs = kformer.examples.generate_pairs(2000, seed=0, categories=["number"])
sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
tokenizer = kformer.Tokenizer.train(texts=sources + targets, vocabulary_size=360)
train = kformer.data.ParallelDataset(
    sources, targets, tokenizer, batch_tokens=2048, seed=0, max_shapes=1
)
model = kformer.Transformer(
    tokenizer.vocabulary_size,
    num_encoder_layers=1,
    num_decoder_layers=1,
    hidden_dim=64,
    intermediate_dim=128,
    num_heads=4,
    dropout=0.1,
    max_length=64,
    position_encoding="rope",
    normalization="rms_norm",
)
model.compile(
    keras.optimizers.Adam(0.003, beta_2=0.98), kformer.MaskedCrossentropy(label_smoothing=0.1)
)
losses = model.fit(train, epochs=2, verbose=0).history["loss"]
print("loss of each epoch:", np.round(losses, 2))
model.save(folder / "model.keras")
inputs, labels = train.batch_at(0)
np.savez(folder / "batch.npz", labels=labels, **inputs)

# %% [markdown] lang="en"
# ## Three processes
#
# Each loads the file, computes logits, searches with a beam of 4, and makes five training steps
# with dropout. The masks of dropout are a function of seed and step, the same on all backends, so
# the losses can be compared, too.

# %% [markdown] lang="zh"
# ## 三个进程
#
# 每个进程加载同一个文件，算 logits，用宽度 4 的集束搜索翻译，再开着 dropout 训练五步。dropout 的掩
# 码只由种子和步数决定，在所有后端上都一样，所以连训练损失也能直接比较。

# %%
SCRIPT = """
import json, sys
import keras, kformer
import numpy as np
folder = sys.argv[1]
model = keras.saving.load_model(folder + "/model.keras")
batch = dict(np.load(folder + "/batch.npz"))
labels = batch.pop("labels")
inputs = {name: keras.ops.convert_to_tensor(ids[:8]) for name, ids in batch.items()}
logits = keras.ops.convert_to_numpy(model(inputs))
options = kformer.decoding.SearchOptions(beam_size=4, max_length=32)
ids = kformer.decoding.Searcher(model, options)(batch["source_ids"][:16]).ids[:, 0]
losses = [float(np.ravel(model.train_on_batch(batch, labels))[0]) for _ in range(5)]
np.savez(folder + "/" + keras.backend.backend() + ".npz", logits=logits, losses=losses)
print(json.dumps([[token for token in row if token not in (0, 3)] for row in ids.tolist()]))
"""
generated = {}
for backend in ("tensorflow", "jax", "torch"):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=True,
    )
    generated[backend] = json.loads(process.stdout.splitlines()[-1])
found = {backend: np.load(folder / f"{backend}.npz") for backend in generated}

# %% [markdown] lang="en"
# ## Equal numbers
#
# Not bit by bit: the libraries add numbers in different orders, so the last digits of float32
# differ. The translations are equal token by token.

# %% [markdown] lang="zh"
# ## 数值一致
#
# 并不是逐位相同：各个库求和的次序不同，float32 的最后几位会有差别。译文则是逐个词元都相同。

# %%
base = found["tensorflow"]
for backend, numbers in found.items():
    difference = np.abs(numbers["logits"] - base["logits"]).max()
    assert difference < 1e-3 and generated[backend] == generated["tensorflow"]
    assert np.allclose(numbers["losses"], base["losses"], atol=2e-3)
    print(f"{backend:10} losses of five steps {np.round(numbers['losses'], 3)}")
print("all generate:", tokenizer.detokenize(generated["jax"])[:4])

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for (backend, numbers), marker, size in zip(found.items(), "os^", (12, 8, 5)):
    left.plot(range(1, 6), numbers["losses"], marker=marker, markersize=size, label=backend)
    if backend != "tensorflow":
        difference = np.abs(numbers["logits"] - base["logits"]).ravel()
        bins = np.linspace(-9, -4, 60)
        right.hist(np.log10(difference + 1e-9), bins, alpha=0.6, label=f"{backend}, tensorflow")
left.set(title="Five training steps", xlabel="step", ylabel="loss")
right.set(title="Differences of the logits", xlabel="log10 of the difference", ylabel="count")
for axis in (left, right):
    axis.grid(alpha=0.3)
    axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 1. Left: the losses of the three backends lie on each other. Right: how much each logit
# differs from TensorFlow's, by powers of ten.*

# %% [markdown] lang="zh"
# *图 1　左：三种后端的损失曲线完全重合。右：每个 logit 与 TensorFlow 相差多少，横轴是 10 的幂次。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - Train on any backend, export under TensorFlow: [translation](translation.ipynb).
# - What the model of this page is made of: [attention_by_hand](attention_by_hand.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 用任意后端训练，再导出成 TensorFlow 的 SavedModel：见[翻译](translation.ipynb)。
# - 这个模型由哪些部件组成：见[手算注意力](attention_by_hand.ipynb)。
