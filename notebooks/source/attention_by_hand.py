# %% [markdown] lang="en"
# # Attention by hand: four tokens, one head and two
#
# **What it shows.** Every number of a small attention is computed with NumPy and then by the layer
# itself, and both agree: one head, two heads, masks, cross-attention, and whole layers of an
# encoder and a decoder with their residual connections, layer norms and feed-forward networks.
# Then what the $\sqrt{d_k}$ and the epsilon are for, and what GELU changes.
#
# **For whom.** You have read an explanation of the Transformer and want to see the numbers. You
# know what a matrix product is.
#
# **Time.** About ten seconds to run, half an hour to read.

# %% [markdown] lang="zh"
# # 手算注意力：四个词元，从单头到双头
#
# **内容。** 先用 NumPy 一步步把一个小小的注意力算出来，再让 kformer 的层去算，两边的数字必须一致：
# 单头、双头、掩码、交叉注意力，最后是完整的编码器层和解码器层（残差、层归一化、前馈网络）。之后再看
# $\sqrt{d_k}$ 和 epsilon 到底起什么作用。
#
# **适合谁。** 看过 Transformer 的讲解、想亲眼看到数字的读者；会矩阵乘法就够了。
#
# **用时。** 运行约十秒，通读约半小时。

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

import kformer
from kformer.plots import plot_attention

np.set_printoptions(precision=3, suppress=True)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## Four tokens
#
# 我 / 爱 / 机器 / 学习 ("I love machine learning"), each a vector of size $d = 4$: the rows of $X$.
# Three matrices make queries, keys and values of them: $Q = X W^Q$, $K = X W^K$, $V = X W^V$. A
# query says what a token looks for, a key what it offers, a value what it hands over. In a model
# the three matrices are learnt; here they are made up, so that you can check them on paper.

# %% [markdown] lang="zh"
# ## 四个词元
#
# “我 / 爱 / 机器 / 学习”，每个词元是一个 $d = 4$ 维的向量，排成矩阵 $X$ 的四行。三个矩阵把它变成
# 查询、键和值： $Q = X W^Q$，$K = X W^K$，$V = X W^V$。查询表示“我在找什么”，键表示“我能提供什
# 么”，值才是真正被取走的内容。在模型里这三个矩阵是学出来的；这里随手取了几个简单的数，方便你在纸上
# 验算。

# %%
tokens = ["我", "爱", "机器", "学习"]
X = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1], [0, 1, 2, 1]], "float32")
WQ = np.array([[1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1]], "float32") / 2
WK = np.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]], "float32") / 2
WV = np.array([[0, 2, 0, 1], [0, 3, 1, 0], [1, 0, 3, 0], [1, 1, 0, 2]], "float32") / 2
Q, K, V = X @ WQ, X @ WK, X @ WV
print("Q =", Q, "K =", K, "V =", V, sep="\n")

# %% [markdown] lang="en"
# ## One head
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# Row $i$ of the scores $Q K^\top$ holds how well query $i$ matches each key. The softmax turns a
# row into weights that sum to one; row $i$ of the output is the mean of the values under these
# weights.

# %% [markdown] lang="zh"
# ## 单头注意力
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# 分数矩阵 $Q K^\top$ 的第 $i$ 行，是第 $i$ 个查询和各个键的匹配程度。softmax 把每一行变成和为 1 的
# 权重；输出的第 $i$ 行，就是所有值按这一行权重求的加权平均。

# %%
scores = Q @ K.T
scaled = scores / np.sqrt(K.shape[1])
weights = np.exp(scaled) / np.exp(scaled).sum(-1, keepdims=True)
by_hand = weights @ V
print("Q Kᵀ =", scores, "divided by √4 =", scaled, sep="\n")
print("softmax =", weights, "output =", by_hand, sep="\n")
print("each row of the weights sums to", weights.sum(-1))

# %% [markdown] lang="en"
# The layer keeps $W^Q$, $W^K$ and $W^V$ side by side in one matrix and multiplies once. With the
# identity as its output matrix it must return the same.

# %% [markdown] lang="zh"
# kformer 的层把 $W^Q$、$W^K$、$W^V$ 并排存成一个大矩阵，只乘一次。把输出矩阵设成单位阵，它就应当给
# 出与手算完全相同的结果。

