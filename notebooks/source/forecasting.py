# %% [markdown] lang="en"
# # Forecasting: a noisy sine wave, with a leak and without
#
# **What it shows.** A Transformer reads numbers as well as words: a linear map replaces the
# embedding, another the softmax, and the loss is the mean squared error. First we do it as many
# tutorials do, and see why its small error means nothing; then we forecast.
#
# **For whom.** You want to forecast a series, or you have followed a tutorial whose sine wave was
# predicted suspiciously well.
#
# **Time.** About half a minute on a CPU core.

# %% [markdown] lang="zh"
# # 序列预测：带噪声的正弦波，有泄漏与无泄漏
#
# **内容。** Transformer 不只能读文字，也能读数值：用一个线性层代替词嵌入，用另一个线性层代替
# softmax，损失换成均方误差。先照许多教程的写法做一遍，看看那个漂亮的误差为什么毫无意义；再做一次真
# 正的预测。
#
# **适合谁。** 想做时间序列预测的读者；或者照教程跑过正弦波、觉得结果好得可疑的读者。
#
# **用时。** 一个 CPU 核上约半分钟。

# %%
import pathlib
import tempfile

import keras
import matplotlib.pyplot as plt
import numpy as np

import kformer

keras.utils.set_random_seed(0)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## The data
#
# Half a wave (or more) from a random phase, and noise with a standard deviation of 0.1, so that no
# forecast can have a squared error below 0.01.

# %% [markdown] lang="zh"
# ## 数据
#
# 从随机相位开始取半个周期（或更长）的正弦波，加上标准差 0.1 的噪声。噪声无法预测，所以任何真正的
# （不偷看答案的）预测，均方误差都不可能低于 0.01。

# %%
generator = np.random.default_rng(0)


def waves(count, length, span):
    """Noisy pieces of a sine wave, `[count, length, 1]`; a piece spans so many radians."""
    angles = generator.uniform(0, 2 * np.pi, (count, 1)) + np.linspace(0, span, length)
    return (np.sin(angles) + generator.normal(0, 0.1, angles.shape)).astype("float32")[..., None]


settings = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "num_heads": 4,
    "dropout": 0.0,
}

# %% [markdown] lang="en"
# ## With a leak
#
# The tutorials' set-up: 21 numbers; the encoder reads numbers 1 to 20, and the decoder predicts
# numbers 2 to 21. So 19 of the 20 answers *are in the encoder's input*, and nothing hides them.
# (Without a causal mask, as in some of them, the decoder's own input leaks as well.) What is
# measured is not forecasting.

# %% [markdown] lang="zh"
# ## 有泄漏的做法
#
# 教程里常见的设置：一段 21 个数，编码器读第 1 到 20 个，解码器预测第 2 到 21 个。于是 20 个答案里有
# 19 个*就在编码器的输入里*，没有任何东西遮住它们。（有的教程连因果掩码都没加，解码器自己的输入也在
# 泄漏。）这样测出来的根本不是预测能力。

# %%
EPOCHS, TRAINED = 20, 1000
series = waves(1200, 21, np.pi)
past, future = series[:, :-1], series[:, 1:]
leaky = kformer.Forecaster(1, **settings)
leaky.compile(keras.optimizers.Adam(0.005), "mean_squared_error")
leaky_history = leaky.fit(
    {"past": past[:TRAINED], "previous": past[:TRAINED]},
    future[:TRAINED],
    batch_size=64,
    epochs=EPOCHS,
    verbose=0,
).history
past, future = past[TRAINED:], future[TRAINED:]  # From here on held-out series.
answers = leaky.predict({"past": past, "previous": past}, verbose=0)
leaky_error = np.mean((answers - future) ** 2)
print(f"squared error with the leak: {leaky_error:.4f} (the noise alone has 0.01)")

# %% [markdown] lang="en"
# Not much more than the noise: it looks nearly perfect. (It could even get *below* the noise, since
# 19 answers can be copied. No forecast can.) Where does an answer come from? We shift one number of
# the encoder's input at a time, and see which answers move.

# %% [markdown] lang="zh"
# 误差比噪声大不了多少，看上去近乎完美。（甚至可能*低于*噪声，因为 20 个答案里有 19 个可以照抄；真正
# 的预测绝对做不到。）答案从哪里来？每次只把编码器输入中的一个数挪动一点，看哪些答案跟着动。

