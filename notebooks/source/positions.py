# %% [markdown] lang="en"
# # Positions: seven ways to encode a token's position, and none
#
# **What it shows.** Attention sees a set: it needs to be told the order. We look at each way to do
# so (numbering, normalised numbering, sinusoids, learned vectors, RoPE, ALiBi, T5's bias), train
# all of them on one small task in which only the order counts, and then ask for longer inputs than
# they ever saw.
#
# **For whom.** You know what attention is ([attention_by_hand](attention_by_hand.ipynb)) and wonder
# which positions to choose, or which of the formulas on the web has the right sign.
#
# **Time.** About a minute on a CPU core.

# %% [markdown] lang="zh"
# # 位置编码：七种做法，外加“什么都不用”
#
# **内容。** 注意力看到的是一个集合，顺序必须另外告诉它。本篇逐一看各种做法（直接编号、归一化编号、
# 正弦编码、可学习向量、RoPE、ALiBi、T5 偏置），再让它们在同一个“只有顺序才有用”的小任务上训练，最
# 后考一考比训练时更长的输入（外推）。
#
# **适合谁。** 已经明白注意力怎么算（见[手算注意力](attention_by_hand.ipynb)），想知道位置编码该选哪
# 一种，或者想弄清网上那些公式到底哪个符号是对的。
#
# **用时。** 一个 CPU 核上约一分钟。

# %%
import keras
import matplotlib.pyplot as plt
import numpy as np
from keras import ops

import kformer
from kformer.layers import (
    EncoderLayer,
    alibi_slopes,
    relative_buckets,
    rotate_positions,
    sinusoidal_positions,
)
from kformer.plots import plot_similarity

keras.utils.set_random_seed(0)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## Attention sees a set
#
# 猫吃鱼 ("the cat eats the fish") and 鱼吃猫 ("the fish eats the cat") have the same three tokens.
# Without positions the vector of 猫 is the same in both: the layer cannot know who eats whom.

# %% [markdown] lang="zh"
# ## 注意力看到的是集合
#
# “猫吃鱼”和“鱼吃猫”由同样三个词元组成。没有位置信息时，“猫”在两句话里得到的向量一模一样：模型
# 不可能知道是谁吃谁。

# %%
cat, eats, fish = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
layer = EncoderLayer(16, 2, seed=0)
one = ops.convert_to_numpy(layer(np.stack([cat, eats, fish])[None]))[0]
other = ops.convert_to_numpy(layer(np.stack([fish, eats, cat])[None]))[0]
print("猫 in 猫吃鱼:", one[0].round(3))
print("猫 in 鱼吃猫:", other[2].round(3))
assert np.allclose(one, other[::-1], atol=1e-5)

# %% [markdown] lang="en"
# ## Absolute positions
#
# **Plain numbering** adds 0, 1, 2, … to the word vectors: large positions outweigh the words.
# **Normalised numbering** adds `position / length`: the same value means another position in each
# sentence. **Sinusoids** stay within [-1, 1] and mean the same in every sentence:
#
# $$PE_{pos, 2i} = \sin\left(pos \cdot 10000^{-2i/d}\right),
# \quad PE_{pos, 2i+1} = \cos\left(pos \cdot 10000^{-2i/d}\right)$$
#
# Which dimensions are fast? The factor $10000^{-2i/d}$ is 1 for $i = 0$ and shrinks as $i$ grows.
# So the dimensions with a *small* index oscillate fastest: they are the high frequencies and tell
# neighbours apart; those with a large index are the low ones. (Some tutorials have it the other way
# round; the wavelengths below settle it.)

# %% [markdown] lang="zh"
# ## 绝对位置
#
# **直接编号**把 0、1、2……加到词向量上：位置一大，词义就被淹没。**归一化编号**加的是“位置 / 句
# 长”：同一个数值在不同句子里指的不是同一个位置。**正弦编码**始终落在 [-1, 1] 内，在任何句子里含义
# 都一样：
#
# $$PE_{pos, 2i} = \sin\left(pos \cdot 10000^{-2i/d}\right),
# \quad PE_{pos, 2i+1} = \cos\left(pos \cdot 10000^{-2i/d}\right)$$
#
# 哪些维度变化快？系数 $10000^{-2i/d}$ 在 $i = 0$ 时等于 1，随 $i$ 增大而变小。所以下标*小*的维度振
# 荡最快，是高频，用来区分相邻位置；下标大的维度是低频，变化缓慢。（有的教程把“$i$ 小”写成低频、
# “$i$ 大”写成高频，正好说反了；看下面算出来的波长就清楚。）

