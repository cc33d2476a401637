"""What an entry of the model matrix is, and how its losses are computed."""

import hashlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from tests.contracts.engine_cases_common import CE, CLASSES, Case, next_token

__all__ = ["CLASSES", "Entry", "frozen_norms", "next_token_of", "of_logits", "of_states", "per_pixel"]


@dataclass(frozen=True)
class Entry:
    """A model of the matrix: where it comes from, and a case to run it by."""

    source: str  # the package that the model comes from
    case: Case

    @property
    def name(self) -> str:
        """The package and the model."""
        return f"{self.source}: {self.case.name}"

    @property
    def set_aside(self) -> bool:
        """Whether the model belongs to the third that nobody looks at while the engines are worked on."""
        return int(hashlib.sha256(self.case.name.encode()).hexdigest(), 16) % 3 == 0


def frozen_norms(model: nn.Module) -> nn.Module:
    """The model with its BatchNorm layers in eval mode, as in fine-tuning, with some statistics."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def of_logits(outputs: Any, y: Tensor) -> Tensor:
    """Cross entropy of a classifier's logits, shape (s,)."""
    return CE(getattr(outputs, "logits", outputs), y)


def of_states(outputs: Any, y: Tensor) -> Tensor:
    """Cross entropy of the first features of the mean hidden state, for a model without a head."""
    return CE(outputs.last_hidden_state.mean(1)[:, :CLASSES], y)


def next_token_of(outputs: Any, ids: Tensor) -> Tensor:
    """Mean cross entropy of each sequence, shape (s,)."""
    return next_token(outputs.logits, ids)


def per_pixel(outputs: Any, y: Tensor) -> Tensor:
    """Mean cross entropy of each image's pixels, which all have the class of the image."""
    logits = getattr(outputs, "logits", outputs)
    return F.log_softmax(logits, 1).flatten(2).mean(2).gather(1, y[:, None]).neg().squeeze(1)
