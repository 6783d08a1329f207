# %% [markdown] lang="en"
# # Translation: from pairs of sentences to a served model
#
# **What it shows.** The whole way: pairs of sentences, a tokenizer, batches, a small
# encoder-decoder Transformer trained with `model.fit`, its learning curves, beam search, attention,
# and one SavedModel that takes strings and returns strings.
#
# **For whom.** You want a translator, or another model that turns one sequence into another. You
# know a little Keras.
#
# **Time.** About a minute on a CPU core, on TensorFlow, JAX or PyTorch (`KERAS_BACKEND`).

# %% [markdown] lang="zh"
# # 翻译：从句对到可部署的模型
#
# **内容。** 完整走一遍：准备句对、训练分词器、组批次，用 `model.fit` 训练一个小型的编码器—解码器
# Transformer，看学习曲线，做集束搜索，画注意力，最后导出成一个“字符串进、字符串出”的 SavedModel。
#
# **适合谁。** 想做翻译，或者任何“一个序列变另一个序列”任务的人；会一点 Keras 就行。
#
# **用时。** 一个 CPU 核上约一分钟，TensorFlow、JAX、PyTorch 都可以（由 `KERAS_BACKEND` 选择）。

# %%
import pathlib
import tempfile

import keras
import matplotlib.pyplot as plt
import numpy as np

import kformer
from kformer.plots import attention_maps, plot_attention

keras.utils.set_random_seed(0)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## The data
#
# The pairs are generated: English times of day, as people write them, and their Chinese. The
# held-out split has values that never occur in training. For your own text, read two files with as
# many lines instead, one sentence a line.

# %% [markdown] lang="zh"
# ## 数据
#
# 句对是自动生成的：英语里各种写法的时刻，和对应的中文。留出集里的时刻在训练集中从未出现过。换成自己
# 的数据时，读两个行数相同的文本文件即可，一行一句。

# %%
pairs = kformer.examples.generate_pairs(20_000, seed=0, categories=["time"])
held_out = kformer.examples.generate_pairs(200, seed=1, split="test", categories=["time"])
for pair in pairs[:5]:
    print(f"{pair.source:45} {pair.target}")

# %% [markdown] lang="en"
# ## Tokenizer and batches
#
# SentencePiece segments text into subwords, each with a number. The dataset sorts pairs into a few
# shapes by length and shifts the target once: the decoder reads *start, y1, y2, …* and must
# predict *y1, y2, …, end*. So in training it always reads the true tokens before a position, not
# its own guesses (teacher forcing), and all positions are learnt at once; the causal mask hides the
# answers.

# %% [markdown] lang="zh"
# ## 分词器与批次
#
# SentencePiece 把文本切成子词，每个子词一个编号。数据集按长度把句对归入少数几种形状（分桶），并把目
# 标句右移一位：解码器读的是“start, y1, y2, …”，要预测的是“y1, y2, …, end”。训练时它读到的总是
# 前面的正确词元，而不是自己猜的（教师强制），因此所有位置可以一次算完；答案由因果掩码遮住。

# %%
sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
tokenizer = kformer.Tokenizer.train(texts=sources[:4000] + targets[:4000], vocabulary_size=420)
train = kformer.data.ParallelDataset(
    sources, targets, tokenizer, batch_tokens=2048, seed=0, max_shapes=3
)
valid = kformer.data.ParallelDataset(
    [pair.source for pair in held_out],
    [pair.target for pair in held_out],
    tokenizer,
    batch_tokens=1024,
    shuffle=False,
    max_shapes=1,
)
print(train.summary())
print(tokenizer.tokens(tokenizer.tokenize("half past four in the afternoon")))
inputs, labels = train.batch_at(0)
length = (labels[0] != 0).sum()
print("decoder reads:   ", tokenizer.tokens(inputs["target_ids"][0][:length].tolist()))
print("it must predict: ", tokenizer.tokens(labels[0][:length].tolist()))

