"""NumPy arrays from lists, arrays, and tensors on any device, with or without a graph."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_array(values: Any) -> NDArray[Any]:
    """The values as a NumPy array. Reading a tensor on an accelerator waits for it.

    >>> import torch
    >>> as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if not hasattr(values, "detach"):  # not a tensor; torch need not be imported to know
        return np.asarray(values)
    values = values.detach().cpu()
    if values.is_floating_point() and values.element_size() < 4:  # NumPy has no bfloat16
        values = values.float()
    return np.asarray(values)
