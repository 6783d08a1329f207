# %% [markdown] lang="en"
# # Documents, terms and doubts
#
# **What it shows.** A model translates sentences; people have pages. Here a small translator gets
# paragraphs, a web page, subtitles, messages, a Word document and the files of applications. Their
# structure stays, placeholders come out as they went in, a glossary is kept, and each word tells
# how sure the model is of it.
#
# **For whom.** You have a trained model and real text.
#
# **Time.** Half a minute on a CPU core.

# %% [markdown] lang="zh"
# # 整篇翻译、术语与置信度
#
# **内容。** 模型只会译句子，而人手里的是整篇的东西。本篇让一个小翻译模型处理段落、网页、字幕、界面
# 文案、Word 文档和应用程序的文案文件：结构不变，占位符原样保留，术语按表翻译，模型对每个词的置信
# 度也能看到。
#
# **适合谁。** 已经训练好模型、要翻译真实文本的人。
#
# **用时。** 一个 CPU 核上约半分钟。

# %%
import io
import zipfile

import keras
import matplotlib.pyplot as plt

import kformer
from kformer.documents import Glossary, split_sentences, translate_document
from kformer.plots import font_families

keras.utils.set_random_seed(0)
plt.rcParams["font.family"] = font_families("早上")

# %% [markdown] lang="en"
# ## A small translator
#
# It translates times of day into Chinese and nothing else, which is enough to look at documents.

# %% [markdown] lang="zh"
# ## 一个小翻译模型
#
# 它只会把英语的时刻译成中文，别的都不会。看整篇翻译怎么做，这就够了。

# %%
pairs = kformer.examples.generate_pairs(12_000, seed=0, categories=["time"])
sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
for i in range(0, len(pairs), 2):  # Every other sentence ends with a full stop.
    sources[i], targets[i] = sources[i] + ".", targets[i] + "。"
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
model.fit(train, epochs=4, verbose=0)
translator = kformer.Translator(model, tokenizer)
print(translator(["half past four in the afternoon", "noon"]))

# %% [markdown] lang="en"
# ## Sentences first
#
# The model was trained on single sentences, so text is split first. A full stop is no proof of an
# end: `Dr.` has one, and so has `3.5`.

# %% [markdown] lang="zh"
# ## 先分句
#
# 模型是用单句训练的，所以要先把文本分成句子。有句点不一定就是句末：`Dr.` 里有，`3.5` 里也有。

# %%
text = "Dr. J. Smith comes at noon. He stays for 3.5 h, i.e. until half past three. Then he leaves!"
for sentence in split_sentences(text, "en"):
    print(sentence)

# %% [markdown] lang="en"
# ## A page
#
# Tags come out once each and nested as before; what has `translate="no"`, code and scripts stay as
# they are. Only the bytes of the sentences change. `lang` is set to the new language.

# %% [markdown] lang="zh"
# ## 网页
#
# 每个标签恰好出现一次，嵌套关系不变；带 `translate="no"` 的部分、代码和脚本都原样保留。除了句子本
# 身，一个字节也不动。`lang` 会换成译文的语言。

# %%
page = """<html lang="en"><body class="times">
<ul><li>noon</li> <li><b>half past four</b></li>
<li><a href="#5">half past five in the morning</a></li></ul>
<p>half past nine in the morning.</p> <pre>x = 1</pre>
<p translate="no">Half Past Seven (a band)</p>
</body></html>"""
print(translator.document(page, format="html", source_language="en", target_language="zh"))

# %% [markdown] lang="en"
# ## Subtitles and messages
#
# Numbers, times and identifiers stay. A placeholder such as `%s` is hidden from the model behind a
# word that it copies, and comes back where that word stands; if the model loses it, the text around
# it is translated alone.

# %% [markdown] lang="zh"
# ## 字幕与界面文案
#
# 编号、时间、标识都不变。`%s` 之类的占位符先换成一个模型会照抄的词，译完再换回来；要是模型把它弄丢
# 了，就把它前后的文字分开翻译，再拼到一起。

# %%
subtitles = """1
00:00:01,000 --> 00:00:03,500
half past six in the evening.

2
00:00:04,000 --> 00:00:06,000
ten past nine
in the morning.
"""
messages = """msgid "half past four in the afternoon %s"
msgstr ""
"""
print(translator.document(subtitles, format="srt"))
print(translator.document(messages, format="po"))

# %% [markdown] lang="en"
# ## Word documents
#
# A DOCX file is a ZIP archive of XML. Only the text in it changes: what is bold stays bold, notes
# and pictures stay, and the spelling checker gets the new language. Here is one of two paragraphs.