# %%
table = ops.convert_to_numpy(sinusoidal_positions(ops.arange(64), 32))
for dimension in (0, 4, 8, 16, 30):
    wavelength = 2 * np.pi * 10000 ** (dimension / 32)
    print(f"dimension {dimension:2}: one period in {wavelength:8.1f} positions")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for dimension in (0, 4, 8, 16):
    left.plot(table[:, dimension], label=f"dimension {dimension}")
left.set(xlabel="position", ylabel="value", title="Low dimensions oscillate fastest")
left.legend(fontsize=8, loc="lower left")
shown = right.imshow(table.T, cmap="RdBu_r", aspect="auto", vmin=-1, vmax=1)
right.set(xlabel="position", ylabel="dimension", title="All 32 dimensions")
figure.colorbar(shown, ax=right, label="value")
plt.show()

# %% [markdown] lang="en"
# *Figure 1. Sinusoidal positions. Left: four of the dimensions. Right: all of them; a column is the
# vector of one position.*

# %% [markdown] lang="zh"
# *图 1　正弦位置编码。左：其中四个维度；右：全部 32 维，每一列就是一个位置的向量。*

# %% [markdown] lang="en"
# For every distance $k$ there is one rotation that shifts all positions by it, whatever the
# position:
#
# $$\begin{pmatrix} PE_{pos+k, 2i} \\ PE_{pos+k, 2i+1} \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} PE_{pos, 2i} \\ PE_{pos, 2i+1} \end{pmatrix},
# \qquad \omega_i = 10000^{-2i/d}$$
#
# So a linear map can find "three tokens before", wherever that is.

# %% [markdown] lang="zh"
# 对每个距离 $k$ 都存在一个固定的旋转，把任何位置的编码平移 $k$ 步，与 $pos$ 无关：
#
# $$\begin{pmatrix} PE_{pos+k, 2i} \\ PE_{pos+k, 2i+1} \end{pmatrix} =
# \begin{pmatrix} \cos k\omega_i & \sin k\omega_i \\ -\sin k\omega_i & \cos k\omega_i \end{pmatrix}
# \begin{pmatrix} PE_{pos, 2i} \\ PE_{pos, 2i+1} \end{pmatrix},
# \qquad \omega_i = 10000^{-2i/d}$$
#
# 因此一个线性变换就能表达“往前数三个词元”，不管现在在哪里。

# %%
angles = 7 * 10000.0 ** (-np.arange(16) / 16)
sines, cosines = table[:-7, 0::2], table[:-7, 1::2]
shifted = np.empty((57, 32))
shifted[:, 0::2] = sines * np.cos(angles) + cosines * np.sin(angles)
shifted[:, 1::2] = cosines * np.cos(angles) - sines * np.sin(angles)
assert np.allclose(shifted, table[7:], atol=1e-4)
print("PE(pos + 7) is PE(pos), rotated, at all of", len(shifted), "positions")
plot_similarity(table, title="Similarity of sinusoidal positions")

# %% [markdown] lang="en"
# *Figure 2. The cosine of each two position vectors. It depends on their distance alone, so the
# stripes are parallel, and near positions are alike.*

# %% [markdown] lang="zh"
# *图 2　任意两个位置向量的余弦相似度。它只取决于距离，所以条纹都与对角线平行；离得近的位置更相似。*

# %% [markdown] lang="en"
# ## RoPE: rotated queries and keys
#
# **RoPE** rotates each pair of numbers of a query at $m$ by the angle $m\theta$, and of a key at
# $n$ by $n\theta$, with the same counter-clockwise matrix
#
# $$R_m = \begin{pmatrix} \cos m\theta & -\sin m\theta \\ \sin m\theta & \cos m\theta \end{pmatrix},
# \qquad (R_m q)^\top (R_n k) = q^\top R_m^\top R_n \, k = q^\top R_{n-m} \, k.$$
#
# Signs go wrong easily. With *column* vectors, a query at $m$ and a key at $n$, it is $R_{n-m}$
# that stands between them, since $R_m^\top = R_{-m}$. With *row* vectors it is
# $(q R_m)(k R_n)^\top = q R_{m-n} \, k^\top$. Either will do, but a derivation must not mix them,
# nor a clockwise matrix with a counter-clockwise one. What counts: the product depends on the
# distance alone.

