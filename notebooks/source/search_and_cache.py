# %% [markdown] lang="en"
# # KV cache and search
#
# **What it shows.** A decoder generates one token after the other. Here: how much the cache of keys
# and values saves, what windows and linear attention do for long texts, and what greedy search,
# beam search and sampling find with the same model.
#
# **For whom.** You generate text and want it faster, or want to know which search to choose.
#
# **Time.** About a minute on a CPU core. The times in figure 2 are those of the machine that ran
# the notebook; yours differ, the shapes of the curves do not.

# %% [markdown] lang="zh"
# # KV 缓存与搜索
#
# **内容。** 解码器一次只生成一个词元。本篇看三件事：缓存键和值（KV cache）能省多少；文本很长时，窗
# 口注意力和线性注意力有什么用；同一个模型，贪心搜索、集束搜索和采样分别能找到什么。
#
# **适合谁。** 想让生成更快的人，或者不知道该选哪种搜索的人。
#
# **用时。** 一个 CPU 核上约一分钟。图 2 中的时间是运行本篇那台机器上测的，换一台机器数字会变，曲线
# 的形状不会变。

# %%
import time

import keras
import matplotlib.pyplot as plt
import numpy as np

import kformer
from kformer.layers import MultiHeadAttention, window_mask
from kformer.plots import font_families

keras.utils.set_random_seed(0)
print("backend:", keras.backend.backend())

# %% [markdown] lang="en"
# ## With and without a cache
#
# Take "我是中国人", generated character by character. Without a cache the model reads 我, then 我
# 是, then 我是中, and computes the keys and values of 我 each time anew. With a cache only the new
# token runs; keys and values of the others are kept. Queries need no cache: only the newest one is
# ever used. (The weights are random: only time and memory count here. Without a cache the time is
# that of the last token, with it the mean of all tokens up to this length.)

# %% [markdown] lang="zh"
# ## 有缓存与无缓存
#
# 设想逐字生成“我是中国人”。没有缓存时，模型先读“我”，再读“我是”，再读“我是中”……“我”的键
# 和值每一步都要重算一遍。有了缓存，每一步只算新来的那个词元，之前的键和值直接取用。查询不必缓存，因
# 为只有最新的那个查询才用得上。（这里权重是随机的，只关心时间和内存。“无缓存”画的是生成最后一个词
# 元的时间，“有缓存”画的是到这个长度为止的平均时间。）

# %%
writer = kformer.TransformerDecoder(
    1000, num_layers=4, hidden_dim=128, intermediate_dim=256, num_heads=4, max_length=600, end_id=1
)


def fastest(function, repeats):
    """Seconds of the fastest of some calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def without_cache(length):
    ids = np.full((1, length), 5, "int32")
    # The first call may compile.
    return fastest(lambda: writer.predict_on_batch({"token_ids": ids}), repeats=4)


def with_cache(length):
    # No text ends early, since the end token is forbidden.
    options = {"max_new_tokens": length, "forbidden_ids": [writer.end_id]}
    return fastest(lambda: writer.generate([[5, 6, 7]], **options), repeats=1) / length


lengths = [16, 128, 256, 512]
seconds = {
    "without a cache": [without_cache(length) for length in lengths],
    "with a cache": [with_cache(length) for length in (16, *lengths)][1:],  # The first may compile.
}
without, cached = (1e3 * values[-1] for values in seconds.values())
print(f"a token of {lengths[-1]}: {without:.0f} ms without a cache, {cached:.0f} ms with one")

# %% [markdown] lang="en"
# ## Long texts: windows and linear attention
#
# Each of $n$ queries meets each of $n$ keys: the scores are a table of $n^2$ numbers, and the cache
# grows with every token. Two ways out. *Local attention*: a query sees the keys in a window around
# it, and perhaps some global tokens at the start. *Linear attention*: a feature map replaces the
# softmax, so that sums over keys can be kept instead of the keys. Both cost as much per token at
# the end of a text as at its beginning.

# %% [markdown] lang="zh"
# ## 长文本：窗口注意力与线性注意力
#
# $n$ 个查询要和 $n$ 个键两两相遇：分数表有 $n^2$ 个数，缓存也随词元数不断变大。有两条出路。*局部
# （窗口）注意力*：一个查询只看附近一个窗口里的键，必要时开头再留几个全局词元。*线性注意力*：用特征
# 映射代替 softmax，于是只要保存对键求的和，不必保存键本身。这两种做法，写到文末时每个词元的代价与开
# 头时一样。

# %%
masks = {
    "full (causal)": window_mask(16, 16, 16, is_causal=True),
    "window of 3": window_mask(16, 16, 3, is_causal=True),
    "window of 3, one global token": window_mask(16, 16, 3, global_tokens=1, is_causal=True),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), sharey=True, layout="constrained")
for axis, (name, mask) in zip(axes, masks.items()):
    mask = keras.ops.convert_to_numpy(mask)
    axis.imshow(mask, cmap="Blues", vmin=0, vmax=1.4)
    axis.set(title=f"{name}: {mask.sum()} scores", xlabel="key")
    axis.title.set_fontsize(10)
axes[0].set_ylabel("query")
plt.show()

# %% [markdown] lang="en"
# *Figure 1. Which keys a query sees, at 16 tokens. In a stack of layers a window reaches further
# with every layer.*

# %% [markdown] lang="zh"
# *图 1　长度 16 时每个查询能看到的键。多层叠起来，每加一层，窗口能触及的范围就更远一些。*


# %%
def cache_sizes(**options):
    """KiB of one layer's cache after each of the lengths."""
    attention = MultiHeadAttention(4, seed=0, **options)
    attention.build((None, None, 128))
    sizes = []
    for length in lengths:
        text = keras.ops.ones((1, length, 128))
        _, cache = attention(text, cache=attention.init_cache(1), use_causal_mask=True)
        arrays = [keras.ops.convert_to_numpy(part) for part in cache]
        sizes.append(sum(array.nbytes for array in arrays) / 1024)
    return sizes


