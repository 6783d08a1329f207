"""Names of earlier versions: which name each one has now."""

# Old name: new name. `CHANGELOG.md` has the same table.
MOVES = {
    "kformer.quickstart": "kformer.examples.quickstart",
    "kformer.data.embedded": "kformer.examples.pairs",
    "kformer.data.generate_pairs": "kformer.examples.generate_pairs",
    "kformer.data.iterate_pairs": "kformer.examples.iterate_pairs",
    "kformer.decoding.decoder_step": "kformer.decoding.LayerDecoder",
    "kformer.interop.export_huggingface": "kformer.export.export_huggingface",
    "kformer.models.VARIANTS": "kformer.models.config.TransformerConfig",
    "kformer.models.check_packing": "kformer.models.config.check_packing",
    "kformer.models.variants_of": "kformer.models.config.variants_of",
    "kformer.training.TrainOptions": "kformer.trainer.TrainOptions",
    "kformer.training.TrainingState": "kformer.saving.TrainingState",
    "kformer.training.TranslationQuality": "kformer.evaluation.TranslationQuality",
    "kformer.training.checkpoints": "kformer.saving.checkpoints",
    "kformer.training.latest_checkpoint": "kformer.saving.latest_checkpoint",
    "kformer.training.load_checkpoint": "kformer.saving.load_checkpoint",
    "kformer.training.load_run": "kformer.saving.load_run",
    "kformer.training.read_config": "kformer.saving.read_config",
    "kformer.training.run_directory": "kformer.saving.run_directory",
    "kformer.training.save_checkpoint": "kformer.saving.save_checkpoint",
    "kformer.training.save_run": "kformer.saving.save_run",
    "kformer.training.train_run": "kformer.trainer.train_run",
}


def moved_names(package):
    """The `__getattr__` of a package from which public names have moved.

    Args:
        package: str. The package's `__name__`.

    Returns:
        A function that raises an `AttributeError` for every name. The message gives the new
        name of a name in `MOVES`.
    """

    def __getattr__(name):
        old = f"{package}.{name}"
        if old in MOVES:
            raise AttributeError(f"{old} is now {MOVES[old]}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
