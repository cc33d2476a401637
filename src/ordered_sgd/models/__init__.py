"""The paper's networks, a file each, written to be read beside the paper."""

from ordered_sgd.models.lenet import LeNet
from ordered_sgd.models.preact_resnet import PreActResNet18

__all__ = ["LeNet", "PreActResNet18"]