# %%
shifted = np.repeat(past[:32], 20, axis=0)
shifted[np.arange(len(shifted)), np.tile(np.arange(20), 32)] += 0.5
moved = leaky.predict({"past": shifted, "previous": np.repeat(past[:32], 20, axis=0)}, verbose=0)
moved = moved.reshape(32, 20, 20)
influence = np.abs(moved - answers[:32, None, :, 0]).mean(0).T
late = np.triu(np.ones((20, 20)), 1).astype(bool)
print(f"{influence[late].sum() / influence.sum():.0%} of the influence comes from numbers that a")
print("forecast does not know yet")

figure, axis = plt.subplots(figsize=(5.2, 4.2), layout="constrained")
shown = axis.imshow(influence, cmap="Blues")
axis.plot([-0.5, 19.5], [-0.5, 19.5], color="crimson", linewidth=1)
axis.set(title="Influence of each input on each answer", xlabel="input step", ylabel="answer step")
figure.colorbar(shown, ax=axis, label="mean change of the answer")
plt.show()

# %% [markdown] lang="en"
# *Figure 1. Everything right of the red line is the leak: the cell next to it is the answer itself,
# further right are the numbers after the answer.*

# %% [markdown] lang="zh"
# *图 1　红线右边全是泄漏：紧贴红线的就是答案本身，再往右是答案之后的数。*

# %% [markdown] lang="en"
# And if the model gets only the first ten numbers, as in a real forecast?

# %% [markdown] lang="zh"
# 如果只给它前十个数，像真正的预测那样呢？

# %%
known = np.repeat(past[:, :1], 20, axis=1)
known[:, :10] = past[:, :10]
for step in range(10, 20):
    inputs = {"past": past[:, :10], "previous": known}
    known[:, step] = leaky.predict(inputs, verbose=0)[:, step - 1]
error = np.mean((known[:, 10:] - past[:, 10:]) ** 2)
print(f"squared error of the ten that follow: {error:.4f}, {error / leaky_error:.0f} times as much")

# %%
record = leaky.inspect({"past": past[:1], "previous": past[:1]})
leak_map = keras.ops.convert_to_numpy(record["cross_attention_scores"][-1])[0].mean(0)
figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
axes[0, 0].plot(range(1, EPOCHS + 1), leaky_history["loss"], color="crimson")
axes[0, 0].axhline(0.01, color="grey", linestyle=":", label="noise")
axes[0, 0].set(title="Training loss", xlabel="epoch", ylabel="squared error", yscale="log")
axes[0, 0].legend()
axes[0, 1].plot(range(1, 21), future[0, :, 0], marker="o", markersize=4, label="true")
axes[0, 1].plot(range(1, 21), answers[0, :, 0], marker="x", label="with the leak")
axes[0, 1].plot(
    range(10, 20), known[0, 10:, 0], marker="x", linestyle=":", label="after 10 numbers"
)
axes[0, 1].set(title="One series", xlabel="time step", ylabel="value")
axes[0, 1].legend(fontsize=8)
shown = axes[1, 0].imshow(leak_map, cmap="Blues", vmin=0)
axes[1, 0].set(title="Cross-attention, mean of heads", xlabel="input step", ylabel="answer step")
figure.colorbar(shown, ax=axes[1, 0], label="attention")
axes[1, 1].hist(past.ravel(), bins=30, color="mediumseagreen", edgecolor="white")
axes[1, 1].set(title="Values of the input", xlabel="value", ylabel="count")
plt.show()

# %% [markdown] lang="en"
# *Figure 2. The four pictures of the tutorials: the loss, one prediction, the attention and the
# data. The attention is the model's own, from `inspect`, not random numbers: every answer reads the
# whole input, also what a forecast does not know yet.*

# %% [markdown] lang="zh"
# *图 2　教程里常见的四张图：损失、一条预测、注意力、数据分布。这里的注意力是用 `inspect` 从模型里取
# 出来的真实权重，不是拿随机数画的示意图：每个答案都看了整段输入，包括预测时还不知道的部分。*

# %% [markdown] lang="en"
# ## Without: the past in, the future out
#
# Now the encoder has 20 numbers and the decoder predicts the *next* 20. In training each step reads
# the true number before it (teacher forcing); in a forecast each reads what the step before
# predicted (free running). `teacher_forcing` makes the inputs of training, `forecast` runs freely.

# %% [markdown] lang="zh"
# ## 无泄漏：过去进，未来出
#
# 这次编码器只拿到 20 个数，解码器预测*接下来的* 20 个。训练时，每一步读的是前一步的真实值（教师强
# 制）；预测时，每一步读的是自己上一步的预测（自由运行）。`teacher_forcing` 负责准备训练输
# 入，`forecast` 负责自由运行。