# %%
one_head = kformer.layers.MultiHeadAttention(num_heads=1)
one_head.build((None, None, 4))
one_head.query_key_value_kernel.assign(np.concatenate([WQ, WK, WV], axis=1))
one_head.output_kernel.assign(np.eye(4))
output, probabilities = one_head(ops.convert_to_tensor(X[None]), return_attention_scores=True)
output, probabilities = ops.convert_to_numpy(output)[0], ops.convert_to_numpy(probabilities)[0, 0]
assert np.allclose(output, by_hand, atol=1e-5) and np.allclose(probabilities, weights, atol=1e-5)
print("The layer agrees with the numbers above.")

# %% [markdown] lang="en"
# ## Two heads
#
# Each head takes half of the columns of $Q$, $K$ and $V$, attends by itself with $d_k = 2$, and the
# two outputs are concatenated again before $W^O$ mixes them. So the heads can attend to different
# positions, at the price of one large head.

# %% [markdown] lang="zh"
# ## 双头注意力
#
# 每个头各取 $Q$、$K$、$V$ 的一半列，以 $d_k = 2$ 独立地算一遍注意力；两个头的输出拼接起来，再由
# $W^O$ 混合。这样不同的头可以看不同的位置，而总计算量和一个大头一样。注意缩放用的是每个头自己的维度
# $\sqrt{2}$，不是 $\sqrt{4}$。

# %%
heads = []
for columns in (slice(0, 2), slice(2, 4)):
    part = Q[:, columns] @ K[:, columns].T / np.sqrt(2)
    part = np.exp(part) / np.exp(part).sum(-1, keepdims=True)
    heads.append((part, part @ V[:, columns]))
WO = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]], "float32") / 2
two_by_hand = np.concatenate([output for _, output in heads], axis=1) @ WO

two_heads = kformer.layers.MultiHeadAttention(num_heads=2)
two_heads.build((None, None, 4))
two_heads.query_key_value_kernel.assign(np.concatenate([WQ, WK, WV], axis=1))
two_heads.output_kernel.assign(WO)
output, probabilities = (
    ops.convert_to_numpy(x)[0]
    for x in two_heads(ops.convert_to_tensor(X[None]), return_attention_scores=True)
)
assert np.allclose(output, two_by_hand, atol=1e-5)
assert np.allclose(probabilities, [weights for weights, _ in heads], atol=1e-5)
print("together, times W^O =", two_by_hand, sep="\n")
plot_attention(probabilities, tokens, tokens, title="Two heads on four tokens")

# %% [markdown] lang="en"
# *Figure 1. The weights of both heads. A row is a query and sums to one; the darker, the more of
# that key's value it takes. The two heads look at different tokens.*

# %% [markdown] lang="zh"
# *图 1　两个头的注意力权重。每一行是一个查询，和为 1；颜色越深，从那个键取走的值越多。两个头关注的
# 词元并不相同。*

# %% [markdown] lang="en"
# ## Masks
#
# A padding mask hides the tokens that only fill a row, a causal mask hides later tokens; a decoder
# needs both at once. `True` means "may be attended", and masks are combined with AND. A hidden
# token gets the weight zero exactly, whatever its score.

# %% [markdown] lang="zh"
# ## 掩码
#
# 填充掩码遮住只是用来补齐长度的词元，因果掩码遮住后面的词元；解码器要同时用两个。这里 `True` 表示
# “可以看”，多个掩码用“与”合并。被遮住的词元权重恰好是 0，不管它的分数有多高。

# %%
ids = np.array([[7, 8, 9, 5, 0, 0]])
padding = kformer.layers.padding_mask(ids)
causal = kformer.layers.causal_mask(6, 6)
both = kformer.layers.combine_masks(causal, ops.expand_dims(padding, 1))
figure, axes = plt.subplots(1, 3, figsize=(8, 3), layout="constrained", sharey=True)
masks = {"padding mask": padding, "causal mask": causal, "both": both}
for axis, (name, mask) in zip(axes, masks.items()):
    picture = np.broadcast_to(np.squeeze(ops.convert_to_numpy(mask)), (6, 6))
    axis.imshow(picture, cmap="Blues", vmin=0, vmax=1.4)
    axis.set(title=name, xlabel="key", xticks=range(6), yticks=range(6))
axes[0].set_ylabel("query")
plt.show()

# %% [markdown] lang="en"
# *Figure 2. Blue means "may be attended". The last two of the six tokens are padding.*

