"""The model matrix: models that people train, and which third of them is set aside.

The third is chosen by a hash of the name, before anything was run. It is only run to see what the rest has taught.
"""

from tests.compat.timm_models import TIMM
from tests.compat.torch_models import TORCH
from tests.compat.transformers_models import TRANSFORMERS

MODELS = {entry.name: entry for entry in (*TIMM, *TRANSFORMERS, *TORCH)}
