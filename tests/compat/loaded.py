"""What every model of the matrix needs, imported once; each model then runs in a process forked from here."""

import peft
import torch
import torch._dynamo
import torch._functorch.aot_autograd
import transformers

from tests.compat import models, observe
from tests.compat.stand_in import import_timm

torch.set_num_threads(1)
timm = import_timm()

__all__ = ["models", "observe", "peft", "timm", "transformers"]
