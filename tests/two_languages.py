"""A small translator of two target languages, for tests of what carries them."""

import keras

import kformer

TEXTS = ["half past four", "a quarter to ten", "noon", "ten to six"]
CODES = ["de", "fr"]


def new_model(tokenizer):
    """A small model whose translations depend on the source."""
    keras.utils.set_random_seed(3)
    sizes = {"hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = kformer.Transformer(tokenizer.vocabulary_size, max_length=24, **sizes)
    for weight in model.trainable_variables:
        weight.assign(weight * 3)
    return model


def new_translator():
    """A translator whose translations depend on the text and on its language; "de" is the first."""
    tokenizer = kformer.Tokenizer.train(texts=TEXTS, vocabulary_size=300, languages=CODES)
    return kformer.Translator(new_model(tokenizer), tokenizer)
