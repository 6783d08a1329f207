# %% [markdown] lang="en"
# # Norms and warm-up: why deep Transformers are hard to start
#
# **What it shows.** First what the residual connection does for the gradient. Then the two places
# of the layer norm: the paper puts it *after* the residual addition, $\mathrm{norm}(x + f(x))$
# (post-norm); most models since then put it *inside* the branch, $x + f(\mathrm{norm}(x))$
# (pre-norm). We look at the gradients of each layer with 4 and 12 layers, and train 12 layers of
# both, with and without warm-up.
#
# **For whom.** Your deep model does not learn, or you wonder what `normalize_first` and
# `warmup_steps` are for.
#
# **Time.** About half a minute on a CPU core.

# %% [markdown] lang="zh"
# # 归一化与预热：深层 Transformer 为什么难起步
#
# **内容。** 先看残差连接对梯度做了什么。再看层归一化的两种放法：原论文放在残差相加*之后*，即
# $\mathrm{norm}(x + f(x))$（post-norm，后置）；后来的模型大多放在分支*里面*，即
# $x + f(\mathrm{norm}(x))$（pre-norm，前置）。两种都看 4 层和 12 层时每一层的梯度，再各训练 12
# 层，有预热、无预热各一遍。
#
# **适合谁。** 模型一深就训练不动、想知道原因的人；想知道 `normalize_first` 和 `warmup_steps`
# 有什么用的人。
#
# **用时。** 一个 CPU 核上约半分钟。

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np

import kformer

keras.utils.set_random_seed(0)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## What the residual connection is for
#
# A layer $y = F(x)$ multiplies the gradient on its way back by $F'$; if that is small, little is
# left of it after 18 layers. With $y = x + F(x)$ the factor is $1 + F'$: one path goes back through
# all layers unchanged. Here are 18 small layers in NumPy, $F(x) = \tanh(x W)$, with both.

# %% [markdown] lang="zh"
# ## 残差连接是做什么的
#
# 反向传播时，一层 $y = F(x)$ 会把梯度乘上 $F'$；$F'$ 若偏小，连乘 18 层之后就所剩无几。换成
# $y = x + F(x)$，因子就变成 $1 + F'$：总有一条路能让梯度原样穿过所有层。下面用 NumPy 搭 18 个小层
# $F(x) = \tanh(x W)$，两种都算一遍。

# %%
generator = np.random.default_rng(0)
kernels = generator.normal(0, 0.5 / np.sqrt(32), (18, 32, 32))
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, keeps in (("x + F(x)", 1), ("F(x) alone", 0)):
    x, slopes = generator.normal(size=(1, 32)), []
    for kernel in kernels:
        output = np.tanh(x @ kernel)
        slopes.append(1 - output**2)
        x = keeps * x + output
    gradient, norms = np.ones((1, 32)), []
    for kernel, slope in zip(kernels[::-1], slopes[::-1]):
        gradient = keeps * gradient + (gradient * slope) @ kernel.T
        norms.append(np.linalg.norm(gradient))
    print(f"{name:10}: the first layer gets a gradient of norm {norms[-1]:.1e}")
    axis.plot(range(18, 0, -1), norms, marker="o", markersize=4, label=name)
axis.set(yscale="log", xlabel="layer", ylabel="gradient norm", xticks=range(2, 19, 2))
axis.set_title("The way back through 18 layers")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 1. The norm of the gradient that reaches each layer. Without the residual connection it
# vanishes on its way to the first layer.*

# %% [markdown] lang="zh"
# *图 1　传到每一层的梯度范数。没有残差连接时，梯度还没传到第一层就消失了。*

# %% [markdown] lang="en"
# ## The task
#
# An encoder reads a sequence of tokens and predicts it in reverse order, position by position: one
# label for each input (sequence labelling, `head="labelling"`).

# %% [markdown] lang="zh"
# ## 任务
#
# 编码器读入一串词元，逐个位置预测它的逆序：每个输入对应一个标签（序列标注，`head="labelling"`）。