# %% [markdown] lang="zh"
# *图 2　蓝色表示“可以看”。六个词元中最后两个是填充。*

# %%
layer = kformer.layers.MultiHeadAttention(num_heads=2, seed=1)
vectors = np.random.default_rng(0).normal(size=(1, 6, 8)).astype("float32")
_, seen = layer(
    ops.convert_to_tensor(vectors),
    padding_mask=padding,
    use_causal_mask=True,
    return_attention_scores=True,
)
seen = ops.convert_to_numpy(seen)[0]
assert (seen[:, ~np.squeeze(ops.convert_to_numpy(both))] == 0).all()
print("the weights of head 1 =", seen[0], sep="\n")

# %% [markdown] lang="en"
# ## Cross-attention
#
# In a decoder, a second attention takes its queries from the target and its keys and values from
# the encoder's output. The matrices are the same kind; only the rows differ: $T$ queries, $S$ keys.
# So the weights are a $T \times S$ table: which source token each target token reads.

# %% [markdown] lang="zh"
# ## 交叉注意力
#
# 解码器里还有第二种注意力：查询来自目标句，键和值来自编码器的输出。公式没有变，变的只是行数：$T$ 个
# 查询、 $S$ 个键，所以权重是一张 $T \times S$ 的表，写着每个目标词元从哪些源词元取信息。

# %%
target = np.array([[2, 0, 0, 0], [0, 0, 2, 0]], "float32")
cross_scores = target @ WQ @ K.T / 2
cross_weights = np.exp(cross_scores) / np.exp(cross_scores).sum(-1, keepdims=True)
print("2 queries, 4 keys: weights =", cross_weights, "output =", cross_weights @ V, sep="\n")

# %% [markdown] lang="en"
# ## A whole encoder layer
#
# Around the attention stand three more parts. The *residual connection* adds a sub-layer's input to
# its output. *Layer norm* makes each token's vector one of mean 0 and variance 1. The *feed-forward
# network* $\max(0, x W_1 + b_1) W_2 + b_2$ works on each token by itself: it mixes dimensions,
# never positions. In the paper's order (post-norm):
#
# $$y = \mathrm{LN}(x + \mathrm{MultiHead}(x)), \qquad z = \mathrm{LN}(y + \mathrm{FFN}(y))$$

# %% [markdown] lang="zh"
# ## 完整的编码器层
#
# 注意力之外还有三样东西：*残差连接*把子层的输入加到它的输出上；*层归一化*把每个词元的向量变成均值
# 0、方差 1； *前馈网络* $\max(0, x W_1 + b_1) W_2 + b_2$ 对每个词元单独计算——它混合的是维度，从不混
# 合位置。按论文的顺序（post-norm）：
#
# $$y = \mathrm{LN}(x + \mathrm{MultiHead}(x)), \qquad z = \mathrm{LN}(y + \mathrm{FFN}(y))$$

# %%
encoder_layer = kformer.layers.EncoderLayer(intermediate_dim=8, num_heads=2, seed=3)
encoder_layer.build((None, None, 4))
encoder_layer.self_attention.query_key_value_kernel.assign(np.concatenate([WQ, WK, WV], axis=1))
encoder_layer.self_attention.output_kernel.assign(WO)
W1 = ops.convert_to_numpy(encoder_layer.feed_forward.intermediate.kernel)
W2 = ops.convert_to_numpy(encoder_layer.feed_forward.output_projection.kernel)


def norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


y = norm(X + two_by_hand)
z = norm(y + np.maximum(0, y @ W1) @ W2)  # The biases are zero before any training.
layer_output = ops.convert_to_numpy(encoder_layer(ops.convert_to_tensor(X[None])))[0]
assert np.allclose(z, layer_output, atol=1e-5)
print("z =", z, sep="\n")
print("shape in", X.shape, "and out", z.shape, "- so that layers can be stacked")

# %% [markdown] lang="en"
# ## A whole decoder layer
#
# It has three sub-layers: self-attention in which a token sees itself and what stands before it,
# cross-attention on the encoder's output $z$, and the feed-forward network. With three target
# tokens $Y$ and the matrices from above:

# %% [markdown] lang="zh"
# ## 完整的解码器层
#
# 它有三个子层：自注意力（每个词元只看自己和前面的词元）、对编码器输出 $z$ 的交叉注意力、前馈网络。
# 取三个目标词元 $Y$，矩阵仍用上面的：

