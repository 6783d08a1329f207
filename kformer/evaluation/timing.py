"""How long a translator needs for a sentence, by its length."""

import functools
import timeit

from kformer.utils.checks import check_whole


def time_by_length(translator, texts, lengths=None, repeats=3, **options):
    """Measures how long a translator needs for one sentence, by the tokens of its source.

    Args:
        translator: `kformer.Translator`.
        texts: list of str. Their words make the sentences.
        lengths: list of int or `None`, default `None`. Numbers of source tokens; `None` for 8, 16,
            32, 64 and 128, as far as the model's limit allows, or for a limit below 8 itself.
        repeats: int, default 3. The shortest of so many times counts.
        **options: options of the search, such as `beam_size`.

    Returns:
        dict of the number of source tokens to seconds.

    Raises:
        ValueError: a length is above the model's limit, or the texts have no words.
    """
    most = translator.model.max_length
    lengths = lengths or [length for length in (8, 16, 32, 64, 128) if length <= most] or [most]
    check_whole("The longest sentence that the model reads", max(lengths), most=most)
    words = " ".join(texts[:1000]).split()
    if not any(map(len, translator.tokenizer.tokenize(words))):
        raise ValueError("The text has no words to make sentences of.")
    times = {}
    for length in lengths:
        sentence, size = [], 0
        while size < length:
            sentence.append(words[len(sentence) % len(words)])
            text = " ".join(sentence)
            size = len(translator.tokenizer.tokenize([text], special_tokens=True)[0])
        translator([text], **options)  # What is compiled is compiled before.
        translate = functools.partial(translator, [text], **options)
        times[min(size, most)] = min(timeit.repeat(translate, repeat=repeats, number=1))
    return times