# %%
series = waves(2000, 40, 2 * np.pi)
past, future = series[:, :20], series[:, 20:]
model = kformer.Forecaster(1, **settings)
model.compile(keras.optimizers.Adam(0.005), "mean_squared_error")
train, held_out = slice(0, 1800), slice(1800, None)
inputs = model.teacher_forcing(past, future)
history = model.fit(
    {name: x[train] for name, x in inputs.items()},
    future[train],
    batch_size=128,
    epochs=EPOCHS,
    verbose=0,
).history
forecast = model.forecast(past[held_out], steps=20)

# %% [markdown] lang="en"
# Two simple rules to beat: the last number repeats, and the curve continues in its direction (a
# line through the last five numbers).

# %% [markdown] lang="zh"
# 至少要赢过两条最简单的规则：一是“明天和今天一样”（重复最后一个数），二是“照着趋势走”（过最后五
# 个数的直线）。

# %%
truth = future[held_out]
slopes = np.polyfit(np.arange(5), past[held_out, -5:, 0].T, 1)
line = (slopes[1][:, None] + slopes[0][:, None] * np.arange(5, 25))[..., None]
errors = {
    "forecast": np.mean((forecast - truth) ** 2),
    "last number": np.mean((past[held_out, -1:] - truth) ** 2),
    "line": np.mean((line - truth) ** 2),
}
for name, error in errors.items():
    print(f"{name:12} squared error {error:7.4f}")
print("noise alone  squared error  0.0100")

# %%
record = model.inspect({name: x[held_out][:1] for name, x in inputs.items()})
heads = keras.ops.convert_to_numpy(record["cross_attention_scores"][-1])[0]
figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
axes[0, 0].plot(range(1, EPOCHS + 1), history["loss"], color="crimson")
axes[0, 0].axhline(0.01, color="grey", linestyle=":", label="noise")
axes[0, 0].set(title="Training loss", xlabel="epoch", ylabel="squared error", yscale="log")
axes[0, 0].legend()
for number, color in enumerate(("navy", "darkorange", "seagreen")):
    axes[0, 1].plot(np.arange(20), past[held_out][number, :, 0], color=color, alpha=0.4)
    axes[0, 1].plot(np.arange(20, 40), truth[number, :, 0], "o", markersize=3, color=color)
    axes[0, 1].plot(np.arange(20, 40), forecast[number, :, 0], color=color, linewidth=2)
axes[0, 1].axvline(19.5, color="grey", linestyle="--")
axes[0, 1].set(title="Past, future (dots), forecast (lines)", xlabel="time step", ylabel="value")
shown = axes[1, 0].imshow(heads.mean(0), cmap="Blues", vmin=0)
axes[1, 0].set(title="Cross-attention, mean of heads", xlabel="past step", ylabel="future step")
figure.colorbar(shown, ax=axes[1, 0], label="attention")
by_step = ((forecast - truth) ** 2).mean(axis=(0, 2))
axes[1, 1].plot(range(1, 21), by_step, marker="o", markersize=4, label="free running")
axes[1, 1].axhline(0.01, color="grey", linestyle=":", label="noise")
axes[1, 1].set(title="Error by step", xlabel="steps ahead", ylabel="squared error", ylim=(0, None))
axes[1, 1].legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 3. The honest forecast: the loss comes near the noise, the lines follow the waves, and at
# every distance the error is a small part of what the simple rules have.*

# %% [markdown] lang="zh"
# *图 3　真正的预测：损失降到接近噪声，预测曲线跟得上真实波形；不论往前预测多少步，误差都只是
# 两条简单规则的零头。*

# %% [markdown] lang="en"
# ## Serving it
#
# The forecaster becomes a SavedModel: the past goes in, the future comes out.

# %% [markdown] lang="zh"
# ## 部署
#
# 把预测器导出成 SavedModel：输入过去，输出未来。

# %%
folder = pathlib.Path(tempfile.mkdtemp())
path = kformer.export.export_model(model, folder / "sine", steps=20)
print("exported as version", path.name, "with", sorted(file.name for file in path.iterdir()))

# %% [markdown] lang="en"
# ## Where to go on
#
# - What an encoder and a decoder do with words: [translation](translation.ipynb).
# - Why the order of the numbers has to be told: [positions](positions.ipynb).
# - An encoder alone, for classes or vectors: [encoder_only](encoder_only.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 编码器和解码器怎么处理文字：见[翻译](translation.ipynb)。
# - 为什么必须告诉模型数值的先后：见[位置编码](positions.ipynb)。
# - 只用编码器做分类或检索：见[仅编码器](encoder_only.ipynb)。
