"""Makes the frozen run and its SavedModel, whose exact text tests assert.

Run it only for a new format:

    KERAS_BACKEND=tensorflow python tests/make_frozen.py OUTPUT

and give the results a new name beside the old ones: released files must always load.
"""

import pathlib
import sys

import keras

import kformer

STEPS = 4000


def main(output):
    output = pathlib.Path(output)
    pairs = kformer.examples.generate_pairs(60_000, seed=0, categories=("time",))
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    tokenizer = kformer.Tokenizer.train(
        texts=sources[:5000] + targets[:5000], vocabulary_size=420, model_type="unigram"
    )
    train = kformer.data.ParallelDataset(
        sources, targets, tokenizer, batch_tokens=1024, seed=0, max_shapes=4
    )
    model = kformer.Transformer(
        tokenizer.vocabulary_size,
        num_encoder_layers=2,
        num_decoder_layers=2,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=2,
        dropout=0.0,
        max_length=40,
    )
    schedule = kformer.WarmupInverseSqrt(model.hidden_dim, warmup_steps=400, scale=1.0)
    model.compile(
        **kformer.training.paper_recipe(model, learning_rate=schedule, label_smoothing=0.0)
    )
    model.fit(train, epochs=-(-STEPS // len(train)), verbose=2)
    translator = kformer.Translator(model, tokenizer, config={"made_by": "tests/make_frozen.py"})
    translator.save(output / "run")
    translator.export(output / "saved_model", version=1, beam_size=4)
    held_out = kformer.examples.generate_pairs(200, seed=1, split="test", categories=("time",))
    found = translator([pair.source for pair in held_out])
    print(
        "exact:",
        sum(text == pair.target for text, pair in zip(found, held_out, strict=True))
        / len(held_out),
    )


if __name__ == "__main__":
    print(keras.backend.backend())
    main(sys.argv[1])