# %%
decoder_layer = kformer.layers.DecoderLayer(intermediate_dim=8, num_heads=1, seed=4)
decoder_layer.build((None, None, 4), (None, None, 4))
own, cross = decoder_layer.self_attention, decoder_layer.cross_attention
own.query_key_value_kernel.assign(np.concatenate([WQ, WK, WV], axis=1))
cross.query_kernel.assign(WQ)
cross.key_value_kernel.assign(np.concatenate([WK, WV], axis=1))
for attention in (own, cross):
    attention.output_kernel.assign(np.eye(4))
W1 = ops.convert_to_numpy(decoder_layer.feed_forward.intermediate.kernel)
W2 = ops.convert_to_numpy(decoder_layer.feed_forward.output_projection.kernel)


def attend(queries, rows, mask):
    scores = np.where(mask, queries @ WQ @ (rows @ WK).T / 2, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return weights @ rows @ WV


Y = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [2, 0, 1, 0]], "float32")
a = norm(Y + attend(Y, Y, np.tril(np.ones((3, 3), bool))))
b = norm(a + attend(a, z, True))
c = norm(b + np.maximum(0, b @ W1) @ W2)
layer_output = decoder_layer(ops.convert_to_tensor(Y[None]), ops.convert_to_tensor(z[None]))
assert np.allclose(c, ops.convert_to_numpy(layer_output)[0], atol=1e-5)
print("decoder layer =", c, sep="\n")

# %% [markdown] lang="en"
# ## Layer norm and batch norm
#
# $$y = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# Mean and variance of layer norm are those of *one token's vector*; batch norm takes them for each
# dimension over *all tokens of the batch*. So under batch norm a sentence's numbers depend on its
# neighbours, padding included, and a batch of one differs from a batch of many. Epsilon stands
# *under* the root, beside the variance.

# %% [markdown] lang="zh"
# ## 层归一化与批归一化
#
# $$y = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# 层归一化的均值和方差取自*一个词元自己的向量*；批归一化则是对每个维度、取*整批所有词元*的均值和方
# 差。因此在批归一化下，一句话的结果会受同批其他句子（连同填充）影响，单句推理和整批推理也不一样。另
# 外注意 epsilon 在根号*里面*，加在方差上。

# %%
x = np.array([[2.0, 4.0, 6.0, 8.0]], "float32")
layer_norm = keras.layers.LayerNormalization(epsilon=1e-5)
assert np.allclose(ops.convert_to_numpy(layer_norm(x)), norm(x), atol=1e-5)
print("mean", x.mean(), "variance", x.var(), "normalised", norm(x)[0])

neighbours = {
    "the token alone with [0 0 0 0]": np.zeros((1, 4)),
    "with [9 9 9 9]": np.full((1, 4), 9),
}
for name, neighbour in neighbours.items():
    batch = np.concatenate([x, neighbour])
    batch_norm = (batch - batch.mean(0)) / np.sqrt(batch.var(0) + 1e-5)
    print(f"{name}: layer norm {norm(batch)[0]}, batch norm {batch_norm[0]}")

# %% [markdown] lang="en"
# ### Why epsilon and the scale matter in float16
#
# float16 ends at 65,504, and its smallest number is about $6 \cdot 10^{-8}$. A usual epsilon of
# $10^{-12}$ *is zero* there: for a vector whose numbers are all equal, zero is divided by zero. And
# the sum of 512 products of queries and keys overflows before it is divided by $\sqrt{d_k}$, where
# the same numbers, divided first, do not.

# %% [markdown] lang="zh"
# ### 半精度下的 epsilon 与缩放
#
# float16 最大到 65504，最小的正数约为 $6 \cdot 10^{-8}$。常见的 $10^{-12}$ 在这里*就等于 0*：如果一
# 个向量的各个数全都相等，就会出现零除以零。再看缩放：512 个乘积先求和、后除以 $\sqrt{d_k}$ 会溢出；
# 先除再求和就不会。

# %%
same = np.full(4, 3.0, "float16")
with np.errstate(invalid="ignore", over="ignore"):
    for epsilon in (1e-12, 1e-5):
        root = np.sqrt(same.var() + np.float16(epsilon))
        print(
            f"epsilon {epsilon} is {np.float16(epsilon)} in float16:", (same - same.mean()) / root
        )
    q = k = np.full(512, 12.0, "float16")
    print("scaled after the product:", (q * k).sum(dtype="float16") / np.float16(512**0.5))
    print("scaled before it:        ", (q / np.float16(512**0.5) * k).sum(dtype="float16"))
