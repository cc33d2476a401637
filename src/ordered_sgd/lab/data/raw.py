"""The columns of a user's table as they are in the file, and what encodes them for a model."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import require
from ordered_sgd.lab.data.columns import MOST_WORDS


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of a table without its target, as they are in the file.

    Parameters
    ----------
    frame
        A pandas frame: floats, NaN where a number is missing, and words.
    numbers, words
        Names of the columns of either kind.
    notes
        What was found and done, a sentence each.
    """

    frame: Any
    numbers: tuple[str, ...]
    words: tuple[str, ...]
    notes: tuple[str, ...]

    def take(self, rows: NDArray[np.int64]) -> "Table":
        """These rows, in this order."""
        return replace(self, frame=self.frame.iloc[rows])

    def encoder(self) -> Any:
        """A new `ColumnTransformer`, to be fitted on the training part.

        Missing numbers become the median, with a column that says so; numbers are standardised. A word becomes a column
        of zeros and ones for each of the most frequent ones, and one for all others.
        """
        compose = require("sklearn.compose", extra="lab", where="load")
        from sklearn.impute import MissingIndicator, SimpleImputer
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        fill = SimpleImputer(strategy="median", keep_empty_features=True)
        words = OneHotEncoder(
            max_categories=MOST_WORDS, handle_unknown="infrequent_if_exist", sparse_output=False, dtype=np.float32
        )
        return compose.ColumnTransformer(
            [
                ("numbers", make_pipeline(fill, StandardScaler()), list(self.numbers)),
                # not standardised: a gap that is rare would lie many deviations away, and SGD would step too far
                ("gaps", MissingIndicator(error_on_new=False), list(self.numbers)),
                ("words", words, list(self.words)),
            ]
        )
