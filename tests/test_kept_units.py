"""The fast choice among many short rows is the specification, also for losses that are infinite, NaN or equal."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd import Above
from ordered_sgd.kept_units import _kept_numpy, kept_by_sorting
from ordered_sgd.units import Units

LARGEST = torch.finfo(torch.float32).max
ENDS = torch.tensor([-torch.inf, -LARGEST, -1.0, 0.0, 0.0, 1.0, 2.0, LARGEST, torch.inf, torch.nan])


@st.composite
def units(draw: Any) -> Units:
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 8))
    g = torch.Generator().manual_seed(draw(st.integers(0, 100_000)))
    several = ENDS if draw(st.booleans()) else ENDS[:-1]

    def some(share: float) -> torch.Tensor | None:
        return torch.rand(shape, generator=g) < share if draw(st.booleans()) else None

    losses, scores = (several[torch.randint(0, len(several), shape, generator=g)] for _ in range(2))
    return Units(losses, some(0.7), scores if draw(st.booleans()) else None, some(0.2))


thresholds = st.builds(Above, st.sampled_from([-1.0, 0.5, 2.0]), at_least=st.integers(1, 3))
amounts = st.one_of(st.integers(1, 6), st.floats(0.1, 1), thresholds)


@given(given_units=units(), q=amounts, trim=st.sampled_from([0, 1, 2, 0.3]), counts=st.booleans(), data=st.data())
def test_short_rows_are_chosen_from_as_the_specification_says(
    given_units: Units, q: Any, trim: float, counts: bool, data: Any
) -> None:
    if counts:
        s = given_units.losses.shape[0]
        q = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=s, max_size=s))).reshape(-1, 1)
    found = _kept_numpy(given_units, None, q, trim)
    assert torch.equal(found, kept_by_sorting(given_units, None, q, trim))
