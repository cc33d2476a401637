"""The promises of every rule, in one table."""

import inspect
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd import rules
from ordered_sgd.rules import AccuracyRule, CosineDecay, FixedQ, LinearDecay, LossMassRule, Observed, Rule


@dataclass(frozen=True)
class Row:
    """A rule, and what it may do that others may not."""

    rule: Rule
    with_floor: Rule  # the same with q_min=3
    grows: bool = False


TABLE = [
    Row(AccuracyRule(), AccuracyRule(q_min=3)),
    Row(FixedQ(0.25), FixedQ(0.25, q_min=3)),
    Row(FixedQ(7), FixedQ(7, q_min=3)),
    Row(LinearDecay(epochs=8), LinearDecay(epochs=8, q_min=3)),
    Row(CosineDecay(epochs=8), CosineDecay(epochs=8, q_min=3)),
    Row(LossMassRule(0.9), LossMassRule(0.9, q_min=3), grows=True),
]

all_rules = pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row.rule))


@st.composite
def observations(draw: Any) -> list[tuple[float, list[float]]]:
    """Epochs of (accuracy, share curve)."""
    seeds = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12))
    out = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        curve = np.cumsum(np.sort(rng.exponential(size=16))[::-1])
        out.append((float(rng.random() ** 0.25), (curve / curve[-1]).tolist()))
    return out


def path(rule: Rule, s: int, epochs: list[tuple[float, list[float]]]) -> list[int]:
    q = rule.first_q(s)
    taken = [q]
    for number, (accuracy, curve) in enumerate(epochs, 1):
        q = rule.next_q(q, s, Observed(number, accuracy, curve))
        taken.append(q)
    return taken


def test_the_table_holds_every_rule() -> None:
    public = {
        value
        for name, value in vars(rules).items()
        if inspect.isclass(value) and hasattr(value, "first_q") and not name.startswith("_") and value is not Rule
    }
    assert public == {type(row.rule) for row in TABLE} == set(rules.RULES)


@all_rules
@given(epochs=observations(), s=st.integers(1, 300))
def test_q_stays_between_one_and_the_batch_size(row: Row, epochs: list[tuple[float, list[float]]], s: int) -> None:
    assert all(1 <= q <= s for q in path(row.rule, s, epochs))


@all_rules
@given(epochs=observations(), s=st.integers(1, 300))
def test_the_floor_holds_as_far_as_the_batch_allows(row: Row, epochs: list[tuple[float, list[float]]], s: int) -> None:
    plain, floored = path(row.rule, s, epochs), path(row.with_floor, s, epochs)
    assert all(q >= min(3, s) for q in floored)
    assert floored[0] == max(plain[0], min(3, s))


@all_rules
@given(epochs=observations(), s=st.integers(1, 300))
def test_q_never_grows_back_unless_the_row_says_so(row: Row, epochs: list[tuple[float, list[float]]], s: int) -> None:
    taken = path(row.rule, s, epochs)
    assert row.grows or taken == sorted(taken, reverse=True)


@all_rules
@given(epochs=observations(), s=st.integers(1, 300))
def test_the_answer_depends_on_the_arguments_alone(row: Row, epochs: list[tuple[float, list[float]]], s: int) -> None:
    assert path(row.rule, s, epochs) == path(row.rule, s, epochs)


@all_rules
def test_a_rule_is_a_frozen_hashable_value(row: Row) -> None:
    rule: Any = row.rule
    assert rule == type(rule)(**{f.name: getattr(rule, f.name) for f in fields(rule)})
    assert len({rule, row.with_floor}) == 2
    with pytest.raises(FrozenInstanceError):
        rule.q_min = 5


@all_rules
def test_a_rule_says_what_it_needs(row: Row) -> None:
    assert row.rule.needs in (None, "accuracy", "loss_share")
    observed = {"accuracy": 0.9, "loss_share": [0.5, 1.0]}
    kept = {name: value for name, value in observed.items() if name == row.rule.needs}
    assert row.rule.next_q(8, 8, Observed(1, **kept)) >= 1  # type: ignore[arg-type]
