# %% [markdown] lang="en"
# # Norms and warm-up: why deep Transformers are hard to start
#
# **What it shows.** First what the residual connection does for the gradient. Then the two places
# of the layer norm: the paper puts it *behind* the residual addition, $\mathrm{norm}(x + f(x))$
# (post-norm); most models since then put it *inside* the branch, $x + f(\mathrm{norm}(x))$
# (pre-norm). We train both with 6 and 18 layers, with and without warm-up, and look at the
# gradients of each layer.
#
# **For whom.** Your deep model does not learn, or you wonder what `normalize_first` and
# `warmup_steps` are for.
#
# **Time.** About a minute and a half on two CPU cores.

# %% [markdown] lang="zh"
# # 归一化与预热：深层 Transformer 为什么难起步
#
# **内容。** 先看残差连接对梯度做了什么。再看层归一化的两种放法：原论文放在残差相加*之后*，即
# $\mathrm{norm}(x + f(x))$（post-norm，后置）；后来的模型大多放在分支*里面*，即
# $x + f(\mathrm{norm}(x))$（pre-norm，前置）。两种都用 6 层和 18 层训练，各做有预热、无预热两遍，并
# 查看每一层的梯度。
#
# **适合谁。** 模型一深就学不动的人；想知道 `normalize_first` 和 `warmup_steps` 有什么用的人。
#
# **用时。** 两个 CPU 核上约一分半钟。

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
# A layer $y = F(x)$ multiplies the gradient on its way back by $F'$; after 18 layers little is left
# of it. With $y = x + F(x)$ the factor is $1 + F'$: one path goes back through all layers
# unchanged. Here are 18 small layers in NumPy, $F(x) = \tanh(x W)$, with both.

# %% [markdown] lang="zh"
# ## 残差连接是做什么的
#
# 反向传播时，一层 $y = F(x)$ 会把梯度乘上 $F'$，连乘 18 层之后所剩无几。换成 $y = x + F(x)$，因子就
# 变成 $1 + F'$：总有一条路能让梯度原样穿过所有层。下面用 NumPy 搭 18 个小层 $F(x) = \tanh(x W)$，两
# 种都算一遍。

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
axis.set(
    yscale="log", xlabel="layer", ylabel="gradient norm", title="The way back through 18 layers"
)
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
ids = generator.integers(1, 12, (1536, 6)).astype("int32")
labels = ids[:, ::-1].copy()
models = {
    (name, depth): kformer.TransformerEncoder(
        12,
        num_layers=depth,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=2,
        max_length=8,
        head="labelling",
        num_outputs=12,
        normalize_first=name == "pre-norm",
        seed=0,
    )
    for depth in (6, 18)
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
PEAK, EPOCHS = 0.005, 6
gradients, starts = {}, {}
for key, model in models.items():
    starts[key] = model.get_weights()
    model.compile(keras.optimizers.Adam(PEAK, beta_2=0.98), kformer.MaskedCrossentropy(pad_id=-1))
    model.fit({"token_ids": ids[:128]}, labels[:128], batch_size=128, verbose=0)
    means = {
        variable.name: keras.ops.convert_to_numpy(variable)
        for variable in model.optimizer.variables
    }
    name = "encoder_layer_{}_feed_forward_intermediate_kernel_momentum"
    gradients[key] = [10 * np.linalg.norm(means[name.format(number)]) for number in range(key[1])]

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for axis, depth in zip(axes, (6, 18)):
    for (name, layers), norms in gradients.items():
        if layers == depth:
            axis.plot(range(1, depth + 1), norms, marker="o", markersize=4, label=name)
    axis.set(title=f"{depth} layers, before any training", xlabel="layer", yscale="log")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("gradient norm")
axes[0].legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 2. The gradient of each layer's feed-forward network at the first step.*

# %% [markdown] lang="zh"
# *图 2　第一步时，每一层前馈网络的梯度范数。*

# %% [markdown] lang="en"
# In post-norm, every layer's norm also scales the gradient of the residual path: the last layers
# get large gradients, and the first ones smaller and smaller ones as the stack grows. In pre-norm
# nothing scales the residual path, and the first layers' gradients are as large at any depth.

# %% [markdown] lang="zh"
# 后置时，每一层的归一化都会缩放残差通路上的梯度：靠后的层梯度大，靠前的层梯度小，层数越多差得越远。
# 前置时残差通路上没有任何缩放，不论多深，靠前的层都能拿到差不多大的梯度。

# %% [markdown] lang="en"
# ## Training with and without warm-up
#
# The same peak rate with Adam; with warm-up it is reached step by step over the first half of the
# steps. Each model begins from the same weights both times. `kformer.WarmupInverseSqrt` is the
# paper's own schedule, for real trainings.

# %% [markdown] lang="zh"
# ## 有预热与无预热
#
# 都用 Adam，最高学习率相同；有预热时，用前一半的步数一点点升到最高值。同一个模型两次都从同样的初始
# 权重开始。正式训练可以用 `kformer.WarmupInverseSqrt`，也就是论文里的学习率曲线。

# %%
curves = {}
for (name, depth), model in models.items():
    for warm in (False, True):
        rates = [
            PEAK * min(1, (epoch + 0.5) / (EPOCHS / 2)) if warm else PEAK for epoch in range(EPOCHS)
        ]
        model.set_weights(starts[name, depth])
        for variable in model.optimizer.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))
        curves[name, depth, warm] = model.fit(
            {"token_ids": ids},
            labels,
            batch_size=128,
            epochs=EPOCHS,
            verbose=0,
            shuffle=False,
            callbacks=[keras.callbacks.LearningRateScheduler(rates.__getitem__)],
        ).history["loss"]
        kind = "with   " if warm else "without"
        loss = curves[name, depth, warm][-1]
        print(f"{name:9} {depth:2} layers, {kind} warm-up: loss {loss:.3f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axis, depth in zip(axes, (6, 18)):
    for (name, layers, warm), losses in curves.items():
        if layers == depth:
            axis.plot(
                range(1, EPOCHS + 1),
                losses,
                marker="o" if warm else "x",
                linestyle="-" if warm else "--",
                color="#1f5fa8" if name == "pre-norm" else "#d1600a",
                label=f"{name}, {'with' if warm else 'without'} warm-up",
            )
    axis.axhline(np.log(11), color="grey", linestyle=":", label="nothing learnt")
    axis.set(title=f"{depth} layers", xlabel="epoch of 12 steps")
    axis.grid(alpha=0.3)
axes[0].set_ylabel("loss")
axes[0].legend(fontsize=8)
plt.show()

# %% [markdown] lang="en"
# *Figure 3. The losses of all eight trainings. At 18 layers post-norm without warm-up learns
# nothing; pre-norm learns at both depths.*

# %% [markdown] lang="zh"
# *图 3　八次训练的损失曲线。18 层时，后置且无预热什么也没学到；前置在两种深度下都能学。*

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