# %% [markdown] lang="en"
# ## The model
#
# A table has one vector for each subword: a one-hot vector times a matrix would give the same, at
# the price of a product with the whole vocabulary. The vectors times √d plus sinusoidal positions
# go through an encoder and a decoder layer. The same table, transposed, turns the last vectors
# into logits: source, target and output share it. The loss is the cross-entropy of each next token;
# padding does not count.

# %% [markdown] lang="zh"
# ## 模型
#
# 词嵌入表给每个子词一个向量：它和“独热向量乘以矩阵”结果相同，只是不必真去和整个词表相乘。词向量乘
# 以 √d，加上正弦位置编码，经过一层编码器和一层解码器；最后用同一张表的转置把向量变成 logits——源端、
# 目标端和输出共用一张表。损失是每个位置上“下一个词元”的交叉熵，填充不计入。

# %%
model = kformer.Transformer(
    tokenizer.vocabulary_size,
    num_encoder_layers=1,
    num_decoder_layers=1,
    hidden_dim=64,
    intermediate_dim=128,
    num_heads=4,
    dropout=0.0,
    max_length=48,
)
model.compile(
    optimizer=keras.optimizers.Adam(
        kformer.WarmupInverseSqrt(model.hidden_dim, warmup_steps=100), beta_2=0.98, epsilon=1e-9
    ),
    loss=kformer.MaskedCrossentropy(),
    metrics=[kformer.MaskedAccuracy(), kformer.NegativeLogLikelihood()],
)
history = model.fit(train, validation_data=valid, epochs=3, verbose=0).history
for epoch, (nll, accuracy) in enumerate(zip(history["val_nll"], history["val_accuracy"]), 1):
    print(f"epoch {epoch}: held-out nll {nll:.3f}, accuracy {accuracy:.1%}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
epochs = range(1, 4)
for axis, name, label in ((left, "nll", "nats per token"), (right, "accuracy", "share")):
    axis.plot(epochs, history[name], marker="o", label="training")
    axis.plot(epochs, history["val_" + name], marker="o", label="held out")
    axis.set(xlabel="epoch", ylabel=label, title=name, xticks=epochs)
    axis.grid(alpha=0.3)
    axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 1. Learning curves. Left: negative log-likelihood of a token. Right: the share of tokens
# whose most probable prediction is right, given the true tokens before.*

# %% [markdown] lang="zh"
# *图 1　学习曲线。左：每个词元的负对数似然。右：在前文都正确的条件下，概率最大的预测恰好正确的词元
# 比例。*

# %% [markdown] lang="en"
# ## Translating
#
# Now nobody gives the true tokens: each generated token is read in the next step. A beam search
# with a cache of keys and values finds the text. Exact matches on held-out times:

# %% [markdown] lang="zh"
# ## 翻译
#
# 这时没有人再提供正确答案了：每生成一个词元，下一步就把它读进去。集束搜索配合 KV 缓存来找译文。下面
# 看留出集上完全正确的比例：

# %%
translator = kformer.Translator(model, tokenizer)
found = translator([pair.source for pair in held_out], beam_size=4)
exact = sum(text == pair.target for text, pair in zip(found, held_out)) / len(held_out)
print(f"{exact:.1%} of {len(held_out)} held-out times are exactly right")
for pair, text in list(zip(held_out, found))[:8]:
    print(f"{pair.source:45} {text:12} {'✓' if text == pair.target else '✗ ' + pair.target}")

# %% [markdown] lang="en"
# ## Where it looks
#
# The cross-attention of the last layer, from one real forward pass: row by row, which source pieces
# the model attended to when it predicted a target piece. Each row sums to one.

# %% [markdown] lang="zh"
# ## 它在看哪里
#
# 下面是最后一层的交叉注意力，来自一次真实的前向计算：每一行表示模型预测某个目标子词时，看了源句的哪
# 些子词。每行之和为 1。

# %%
maps = attention_maps(translator, "twenty-five minutes past eight in the evening")
plot_attention(maps, layers=[-1], heads=[0, 1], title="Cross-attention of the last layer")

# %% [markdown] lang="en"
# *Figure 2. Two of the four heads of the last decoder layer.*

# %% [markdown] lang="zh"
# *图 2　解码器最后一层四个头中的两个。*

# %% [markdown] lang="en"
# ## Shipping it
#
# One folder, strings in and strings out, for TensorFlow Serving or `tf.saved_model.load`; neither
# Keras nor kformer is needed to load it. Its texts are those of the translator.

# %% [markdown] lang="zh"
# ## 导出
#
# 导出的结果是一个文件夹，字符串进、字符串出，可以交给 TensorFlow Serving，也可以直接
# `tf.saved_model.load`；加载时既不需要 Keras，也不需要 kformer。译文与上面的 translator 完全相同。

# %%
folder = pathlib.Path(tempfile.mkdtemp())
print("exported as version", translator.export(folder / "times", beam_size=4).name)
served = kformer.export.SavedModelTranslator(folder / "times")
texts = [pair.source for pair in held_out[:50]]
assert served(texts) == translator(texts, beam_size=4)
print(served(["half past four in the afternoon", "7:05 am", ""]))

# %% [markdown] lang="en"
# ## Label smoothing
#
# The loss of a token is $-\log p$: it falls for ever as the model grows surer. Label smoothing of
# 0.1 asks for 0.9 of the probability at the right token and spreads the rest over the vocabulary
# of $V$ tokens: $-\sum_v q_v \log p_v$ with $q = 0.9 + 0.1/V$ there and $0.1/V$ elsewhere. Then a
# model that is too sure pays for it.

# %% [markdown] lang="zh"
# ## 标签平滑
#
# 一个词元的损失是 $-\log p$：模型越有信心，损失越低，没有止境。0.1 的标签平滑只要求正确的词元占
# 0.9，其余平摊给词表里的 $V$ 个词元：$-\sum_v q_v \log p_v$，正确处 $q = 0.9 + 0.1/V$，别处
# $q = 0.1/V$。过分自信就要付出代价。

# %%
p, V = np.linspace(0.02, 0.9999, 200), 32
log_probs = np.repeat(np.log((1 - p) / (V - 1))[:, None], V, axis=1)
log_probs[:, 3] = np.log(p)
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for smoothing in (0.0, 0.1):
    q = np.full(V, smoothing / V)
    q[3] += 1 - smoothing
    losses = -log_probs @ q
    of_keras = kformer.MaskedCrossentropy(label_smoothing=smoothing)
    logits = log_probs[None, -1:].astype("float32")
    assert np.isclose(float(of_keras(np.array([[3]]), logits)), losses[-1], atol=1e-4)
    axis.plot(p, losses, label=f"label smoothing {smoothing}")
    print(f"label smoothing {smoothing}: lowest loss at a probability of {p[losses.argmin()]:.2f}")
axis.set(xlabel="probability of the right token", ylabel="loss", ylim=(0, None))
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 3. The loss of one token. With label smoothing it is lowest near 0.9 and rises again.*

# %% [markdown] lang="zh"
# *图 3　一个词元的损失。有标签平滑时，最低点在 0.9 附近，再往右又会升高。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - Every number of one attention: [attention_by_hand](attention_by_hand.ipynb).
# - Greedy, beam and sampling, and what the cache saves: [search_and_cache](search_and_cache.ipynb).
# - The learning rate and the place of the norms: [norms_and_warmup](norms_and_warmup.ipynb).
# - The same model on three libraries: [backend_switching](backend_switching.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 把一个注意力的每个数字都算出来：见[手算注意力](attention_by_hand.ipynb)。
# - 贪心、集束、采样，以及缓存省了多少：见[缓存与搜索](search_and_cache.ipynb)。
# - 学习率怎么升、归一化放哪里：见[归一化与预热](norms_and_warmup.ipynb)。
# - 同一个模型跑在三种框架上：见[后端切换](backend_switching.ipynb)。