# %%
ids = generator.integers(1, 12, (12 * 128, 6)).astype("int32")
labels = ids[:, ::-1].copy()
models = {
    (name, depth): kformer.TransformerEncoder(
        12,
        num_layers=depth,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=2,
        dropout=0.0,
        max_length=8,
        head="labelling",
        num_outputs=12,
        normalize_first=name == "pre-norm",
        seed=0,
    )
    for depth in (4, 12)
    for name in ("post-norm", "pre-norm")
}

# %% [markdown] lang="en"
# ## Gradients at the first step
#
# Adam keeps a moving mean of the gradients, which begins at zero: after one step it is a tenth of
# the first gradient ($1 - \beta_1$), on every backend.

# %% [markdown] lang="zh"
# ## 第一步的梯度
#
# Adam 里存着梯度的滑动平均，初值为零：走完第一步，它恰好是第一个梯度的十分之一（$1 - \beta_1$）。这
# 样在任何后端都能读到梯度。

# %%
PEAK = 0.003
gradients, starts = {}, {}
for key, model in models.items():
    starts[key] = model.get_weights()
    model.compile(keras.optimizers.Adam(PEAK, beta_2=0.98), kformer.MaskedCrossentropy(pad_id=-1))
    model.train_on_batch({"token_ids": ids[:256]}, labels[:256])
    means = {
        variable.name: keras.ops.convert_to_numpy(variable)
        for variable in model.optimizer.variables
    }
    name = "encoder_layer_{}_feed_forward_intermediate_kernel_momentum"
    norms = [10 * np.linalg.norm(means[name.format(number)]) for number in range(key[1])]
    gradients[key] = norms
    print(f"{key[0]:9} {key[1]:2} layers: first layer {norms[0]:.2f}, last layer {norms[-1]:.2f}")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for axis, depth in zip(axes, (4, 12)):
    for (name, layers), norms in gradients.items():
        if layers == depth:
            axis.plot(range(1, depth + 1), norms, marker="o", markersize=4, label=name)
    axis.set(
        title=f"{depth} layers, before any training", xlabel="layer", xticks=range(1, depth + 1)
    )
    axis.grid(alpha=0.3)
axes[0].set(ylabel="gradient norm", ylim=(0, None))
axes[1].legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 2. The gradient of each layer's feed-forward network at the first step.*

# %% [markdown] lang="zh"
# *图 2　第一步时，每一层前馈网络的梯度范数。*

# %% [markdown] lang="en"
# In post-norm every norm stands on the residual path and rescales the gradient that passes it: it
# goes up and down, and the last layer gets more than the first. In pre-norm nothing stands on the
# residual path: on its way back the gradient collects what the branches add, as in figure 1, so the
# first layers get the most. At the last layer post-norm has several times the gradient of pre-norm,
# and the more so the deeper the model is. (Adam divides by the size of the gradients, so this alone
# does not say which one learns. The next section tries it.)

# %% [markdown] lang="zh"
# 后置时，每个归一化都压在残差通路上，梯度每经过一个就被缩放一次：忽大忽小，最后一层比第一层大。前置
# 时残差通路上什么也没有，梯度往回走时还会不断加上各分支的贡献（见图 1），所以靠前的层梯度最大。就最
# 后一层来说，后置的梯度是前置的好几倍，而且模型越深差得越多。（Adam 会除以梯度的大小，所以光凭这一
# 点还不能断定谁训练得动，下一节实际训练一遍。）

# %% [markdown] lang="en"
# ## Training with and without warm-up
#
# 12 layers, the same peak rate with Adam; with warm-up it is reached in steps over the first half
# of the training. Each model begins from the same weights both times. `kformer.WarmupInverseSqrt`
# is the paper's own schedule, for real trainings.

