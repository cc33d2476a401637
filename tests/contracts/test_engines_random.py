"""Engines beside the one-liner on architectures that nobody chose."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.contracts.engine_cases_common import Case, Lambda, floats, param
from tests.contracts.engine_checks import Outcome, compare, quiet, resolution

SIZES = ((8, 3), (6, 1), (8, 5))
# Each block maps (s, T, D) to (s, T, D): T positions of D features, without a word between samples.
SHAPES = st.tuples(st.sampled_from([3, 4, 8]), st.sampled_from([4, 6, 8]))  # 8 is also the batch size


class Residual(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.scale = param(1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.block(x)


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)


class Convolution(nn.Module):
    """Over the positions, as an image of one row or as a sequence."""

    def __init__(self, width: int, image: bool) -> None:
        super().__init__()
        self.image = image
        self.layer = nn.Conv2d(width, width, (1, 3), padding=(0, 1)) if image else nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(1, 2)
        return (self.layer(h.unsqueeze(2)).squeeze(2) if self.image else self.layer(h)).transpose(1, 2)


class Flattened(nn.Module):
    """A layer on (s * T, D) or on (T * s, D)."""

    def __init__(self, width: int, positions_first: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.positions_first = positions_first

    def forward(self, x: Tensor) -> Tensor:
        h = x.transpose(0, 1) if self.positions_first else x
        h = self.layer(h.reshape(-1, h.shape[-1])).tanh().view(h.shape)
        return h.transpose(0, 1) if self.positions_first else h


class Mixer(nn.Module):
    """A layer over the positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.layer = nn.Linear(length, length)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mT).mT


class Group(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT


ACTIVATIONS = [F.relu, F.gelu, torch.tanh, F.silu, F.softplus, F.hardswish, torch.sin]
WITHIN = [
    lambda h: h.roll(1, 1),
    lambda h: h.flip(1).cumsum(1),
    lambda h: h.softmax(-1) * 3,
    lambda h: h.sort(1).values,
    lambda h: h - h.mean(1, keepdim=True),
    lambda h: h * h.std((1, 2), keepdim=True),
    lambda h: torch.cat([h[..., ::2], h[..., 1::2]], -1),
    lambda h: h.clone().index_add_(1, torch.tensor([0, 1]), h[:, :2]),
]


def blocks(length: int, width: int, random: bool) -> st.SearchStrategy[Any]:
    """Recipes: a name and what its choice was, so that an example can be read and built twice."""
    simple = [
        st.just(("linear", lambda: nn.Linear(width, width))),
        st.just(("mixer", lambda: Mixer(length))),
        st.just(("layer norm", lambda: nn.LayerNorm(width))),
        st.just(("rms norm", lambda: nn.RMSNorm(width))),
        st.just(("group norm", lambda: Group(width))),
        st.booleans().map(lambda causal: (f"attention causal={causal}", lambda: Attention(width, causal))),
        st.booleans().map(lambda image: (f"convolution image={image}", lambda: Convolution(width, image))),
        st.booleans().map(lambda first: (f"flattened first={first}", lambda: Flattened(width, first))),
        st.integers(0, len(ACTIVATIONS) - 1).map(lambda i: (f"activation {i}", lambda: Lambda(ACTIVATIONS[i]))),
        st.integers(0, len(WITHIN) - 1).map(lambda i: (f"within {i}", lambda: Lambda(WITHIN[i]))),
    ]
    if random:
        simple.append(st.sampled_from([0.1, 0.5]).map(lambda p: (f"dropout {p}", lambda: nn.Dropout(p))))
    single = st.one_of(simple)
    residual = single.map(lambda block: (f"residual({block[0]})", lambda: Residual(block[1]())))
    return st.one_of(single, single, residual)


@st.composite
def architectures(draw: Any, random: bool) -> Case:
    length, width = draw(SHAPES)
    recipe = draw(st.lists(blocks(length, width, random), min_size=2, max_size=6))

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, width), *(make() for _, make in recipe), nn.Flatten(), nn.Linear(length * width, 4)
        )

    return Case(f"({length}, {width}): {', '.join(name for name, _ in recipe)}", build, floats(length, 5))


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def beyond_rounding(case: Case, outcomes: list[Outcome]) -> dict[str, float]:
    """Errors that are larger than the tolerance and than what rounding does to the one-liner itself.

    A norm over a few almost equal values magnifies rounding a thousandfold, in every way of computing it.
    """
    return {
        f"s={o.s} q={o.q} {o.record.engine}": o.error
        for number, o in enumerate(outcomes)
        if o.error > case.tolerance and o.error > 20 * resolution(case, o.s, o.q, number)
    }


def check(case: Case, engine: str) -> None:
    torch._dynamo.reset()
    note(case.name)
    outcomes = list(compare(case, engine, SIZES))
    assert beyond_rounding(case, outcomes) == {}
    assert {o.record.engine for o in outcomes} == {engine}, outcomes[-1].why


def examples(count: int) -> Any:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


@examples(2)
@given(architectures(random=True))
def test_rows_are_exact_for_a_random_architecture(case: Case) -> None:
    check(case, "rows")


@examples(8)
@given(architectures(random=True))
def test_two_passes_are_exact_for_a_random_architecture(case: Case) -> None:
    check(case, "twopass")


@pytest.mark.slow
@examples(60)
@given(architectures(random=True))
def test_rows_are_exact_for_many_random_architectures(case: Case) -> None:
    check(case, "rows")


@pytest.mark.slow
@examples(300)
@given(architectures(random=True))
def test_two_passes_are_exact_for_many_random_architectures(case: Case) -> None:
    check(case, "twopass")


BETWEEN = [
    ("mean", lambda h: h - h.mean(0)),
    ("softmax", lambda h: h.softmax(0) * 4),
    ("cumsum", lambda h: h.cumsum(0)),
    ("roll", lambda h: h + 0.5 * h.roll(1, 0)),
    ("sort", lambda h: h.sort(0).values),
    ("largest", lambda h: h / h.abs().amax(0)),
    ("gram", lambda h: torch.einsum("atd,btd,bte->ate", h, h, h) / 10),
    ("scrambled", lambda h: h.reshape(*h.shape[1:], -1).permute(2, 0, 1).sin()),
]


@st.composite
def coupled_architectures(draw: Any) -> Case:
    """A random architecture with one block, at any place, through which samples influence each other."""
    length, width = draw(SHAPES)
    recipe = draw(st.lists(blocks(length, width, False), min_size=1, max_size=4))
    name, between = draw(st.sampled_from(BETWEEN))
    place = draw(st.integers(0, len(recipe)))
    recipe.insert(place, (f"BETWEEN {name}", lambda: Lambda(between)))

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, width), *(make() for _, make in recipe), nn.Flatten(), nn.Linear(length * width, 4)
        )

    text = f"({length}, {width}): {', '.join(name for name, _ in recipe)}"
    return Case(text, build, floats(length, 5), coupled=True)


def check_coupled(case: Case, engine: str) -> None:
    torch._dynamo.reset()
    note(case.name)
    with quiet():
        outcomes = list(compare(case, engine, SIZES))
    assert beyond_rounding(case, outcomes) == {}


@pytest.mark.slow
@examples(40)
@given(coupled_architectures())
def test_rows_find_a_coupling_in_a_random_architecture(case: Case) -> None:
    check_coupled(case, "rows")


@examples(15)
@given(coupled_architectures())
def test_two_passes_find_a_coupling_in_a_random_architecture(case: Case) -> None:
    check_coupled(case, "twopass")
