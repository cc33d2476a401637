"""Compiled code of a backward runs where it is right, and the graph runs everywhere else."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, fx

from ordered_sgd.selective import BackwardReport
from ordered_sgd.selective.lowered import Assumed, Code, LoweredBackward
from ordered_sgd.selective.places import BatchDim
from ordered_sgd.selective.rows_plan import RowsPlan

S = sympy.Symbol("s0", integer=True, positive=True)
T = sympy.Symbol("s1", integer=True, positive=True)


@pytest.mark.parametrize(
    ("fact", "holds"),
    [
        (sympy.Eq(sympy.Mod(S, 4), 0), {4, 8}),
        (S * T <= 24, {2, 3, 4, 8}),
        (sympy.Ne(S, 3), {2, 4, 8}),
        (sympy.Ne(S, sympy.Symbol("unknown")), set()),  # what is not certain does not hold
    ],
    ids=str,
)
def test_facts_are_looked_up_with_the_number_of_rows(fact: Any, holds: set[int]) -> None:
    assumed = Assumed(S, {S: (2, sympy.oo)}, (fact,))
    assert {q for q in (2, 3, 4, 8) if assumed.violated({S: q, T: 3}) is None} == holds
    assert assumed.violated({S: 1, T: 3}) is not None  # graphs are specialised for sizes of at least 2


def test_a_size_that_was_a_number_when_code_was_compiled_is_that_number() -> None:
    env = SimpleNamespace(guards=[SimpleNamespace(expr=sympy.Ne(T, 1))], replacements={}, var_to_range={})
    assumed = Assumed.of(env, S, {S: T, T: sympy.Integer(1)})  # the symbols of another environment
    assert assumed.violated({S: 4, T: 1}) is None
    assert assumed.violated({S: 1, T: 1}) is not None
    assert assumed.violated({S: 4, T: 2}) is not None


def test_a_size_that_turned_out_to_be_fixed_holds_for_no_other_number_of_rows() -> None:
    env = SimpleNamespace(guards=[], replacements={S: sympy.Integer(8)}, var_to_range={})
    assumed = Assumed.of(env, S, {S: S})
    assert assumed.violated({S: 8}) is None
    assert assumed.violated({S: 4}) is not None


def doubled(
    code: Callable[[list[Any]], Any], lower: Callable[[Any], Code | None] = lambda sizes: None
) -> tuple[LoweredBackward, BackwardReport]:
    """A graph that doubles a matrix whose rows are the batch, with other code in its place, for up to 8 rows."""
    graph = fx.symbolic_trace(lambda x: (x * 2,))
    plan = RowsPlan([BatchDim(0, 1, 1)], [0], [0], [None], {T: (0, 1)}, (0, 0, 1), symbol=S)
    report = BackwardReport()
    first = Code(code, Assumed(S, {S: (2, 8)}, ()))
    return LoweredBackward(graph, first, [(sympy.Integer(1), S)], plan, report, lower), report


def test_compiled_code_gets_the_strides_that_it_expects() -> None:
    seen = []

    def code(arguments: list[Tensor]) -> Any:
        seen.append(arguments[0].stride())
        return [arguments.pop() * 2]

    run, report = doubled(code)
    x = torch.arange(12.0).view(4, 3)
    assert torch.equal(run(x)[0], 2 * x)
    assert torch.equal(run(x[:2])[0], 2 * x[:2])
    assert seen == [(1, 4), (1, 2)]
    assert not report.unlowered


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (lambda arguments: [arguments[0] * 2.1], "its compiled backward gives another gradient"),
        (lambda arguments: [arguments[1]], "its compiled backward failed (list index out of range)"),
        (lambda arguments: [arguments[0].to_sparse() * 2], "its compiled backward cannot be compared"),
    ],
    ids=["wrong", "failing", "sparse"],
)
def test_code_that_is_wrong_or_fails_is_replaced_by_its_graph_for_good(code: Any, reason: str) -> None:
    run, report = doubled(code)
    x = torch.arange(12.0).view(4, 3)
    for _ in range(3):
        assert torch.equal(run(x)[0], 2 * x)
    assert reason in str(report.unlowered)
    assert sum(report.unlowered.values()) == 3


def test_rows_that_break_what_code_takes_for_granted_are_computed_by_the_graph() -> None:
    run, report = doubled(lambda arguments: [arguments[0] * 2])
    x = torch.arange(27.0).view(9, 3)
    assert torch.equal(run(x)[0], 2 * x)
    assert report.unlowered == {"compiled code assumes 2 <= s <= 8, which does not hold for 9 rows": 1}
    assert torch.equal(run(x[:3])[0], 2 * x[:3])
    assert sum(report.unlowered.values()) == 1


def test_code_for_other_rows_is_compiled_once_and_chosen_by_what_it_takes_for_granted() -> None:
    asked, ran = [], []

    def code(name: str, low: int, high: int) -> Code:
        def run(arguments: list[Tensor]) -> Any:
            ran.append(name)
            return [arguments[0] * 2]

        return Code(run, Assumed(S, {S: (low, high)}, ()))

    def lower(sizes: Any) -> Code:
        asked.append(sizes[S])
        return code("large", 9, 12)

    run, report = doubled(code("small", 2, 8).run, lower)
    x = torch.arange(60.0).view(20, 3)
    for rows in (4, 10, 9, 4, 10):
        assert torch.equal(run(x[:rows])[0], 2 * x[:rows])
    assert ran == ["small", "large", "large", "small", "large"]
    assert asked == [10]
    assert not report.unlowered
    for rows in (13, 13, 14, 15, 16):  # for which the new code is no better, so that nobody asks for ever
        assert torch.equal(run(x[:rows])[0], 2 * x[:rows])
    assert asked == [10, 13, 14]
    assert sum(report.unlowered.values()) == 5