# %% [markdown] lang="zh"
# ## Word 文档
#
# DOCX 文件是装着 XML 的 ZIP 压缩包。改动的只有文字：粗体还是粗体，脚注和图片都不动，拼写检查的语言
# 换成译文的语言。下面是一个只有两段的文档。

# %%
paragraphs = """
<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>noon</w:t></w:r></w:p>
<w:p><w:r><w:rPr><w:lang w:val="en-US" w:eastAsia="en-US"/></w:rPr>
<w:t>half past four in the afternoon</w:t></w:r></w:p>
"""
namespace = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
file = io.BytesIO()
with zipfile.ZipFile(file, "w") as archive:
    text = f'<w:document xmlns:w="{namespace}">{paragraphs}</w:document>'
    archive.writestr("word/document.xml", text)
pair = {"source_language": "en", "target_language": "zh"}
translated = translator.document(file.getvalue(), format="docx", **pair)
with zipfile.ZipFile(io.BytesIO(translated)) as archive:
    print(archive.read("word/document.xml").decode())

# %% [markdown] lang="en"
# ## Files of applications
#
# JSON has its keys, XLIFF its sources and codes. Each branch of a plural is translated alone. What
# the report lists should be looked at. Here it is empty, and yet the code `g` of "evening" stands
# around 半: this model cannot translate that word alone, so the order of words was taken to be the
# same. Codes within a sentence are worth a second look where the order differs.

# %% [markdown] lang="zh"
# ## 应用程序的文案文件
#
# JSON 的键不变，XLIFF 的原文和行内代码不变；复数的每个分支单独翻译。报告列出的地方值得人工看一眼。
# 这里报告是空的，但“evening”上的代码 `g` 却落在了“半”上：这个小模型不会单独翻译这个词，只好按语序
# 相同来放。两种语言语序不同时，句子里的代码最好再检查一遍。

# %%
messages = """{
  "start": "half past four {name}",
  "end": "{n, plural, one {noon} other {half past six in the evening}}"
}"""
units = """<xliff version="1.2"><file source-language="en" original="a"><body>
<trans-unit id="1"><source>half past six in the <g id="1">evening</g></source></trans-unit>
</body></file></xliff>"""
for text, format in ((messages, "json"), (units, "xliff")):
    found = translate_document(translator, text, format, **pair)
    print(found.text)
    print(found.report.problems)

# %% [markdown] lang="en"
# ## A glossary
#
# A term has one translation, or several forms of which one must occur, or none, if it stays as it
# is. The report says how often each was found and used.

# %% [markdown] lang="zh"
# ## 术语表
#
# 一条术语可以有一种译法，也可以有几种形式、出现其一即可；没有译法的就原样保留。报告会说明每条术语出
# 现几次、用了几次。

# %%
glossary = Glossary([("noon", "正午"), ("Smith", None)])
found = translate_document(translator, "Smith: noon.\n\n  - noon\n", glossary=glossary)
print(found.text)
for term in found.report.terms:
    print(term)

# %% [markdown] lang="en"
# ## How sure the model is
#
# The confidence in a word is the probability of its pieces, given the source and the words before
# it. `calibrate` fits a temperature on sentences that the training has not seen, so that of the
# words with 0.8 about 80 % are right. The least confident sentences are those to look at first.

# %% [markdown] lang="zh"
# ## 模型的置信度
#
# 一个词的置信度，是在给定原文和前文时，组成它的子词的概率之积。`calibrate` 用训练时没见过的句子拟合
# 一个温度，使置信度为 0.8 的词大约有八成是对的。要人工检查，就从置信度最低的句子看起。

# %%
held_out = kformer.examples.generate_pairs(200, seed=1, split="test", categories=["time"])
translator.calibrate([pair.source for pair in held_out], [pair.target for pair in held_out])
annotated = translator("two to twelve", confidence=True)
print(annotated.text, f"{annotated.confidence.mean:.2f}")

# %%
figure, axis = plt.subplots(figsize=(6, 2.6), layout="constrained")
axis.bar(range(len(annotated.words)), annotated.confidence.word_probabilities)
axis.set_xticks(range(len(annotated.words)), annotated.words)
axis.set(xlabel="word of the translation", ylabel="probability", ylim=(0, 1.05))
plt.show()

# %% [markdown] lang="en"
# *Figure 1. How sure the model is of each word, given the source and the words before it. "Two to
# twelve" is 十一点五十八分: in this run the model was least sure where it erred.*

# %% [markdown] lang="zh"
# *图 1　在给定原文和前文时，模型对译文中每个词的置信度。“two to twelve”应为“十一点五十八分”：
# 这一次，置信度最低的地方正是译错的地方。*
