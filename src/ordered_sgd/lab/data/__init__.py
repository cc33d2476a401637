"""Data sets read safely, and fed fast.

`load` gives a `Dataset` by name or from a user's own file, `from_arrays` one from arrays in memory. Files lie in
`data_root()`; `CATALOG` says what they are and where they come from. None of these needs torch.
"""

from ordered_sgd.lab.data.catalog import CATALOG, data_root
from ordered_sgd.lab.data.custom import from_arrays
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.load import load

__all__ = ["CATALOG", "Dataset", "data_root", "from_arrays", "load"]