# %% [markdown] lang="zh"
# ## 有预热与无预热
#
# 都是 12 层，都用 Adam，最高学习率相同；有预热时，在前一半的训练里分几级升到最高值。同一个模型两次
# 都从同样的初始权重开始。正式训练可以用 `kformer.WarmupInverseSqrt`，也就是论文里的学习率曲线。

# %%
EPOCHS, curves = 4, {}
for name in ("post-norm", "pre-norm"):
    model = models[name, 12]
    for warm in (False, True):
        rates = [
            PEAK * min(1, (epoch + 0.5) / (EPOCHS / 2)) if warm else PEAK for epoch in range(EPOCHS)
        ]
        model.set_weights(starts[name, 12])
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        losses = model.fit(
            {"token_ids": ids},
            labels,
            batch_size=128,
            epochs=EPOCHS,
            verbose=0,
            shuffle=False,
            callbacks=[keras.callbacks.LearningRateScheduler(rates.__getitem__)],
        ).history["loss"]
        kind = f"{name}, {'with' if warm else 'without'} warm-up"
        curves[kind] = losses
        print(f"{kind:26}: loss {losses[-1]:.2f}; knowing nothing gives {np.log(11):.2f}")

# %%
figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
for kind, losses in curves.items():
    axis.plot(
        range(1, EPOCHS + 1),
        losses,
        marker="x" if "without" in kind else "o",
        linestyle="--" if "without" in kind else "-",
        color="#1f5fa8" if kind.startswith("pre") else "#d1600a",
        label=kind,
    )
axis.axhline(np.log(11), color="grey", linestyle=":", label="nothing learnt")
axis.set(title="12 layers", xlabel="epoch of 12 steps", ylabel="loss", xticks=range(1, EPOCHS + 1))
axis.grid(alpha=0.3)
axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown] lang="en"
# *Figure 3. The losses of the four trainings. Post-norm without warm-up learns nothing, and with
# warm-up it learns; pre-norm learns with and without.*

# %% [markdown] lang="zh"
# *图 3　四次训练的损失曲线。后置且无预热，什么也没学到；加上预热就能学。前置不管有没有预热都能学。*

# %% [markdown] lang="en"
# ## The paper's schedule
#
# The rate rises in a straight line for `warmup_steps` updates, then falls with $1/\sqrt{n}$. A
# longer warm-up has a lower peak. A cooldown lets the last updates fall to zero, as `kformer train`
# does.

# %% [markdown] lang="zh"
# ## 论文的学习率曲线
#
# 前 `warmup_steps` 步学习率沿直线上升，之后按 $1/\sqrt{n}$ 下降。预热越长，最高值越低。加上
# cooldown，最后若干步会降到零，`kformer train` 就是这样做的。

# %%
updates = np.arange(0, 20_000, 50)
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
cooldown = {"total_steps": 20_000, "cooldown_steps": 5000}
for warmup, options in ((1000, {}), (4000, {}), (4000, cooldown)):
    schedule = kformer.WarmupInverseSqrt(512, warmup_steps=warmup, **options)
    rates = keras.ops.convert_to_numpy(schedule(updates))
    kind = f"{warmup} steps of warm-up{', cooldown' if options else ''}"
    axis.plot(updates, rates, linestyle="--" if options else "-", label=kind)
axis.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 4. The learning rate of `WarmupInverseSqrt` for a hidden size of 512.*

# %% [markdown] lang="zh"
# *图 4　隐藏维度为 512 时 `WarmupInverseSqrt` 的学习率。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - Layer norm computed by hand, beside batch norm: [attention_by_hand](attention_by_hand.ipynb).
# - A translator with the paper's schedule: [translation](translation.ipynb).
# - Labels for whole texts and vectors for search: [encoder_only](encoder_only.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 手算层归一化，并与批归一化对照：见[手算注意力](attention_by_hand.ipynb)。
# - 用论文的学习率曲线训练一个翻译模型：见[翻译](translation.ipynb)。
# - 给整段文字分类、为检索算向量：见[仅编码器](encoder_only.ipynb)。
