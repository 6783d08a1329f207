"""Back-translation: pairs of text in the target language alone and a model's source of it."""

import random

from kformer.text.words import split_words

# In front of each source that a model wrote, so that the student tells it from what people wrote.
TAG = "<bt>"
_FILLER = "_"
_DROPPED, _HIDDEN, _DISTANCE = 0.1, 0.1, 3


def tagged(source):
    """Returns a source that a model wrote, marked as such.

    Args:
        source: str.

    Returns:
        str.

    References:
        Caswell et al. 2019, "Tagged back-translation".
    """
    return f"{TAG} {source}"


def add_noise(text, seed, index):
    """Returns a text with words left out, hidden and moved.

    Each word is left out with a probability of 0.1 and hidden behind a filler with one of 0.1; then
    words change positions with others at most three words away. The text then says less about its
    translation. A text without spaces has a word for each of its characters.

    Args:
        text: str.
        seed: int. Seed of the random numbers.
        index: int. The index of the text among others, which have other random numbers.

    Returns:
        str with at least one word, unless the text is empty.

    References:
        Lample et al. 2018, "Unsupervised machine translation using monolingual corpora only",
        section 2.3. Edunov et al. 2018, "Understanding back-translation at scale".
    """
    words, space = text.split(), " "
    if len(words) < 2:
        words, space = split_words(text), ""
    numbers = random.Random(f"{seed} {index}")
    words = [word for word in words if numbers.random() >= _DROPPED] or words[:1]
    words = [_FILLER if numbers.random() < _HIDDEN else word for word in words]
    positions = [index + numbers.uniform(0, _DISTANCE + 1) for index in range(len(words))]
    order = sorted(range(len(words)), key=positions.__getitem__)
    return space.join(words[index] for index in order)
