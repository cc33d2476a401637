"""Promises that every variant of every optimizer of the package keeps."""

import copy
import io
import math
from dataclasses import dataclass, field
from typing import get_args

import pytest
import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError
from ordered_sgd.optim.mirror import Geometry, MirrorDescent
from ordered_sgd.optim.proximal import Penalty, ProximalSGD

SHAPES = ((4, 3), (5,), (2, 3, 2))
# Exact in 16 bits, to which torch's foreach multiplication on the CPU rounds it: with 0.9 the twins would differ.
MOMENTUM = 0.875
HALF = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@dataclass(frozen=True)
class Row:
    name: str
    kind: type[torch.optim.Optimizer]
    options: dict[str, object] = field(default_factory=dict)
    simplex: bool = False  # parameters are distributions

    def build(self, params: list[Tensor], **more: object) -> torch.optim.Optimizer:
        return self.kind(params, **{"lr": 0.05, **self.options, **more})

    def start(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        values = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if self.simplex:
            values = [torch.softmax(v.flatten(), 0).view_as(v) for v in values]
        return [torch.nn.Parameter(v.to(dtype)) for v in values]


def proximal(name: str, **options: object) -> Row:
    return Row(name, ProximalSGD, options)


ROWS = [
    proximal("plain"),
    proximal("plain momentum", momentum=MOMENTUM),
    proximal("l1", penalty="l1", strength=0.1),
    proximal("l1 momentum", penalty="l1", strength=0.1, momentum=MOMENTUM),
    proximal("l2", penalty="l2", strength=0.1),
    proximal("l2 momentum", penalty="l2", strength=0.1, momentum=MOMENTUM),
    proximal("l2-norm", penalty="l2-norm", strength=0.1),
    proximal("group momentum", penalty="group", strength=0.1, momentum=MOMENTUM),
    proximal("box", bounds=(-0.5, 0.5)),
    proximal("box momentum", bounds=(-0.5, math.inf), momentum=MOMENTUM),
    proximal("l1 box momentum", penalty="l1", strength=0.1, bounds=(-0.5, 0.5), momentum=MOMENTUM),
    Row("entropy", MirrorDescent, {}, simplex=True),
    Row("p-norm", MirrorDescent, {"geometry": "p-norm", "p": 1.5}),
    Row("p-norm slices", MirrorDescent, {"geometry": "p-norm", "p": 1.5, "dim": -1}),
    Row("p-norm 2", MirrorDescent, {"geometry": "p-norm", "p": 2.0}),
]
EVERY = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def train(optimizer: torch.optim.Optimizer, params: list[Tensor], steps: int = 10, seed: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            noise = torch.randn(param.shape, generator=generator)
            param.grad = (param.detach().float() + 0.1 * noise.to(param.device)).to(param)
        optimizer.step()
    return [param.detach().clone() for param in params]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def run(row: Row, dtype: torch.dtype = torch.float32, **more: object) -> list[Tensor]:
    params = row.start(dtype)
    return train(row.build(params, **more), params)


def test_the_table_has_every_penalty_and_every_geometry():
    used = {row.options.get("penalty") for row in ROWS} | {row.options.get("geometry", "entropy") for row in ROWS}
    assert used >= {*get_args(Penalty), *get_args(Geometry)}


@EVERY
def test_same_seed_same_bits(row: Row):
    assert equal(run(row), run(row))


@EVERY
@HALF
def test_foreach_equals_the_loop(row: Row, dtype: torch.dtype):
    assert equal(run(row, dtype, foreach=True), run(row, dtype, foreach=False))


@EVERY
def test_foreach_takes_dtypes_mixed_in_one_group(row: Row):
    def mixed() -> list[Tensor]:
        return [row.start(dtype)[0] for dtype in (torch.float32, torch.float64, torch.bfloat16)]

    runs = [train(row.build(params, foreach=f), params) for f in (True, False) for params in [mixed()]]
    assert equal(*runs)


@EVERY
@HALF
def test_a_saved_run_resumes_bit_for_bit(row: Row, dtype: torch.dtype):
    params = row.start(dtype)
    optimizer = row.build(params)
    train(optimizer, params)
    file = io.BytesIO()
    torch.save({"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, file)
    straight_on = train(optimizer, params, seed=3)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = row.start(dtype)
    resumed = row.build(again, lr=77.0)  # what is loaded wins
    resumed.load_state_dict(saved["optimizer"])
    with torch.no_grad():
        for param, value in zip(again, saved["params"], strict=True):
            param.copy_(value)
    assert equal(train(resumed, again, seed=3), straight_on)


@EVERY
def test_a_state_from_before_the_first_step_can_be_loaded(row: Row):
    params = row.start()
    optimizer = row.build(params)
    optimizer.load_state_dict(row.build(row.start()).state_dict())
    assert equal(train(optimizer, params), run(row))


@EVERY
def test_a_deep_copy_goes_its_own_way(row: Row):
    params = row.start()
    optimizer = row.build(params)
    train(optimizer, params)
    other_params, other = copy.deepcopy((params, optimizer))
    assert equal(train(other, other_params), train(optimizer, params))


@EVERY
@HALF
def test_values_stay_finite_and_keep_their_dtype(row: Row, dtype: torch.dtype):
    for value in run(row, dtype):
        assert value.dtype == dtype
        assert value.isfinite().all()


@EVERY
def test_step_lr_scales_the_steps_as_by_hand(row: Row):
    scheduled, by_hand = row.start(), row.start()
    optimizer, manual = row.build(scheduled), row.build(by_hand)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    for epoch in range(9):
        train(optimizer, scheduled, steps=1, seed=epoch)
        scheduler.step()
        manual.param_groups[0]["lr"] = [0.05, 0.005, 0.0005][epoch // 3]
        train(manual, by_hand, steps=1, seed=epoch)
    for a, b in zip(scheduled, by_hand, strict=True):
        torch.testing.assert_close(a, b)


@EVERY
def test_a_tensor_rate_is_read_as_a_number(row: Row):
    assert equal(run(row, lr=torch.tensor(0.25)), run(row, lr=0.25))  # 0.25 is exact in any float


@EVERY
def test_a_parameter_without_gradient_is_not_touched(row: Row):
    params = row.start()
    before = params[1].detach().clone()
    optimizer = row.build(params)
    for i in (0, 2):
        params[i].grad = torch.ones_like(params[i])
    optimizer.step()
    assert torch.equal(params[1].detach(), before)
    assert params[1] not in optimizer.state


@EVERY
def test_a_step_without_any_gradient_does_nothing(row: Row):
    params = row.start()
    row.build(params).step()
    assert equal([p.detach() for p in params], [p.detach() for p in row.start()])


@EVERY
def test_the_closure_runs_with_gradients_on_and_its_loss_comes_back(row: Row):
    params = row.start()
    optimizer = row.build(params)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum((p.square().sum() for p in params), torch.zeros(()))
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert first.item() > 0
    assert optimizer.step(closure) < first


@EVERY
def test_maximize_is_the_step_on_the_negated_gradient(row: Row):
    up, down = row.start(), row.start()
    for param, other in zip(up, down, strict=True):
        param.grad = torch.linspace(-1, 1, param.numel()).view_as(param)
        other.grad = -param.grad
    row.build(up, maximize=True).step()
    row.build(down).step()
    assert equal([p.detach() for p in up], [p.detach() for p in down])


@EVERY
def test_gradients_are_left_as_they_were(row: Row):
    for foreach in (True, False):
        params = row.start()
        for param in params:
            param.grad = torch.ones_like(param)
        row.build(params, foreach=foreach).step()
        assert all((param.grad == 1).all() for param in params)


@EVERY
def test_the_order_of_memory_does_not_matter(row: Row):
    def transposed(value: Tensor) -> Tensor:
        return torch.nn.Parameter(value.detach().t().contiguous().t())

    plain, strided = [row.start()[0]], [transposed(row.start()[0])]
    a, b = train(row.build(plain), plain), train(row.build(strided), strided)
    torch.testing.assert_close(a, b)


@EVERY
def test_a_nan_is_not_hidden(row: Row):
    params = row.start()
    for param in params:
        param.grad = torch.full_like(param, math.nan)
    row.build(params).step()
    assert all(param.isnan().all() for param in params)


@EVERY
def test_an_empty_parameter_is_passed_over(row: Row):
    options = {"dim": -1} if row.kind is MirrorDescent else {}
    param = torch.nn.Parameter(torch.empty(0, 3))
    param.grad = torch.empty(0, 3)
    row.build([param], **options).step()
    assert param.shape == (0, 3)


@EVERY
def test_a_sparse_gradient_is_refused_before_anything_moves(row: Row):
    params = row.start()
    optimizer = row.build(params[:1])
    optimizer.add_param_group({"params": params[1:2]})
    params[0].grad = torch.ones_like(params[0])
    params[1].grad = torch.ones_like(params[1]).to_sparse()
    with pytest.raises(ArgumentError) as caught:
        optimizer.step()
    name = row.kind.__name__
    fault = f"{name}: gradients must be dense; got torch.sparse_coo. Build the layer with sparse=False."
    assert str(caught.value) == fault
    assert equal([params[0].detach()], [row.start()[0].detach()])


@EVERY
def test_a_complex_parameter_is_refused(row: Row):
    with pytest.raises(ArgumentError) as caught:
        row.build([torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))])
    fault = "parameters must be real; got torch.complex64. Optimize torch.view_as_real(parameter) instead."
    assert str(caught.value) == f"{row.kind.__name__}: {fault}"


@EVERY
def test_a_grad_scaler_skips_an_overflow_and_unscales_the_rest(row: Row):
    scaled, plain = row.start(), row.start()
    optimizer, reference = row.build(scaled), row.build(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value in (math.inf, 1.0):
        loss: Tensor = sum((value * p.sum() for p in scaled), torch.zeros(()))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for param in plain:
        param.grad = torch.ones_like(param)
    reference.step()
    assert equal([p.detach() for p in scaled], [p.detach() for p in plain])


@EVERY
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_an_accelerator_gives_the_same_as_the_cpu(row: Row):
    results: list[list[Tensor]] = []
    for device in ("cpu", "cuda"):
        params = [torch.nn.Parameter(p.detach().to(device)) for p in row.start()]
        results.append([value.cpu() for value in train(row.build(params), params)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