# %% [markdown] lang="zh"
# ## RoPE：旋转查询和键
#
# **RoPE** 把位置 $m$ 的查询两两一组旋转 $m\theta$ 角，把位置 $n$ 的键旋转 $n\theta$ 角，用的是同一
# 个逆时针旋转矩阵：
#
# $$R_m = \begin{pmatrix} \cos m\theta & -\sin m\theta \\ \sin m\theta & \cos m\theta \end{pmatrix},
# \qquad (R_m q)^\top (R_n k) = q^\top R_m^\top R_n \, k = q^\top R_{n-m} \, k$$
#
# 这里最容易弄错符号。写成*列*向量、查询在 $m$、键在 $n$ 时，由 $R_m^\top = R_{-m}$ 知夹在中间的是
# $R_{n-m}$；写成*行*向量则是 $(q R_m)(k R_n)^\top = q R_{m-n} \, k^\top$。两种写法都行，但同一份推
# 导里不能混用，更不能前面用逆时针矩阵、后面又换成顺时针的。真正要紧的只有一句：内积只取决于距离。


# %%
def R(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


q, k = np.array([1.0, 0.5]), np.array([0.3, -1.0])
for m, n in ((5, 3), (105, 103), (3, 5)):
    by_layer = [
        ops.convert_to_numpy(rotate_positions(x.reshape(1, 1, 1, 2).astype("float32"), [at]))
        for x, at in ((q, m), (k, n))
    ]
    product = (R(m) @ q) @ (R(n) @ k)
    assert np.isclose(product, q @ R(n - m) @ k)
    assert np.isclose(product, (by_layer[0] * by_layer[1]).sum(), atol=1e-4)
    wrong = q @ R(m - n) @ k
    print(f"query at {m:3}, key at {n:3}: q·k = {product:7.4f}   with R(m-n): {wrong:7.4f}")

# %% [markdown] lang="en"
# ## ALiBi and T5: a bias on the scores
#
# **ALiBi** subtracts from each score the distance times a slope, another one for each head
# ($2^{-8h/n}$). **T5's bias** learns a number for each distance and head; far distances share
# theirs. Why one for each head? A head with a steep slope reads neighbours, one with a flat slope
# the whole sentence; with one bias for all, every head would look equally far.

# %% [markdown] lang="zh"
# ## ALiBi 与 T5：直接给分数加偏置
#
# **ALiBi** 从每个分数里减去“距离 × 斜率”，每个头的斜率不同（$2^{-8h/n}$）。**T5 偏置**为每个距
# 离、每个头学一个数，距离远的共用一个（分桶）。为什么每个头要各有一套？斜率陡的头只看近处，斜率平的
# 头能看到整句；如果所有头共用一个偏置，大家看得一样远，多头就白分了。

# %%
distance = np.arange(-40, 41)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for head, slope in enumerate(alibi_slopes(4)):
    left.plot(distance, -slope * np.abs(distance), label=f"head {head + 1}")
left.set(title="ALiBi", xlabel="distance of key and query", ylabel="added to the score")
left.legend(fontsize=8)
right.step(distance, ops.convert_to_numpy(relative_buckets(ops.convert_to_tensor(distance))))
right.set(title="T5", xlabel="distance of key and query", ylabel="number of the bucket")
for axis in (left, right):
    axis.grid(alpha=0.3)
plt.show()

# %% [markdown] lang="en"
# *Figure 3. Left: ALiBi's bias for four heads. Right: T5's buckets; near distances have one each,
# far ones share.*

# %% [markdown] lang="zh"
# *图 3　左：ALiBi 给四个头的偏置。右：T5 的分桶，近处一个距离一个桶，远处许多距离共用一个桶。*

# %% [markdown] lang="en"
# ## One task for all
#
# For each position of a random sequence: which token is *two positions before*? Tokens alone do not
# help; only positions do. All models have two causal layers and learn from sequences of 24 tokens.
# (A causal mask by itself carries a little information about positions: the first token sees one
# token, the next one two. And without it ALiBi could not distinguish before from after.)

# %% [markdown] lang="zh"
# ## 同一个任务
#
# 给一串随机词元，对每个位置回答：*往前数两个*是哪个词元？词元本身帮不上忙，只有位置有用。所有模型都
# 是两层因果注意力，都在长度 24 的序列上训练。（因果掩码本身也带一点位置信息：第一个词元只看得到一个
# 词元，第二个看得到两个。而且没有它，ALiBi 分不出前和后。）

# %%
generator, VOCABULARY, LONGEST = np.random.default_rng(0), 12, 24


def draw(rows, length):
    ids = generator.integers(1, VOCABULARY, (rows, length)).astype("int32")
    labels = np.concatenate([np.full((rows, 2), -1, "int32"), ids[:, :-2]], axis=1)
    return ids, labels


models = {
    name: kformer.TransformerDecoder(
        VOCABULARY,
        num_layers=2,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=4,
        max_length=96,
        position_encoding=encoding,
        share_output=False,
    )
    for name, encoding in {
        "none": None,
        "sinusoidal": "sinusoidal",
        "learned": "learned",
        "RoPE": "rope",
        "ALiBi": "alibi",
        "T5": "t5",
    }.items()
}

# %% [markdown] lang="en"
# The two numberings, which are not in use any more, are built from the same layers.

# %% [markdown] lang="zh"
# 两种编号现在已经没人用了，就拿同样的层临时搭出来。

# %%
for name, divides in (("numbered", False), ("normalised", True)):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    ones = ops.ones_like(ops.expand_dims(ids, -1), dtype="float32")
    positions = ops.cumsum(ones, axis=1)
    numbers = (positions - 1) / (ops.sum(ones, axis=1, keepdims=True) if divides else 1.0)
    causal = ops.less_equal(ops.transpose(positions, (0, 2, 1)), positions)
    x = keras.layers.Embedding(VOCABULARY, 32)(ids) * 32**0.5 + numbers
    for number in range(2):
        x = EncoderLayer(64, 4, normalize_first=True, seed=number)(x, attention_mask=causal)
    logits = keras.layers.Dense(VOCABULARY)(keras.layers.LayerNormalization()(x))
    models[name] = keras.Model({"token_ids": ids}, logits)

# %%
batches = [draw(64, LONGEST) for _ in range(40)]
train_ids, train_labels = (np.concatenate(parts) for parts in zip(*batches))
tests = {length: draw(64, length) for length in (12, 24, 36, 48, 96)}
found = {}
for name, model in models.items():
    model.compile(keras.optimizers.Adam(0.005), kformer.MaskedCrossentropy(pad_id=-1))
    model.fit(
        {"token_ids": train_ids}, train_labels, batch_size=64, epochs=3, verbose=0, shuffle=False
    )
    found[name] = []
    for ids, labels in tests.values():
        best = model.predict({"token_ids": ids}, verbose=0, batch_size=64).argmax(-1)
        found[name].append((best == labels)[:, 2:].mean())
    print(f"{name:12} right at 24: {found[name][1]:4.0%}  right at 96: {found[name][-1]:4.0%}")

# %% [markdown] lang="en"
# ## Longer than in training
#
# To the right of the dashed line, sequences are longer than any in training. Whatever solved the
# task loses there, absolute encodings first: they meet positions that training never showed. T5's
# bias holds best, since far distances share a number that was trained. RoPE lies between: keys
# far away come at angles of the slow pairs that training never showed. So its periods do not make
# every length safe, and in language models on long texts its quality falls unless the base is
# changed. ALiBi does not solve this task: "near is more important" identifies no single position.
# But what it does, it does at all lengths.

# %% [markdown] lang="zh"
# ## 外推：比训练时更长
#
# 虚线右边，是训练时从没见过的长度。凡是学会了这个任务的，到这里都会退步，绝对编码退得最早：它们遇
# 到了没训练过的位置。T5 偏置最稳，因为远处的距离共用训练过的那几个数。RoPE 居中：离得远的键，在慢的
# 那些维度上会转到训练中没出现过的角度。可见“旋转有周期，所以多长都能外推”这个说法不可靠；语言模型在
# 长文本上若不调整底数，质量也确实会下降。ALiBi 没学会这个任务：“越近越重要”说不清具体是哪一个位置；
# 不过它做得到的，在任何长度上都做得到。

# %%
figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
for name, accuracy in found.items():
    axis.plot(list(tests), accuracy, marker="o", label=name)
axis.axvline(LONGEST, color="grey", linestyle="--")
axis.text(LONGEST + 0.7, 1.03, "longest in training", color="grey")
axis.set(xlabel="length of the input", ylabel="share of right answers", ylim=(0, 1.1))
axis.set_title("Which token is two positions before?")
axis.grid(alpha=0.3)
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown] lang="en"
# *Figure 4. Right answers by length of the input, for each kind of positions. Guessing gives one in
# eleven.*

# %% [markdown] lang="zh"
# *图 4　各种位置编码在不同输入长度下的正确率。随机猜测的正确率是 1/11。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - The argument is `position_encoding`, of `Transformer`, `TransformerEncoder` and
#   `TransformerDecoder` alike: [translation](translation.ipynb) has a whole model.
# - Long inputs cost time as well: windows and linear attention are in
#   [search_and_cache](search_and_cache.ipynb).
# - Numbers instead of tokens, with positions: [forecasting](forecasting.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 参数名是 `position_encoding`，`Transformer`、`TransformerEncoder`、`TransformerDecoder` 通用；完
#   整的模型见[翻译](translation.ipynb)。
# - 输入一长，时间和内存也是问题：窗口注意力与线性注意力见[缓存与搜索](search_and_cache.ipynb)。
# - 把词元换成数值序列：见[序列预测](forecasting.ipynb)。