kib = {
    "full": cache_sizes(),
    "window of 32": cache_sizes(kind="local", window=32),
    "linear": cache_sizes(kind="linear"),
}
for name, sizes in kib.items():
    print(f"{name:12}", " ".join(f"{size:6.0f} KiB" for size in sizes))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for name, values in seconds.items():
    left.plot(lengths, 1e3 * np.array(values), marker="o", label=name)
left.set(title="Time of one token", xlabel="tokens so far", ylabel="ms", ylim=(0, None))
for name, sizes in kib.items():
    right.plot(lengths, sizes, marker="o", label=name)
right.set(title="Cache of one layer", xlabel="tokens so far", ylabel="KiB", ylim=(0, None))
for axis in (left, right):
    axis.grid(alpha=0.3)
    axis.legend()
plt.show()

# %% [markdown] lang="en"
# *Figure 2. Left: without a cache the time of one token grows with the text, with one it hardly
# does. On short texts this small model gains nothing: a step of the search has costs of its own.
# Right: what the cache takes in memory, per layer, for a hidden size of 128. The full one has 2 ×
# 128 × 4 bytes a token.*

# %% [markdown] lang="zh"
# *图 2　左：没有缓存，文本越长，生成一个词元越慢；有缓存则几乎不变。文本很短时，这么小的模型占不到
# 便宜：搜索的每一步本身也有开销。右：代价是内存（每层，隐藏维度 128）。完整缓存每个词元占
# 2 × 128 × 4 字节。*

# %% [markdown] lang="en"
# ## A small translator
#
# English times of day to Chinese, trained for a few seconds: long enough to be right often, short
# enough to be unsure at times.

# %% [markdown] lang="zh"
# ## 一个小翻译模型
#
# 把英语的时刻译成中文，只训练几秒钟：足够让它常常答对，又不至于每次都十分确定。

# %%
pairs = kformer.examples.generate_pairs(12_000, seed=0, categories=["time"])
sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
tokenizer = kformer.Tokenizer.train(texts=sources[:4000] + targets[:4000], vocabulary_size=420)
train = kformer.data.ParallelDataset(
    sources, targets, tokenizer, batch_tokens=1024, seed=0, max_shapes=2
)
model = kformer.Transformer(
    tokenizer.vocabulary_size,
    num_encoder_layers=2,
    num_decoder_layers=2,
    hidden_dim=64,
    intermediate_dim=128,
    num_heads=4,
    dropout=0.0,
    max_length=48,
)
model.compile(
    keras.optimizers.Adam(kformer.WarmupInverseSqrt(64, warmup_steps=200), beta_2=0.98),
    kformer.MaskedCrossentropy(),
)
losses = model.fit(train, epochs=2, verbose=0).history["loss"]
print("loss of each epoch:", np.round(losses, 2))
translator = kformer.Translator(model, tokenizer)

