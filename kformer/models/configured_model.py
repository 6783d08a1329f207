"""The base class of models that are saved as the options of their configuration."""

from kformer.models.base_model import BaseModel
from kformer.models.frozen import FROZEN_OPTIONS, freeze_layers, frozen_config
from kformer.models.lora import enable_lora, has_adapters


class ConfiguredModel(BaseModel):
    """A model whose saved form is its options, its adapters and its frozen layers.

    Args:
        config: `kformer.models.config.Architecture`.
        network: object with the layers.
        policy: Keras dtype policy. The policy of the layers.
        **kwargs: arguments of `keras.Model`.
    """

    def __init__(self, config, network, policy, **kwargs):
        super().__init__(**kwargs)
        self.config, self.network, self.dtype_policy = config, network, policy
        self.hidden_dim, self.max_length = config.hidden_dim, config.max_length

    def get_config(self):
        return {
            **self.config.to_dict(),
            "name": self.name,
            "trainable": self.trainable,
            "dtype": self.policy_name,
            **({"lora": list(self.lora)} if has_adapters(self) else {}),
            **frozen_config(self),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        lora = config.pop("lora", None)
        frozen = {name: config.pop(name, ()) for name in FROZEN_OPTIONS}
        model = cls(**config)
        if lora is not None:
            enable_lora(model, *lora)
        freeze_layers(model, **frozen)
        return model
