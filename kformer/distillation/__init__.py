"""Knowledge distillation: training on teachers' translations, or on their predictions."""

from kformer.distillation.soft_targets import soft_targets
from kformer.distillation.text import DistilledText, distill

__all__ = ["DistilledText", "distill", "soft_targets"]