norm16 = keras.layers.LayerNormalization(epsilon=1e-5, dtype="float16")
print("the layer, in float16:   ", ops.convert_to_numpy(norm16(same[None]))[0])

# %% [markdown] lang="en"
# ## Why divide by $\sqrt{d_k}$?
#
# The scale does more than prevent overflow. Products of $d_k$ random numbers have a standard
# deviation of $\sqrt{d_k}$; without the scale the softmax of long vectors puts everything on one
# key, where it has no gradient.

# %% [markdown] lang="zh"
# ## 为什么要除以 $\sqrt{d_k}$？
#
# 缩放不只是为了防溢出。$d_k$ 个随机数的内积，标准差是 $\sqrt{d_k}$；如果不缩放，维度一大，softmax
# 就会把几乎全部权重压在一个键上，进入饱和区，梯度也就没了。

# %%
generator, sizes = np.random.default_rng(0), [1, 4, 16, 64, 256, 1024]
largest = {"divided by √d": [], "not divided": []}
for size in sizes:
    pairs = generator.normal(size=(500, 1, size)) * generator.normal(size=(500, 16, size))
    products = pairs.sum(-1)
    for name, values in zip(largest, (products / np.sqrt(size), products)):
        largest[name].append(ops.convert_to_numpy(ops.max(ops.softmax(values), axis=-1)).mean())
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, values in largest.items():
    axis.plot(sizes, values, marker="o", label=name)
axis.set(xscale="log", xlabel="size of a head", ylabel="largest weight", ylim=(0, 1))
axis.set_title("The largest of 16 attention weights")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 3. The largest weight of a row of 16 random keys, on average, as the heads grow. Without
# the scale it approaches one: the softmax is saturated.*

# %% [markdown] lang="zh"
# *图 3　16 个随机键中最大的那个权重（平均值）随头的维度变化。不缩放时它趋近于 1，softmax 已经饱
# 和。*

# %% [markdown] lang="en"
# ## ReLU or GELU
#
# The paper's feed-forward network cuts negative numbers off: $\mathrm{ReLU}(x) = \max(0, x)$,
# whose slope jumps from 0 to 1, and a unit that is negative for every token learns nothing more.
# GELU is $x$ times the share of a normal distribution below $x$: smooth, and with a slope on the
# negative side, too (`activation="gelu"`).

# %% [markdown] lang="zh"
# ## ReLU 与 GELU
#
# 论文的前馈网络把负数一律截成零：$\mathrm{ReLU}(x) = \max(0, x)$。它的斜率从 0 一下子跳到 1；
# 如果一个单元对所有词元都是负的，就再也学不到东西。GELU 是 $x$ 乘以标准正态分布在 $x$ 以下的概率：
# 处处光滑，负的一侧也有斜率（`activation="gelu"`）。

# %%
x = np.linspace(-4, 4, 201, dtype="float32")
figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for name in ("relu", "gelu"):
    values = ops.convert_to_numpy(keras.activations.get(name)(x))
    for axis, curve in zip(axes, (values, np.gradient(values, x))):
        axis.plot(x, curve, label=name)
for axis, title in zip(axes, ("value", "slope")):
    axis.set(title=title, xlabel="x")
    axis.grid(alpha=0.3)
    axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 4. Left: ReLU and GELU. Right: their slopes, by which gradients are multiplied.*

# %% [markdown] lang="zh"
# *图 4　左：ReLU 与 GELU。右：它们的斜率，梯度要乘上它。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - The formula has no positions in it yet: [positions](positions.ipynb).
# - The layer norm before or after the sub-layer: [norms_and_warmup](norms_and_warmup.ipynb).
# - A model of these layers that translates: [translation](translation.ipynb).
# - Keys and values that are kept, and attention to a window only:
#   [search_and_cache](search_and_cache.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 上面的公式里还没有位置信息：见[位置编码](positions.ipynb)。
# - 归一化放在子层之前还是之后：见[归一化与预热](norms_and_warmup.ipynb)。
# - 用这些层搭一个会翻译的模型：见[翻译](translation.ipynb)。
# - 把键和值缓存起来，或者只看一个窗口：见[缓存与搜索](search_and_cache.ipynb)。