# %% [markdown] lang="en"
# ## Greedy, beam, sampling
#
# *Greedy search* takes the most probable token at each step. A *beam* keeps several hypotheses and
# can find a text that is more probable as a whole. *Sampling* draws each token by its probability:
# a temperature below 1 sharpens the distribution, top-k keeps the k most probable tokens, top-p
# (nucleus) the fewest whose probabilities reach p. A translation wants the beam; a story wants
# samples.

# %% [markdown] lang="zh"
# ## 贪心、集束、采样
#
# *贪心搜索*每一步都取概率最大的词元。*集束搜索*同时保留几条候选，能找到整体概率更高的句子。*采样*按
# 概率随机取词：温度小于 1 会让分布更尖；top-k 只留概率最大的 k 个；top-p（核采样）只留累计概率达到
# p 的最少几个。翻译适合用集束，写故事适合用采样。

# %%
texts = ["half past four in the afternoon", "a quarter to nine in the morning", "7:05 am"]
ways = {
    "greedy": {"beam_size": 1},
    "beam of 4": {"beam_size": 4},
    "sampling": {"sampling": True, "seed": 1},
    "temperature 0.3": {"sampling": True, "temperature": 0.3, "seed": 1},
    "top-k, k = 5": {"sampling": True, "top_k": 5, "seed": 1},
    "top-p, p = 0.9": {"sampling": True, "top_p": 0.9, "seed": 1},
}
for name, options in ways.items():
    print(f"{name:16}", "  ".join(translator(texts, **options)))

# %% [markdown] lang="en"
# ## The beam as a tree
#
# The eight best hypotheses of one search share prefixes. Greedy search would have followed one
# path.

# %% [markdown] lang="zh"
# ## 把集束画成一棵树
#
# 一次搜索得到的八条最优候选，前缀大多相同。贪心搜索只会走其中一条路。

# %%
text = "twenty-one minutes past eleven in the evening"
[translation] = translator.translate([text], beam_size=8, n_best=8)
# Two hypotheses may be one text in two segmentations; the better one comes first.
found = {item.text: item.score for item in reversed(translation.hypotheses)}
rows = {path: -number for number, path in enumerate(sorted(found))}
nodes = sorted({path[:end] for path in found for end in range(len(path) + 1)})
height = {
    node: np.mean([row for path, row in rows.items() if path.startswith(node)]) for node in nodes
}
best = max(found, key=found.get)
with plt.rc_context({"font.family": font_families(list(found))}):
    figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
    for node in nodes[1:]:
        ends = [len(node) - 1, len(node)], [height[node[:-1]], height[node]]
        axis.plot(*ends, color="crimson" if best.startswith(node) else "lightgrey", zorder=1)
        circle = {"boxstyle": "circle", "facecolor": "white", "edgecolor": "grey"}
        axis.text(len(node), height[node], node[-1], ha="center", va="center", bbox=circle)
    for path, score in found.items():
        color = "crimson" if path == best else "black"
        axis.text(len(path) + 0.5, height[path], f"{score:.2f}", va="center", color=color)
    axis.text(0, height[""], "start", ha="center", va="center", bbox={"facecolor": "white"})
    axis.set(title=text, xlim=(-0.5, max(map(len, found)) + 1.5), xlabel="characters so far")
    axis.yaxis.set_visible(False)
    axis.spines[["left", "right", "top"]].set_visible(False)
    plt.show()

# %% [markdown] lang="en"
# *Figure 3. The hypotheses of a beam of eight, character by character; a text in two segmentations
# is drawn once. A number is the log-probability of the whole text; the best is red.*

# %% [markdown] lang="zh"
# *图 3　宽度为 8 的集束里的各条候选，逐字展开；同一段文字若有两种切分，只画一次。数字是整句的对数概
# 率，红色是最好的一条。*

# %% [markdown] lang="en"
# ## Where to go on
#
# - The same search inside a SavedModel: [translation](translation.ipynb).
# - Where keys, queries and masks come from: [attention_by_hand](attention_by_hand.ipynb).
# - Longer inputs than in training: [positions](positions.ipynb).

# %% [markdown] lang="zh"
# ## 接下来看什么
#
# - 把同样的搜索装进 SavedModel：见[翻译](translation.ipynb)。
# - 查询、键和掩码是怎么来的：见[手算注意力](attention_by_hand.ipynb)。
# - 输入比训练时更长会怎样：见[位置编码](positions.ipynb)。
