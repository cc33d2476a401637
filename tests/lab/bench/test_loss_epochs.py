"""Training with losses that leave samples without a gradient, on few small images."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import Tensor, nn

from ordered_sgd import explain_backward, selective_backward
from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.bench import loss_epochs
from ordered_sgd.lab.bench.loss_epochs import (
    TASKS,
    LabelledImages,
    clipped,
    gradient_difference,
    loop_step,
    measure_loss,
)
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.data import Dataset, load
from ordered_sgd.lab.report.losses_bench import losses_bench_page, losses_bench_tables


def stripes(n: int = 64) -> Dataset:
    """Noisy 16x16 images of two classes that differ in which half is bright."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = rng.integers(0, 100, (n, 1, 16, 16), dtype=np.uint8)
    x[y == 0, :, :8] += 150
    x[y == 1, :, 8:] += 150
    return Dataset(x, y, ("upper", "lower"), "stripes")


def images() -> LabelledImages:
    return LabelledImages(stripes(), 64, np.random.default_rng(0))


def small_model(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, outputs))


def rows_with_gradient(loss: Any, outputs: Sequence[Tensor], targets: Any) -> list[int]:
    leaves = [output.detach().requires_grad_() for output in outputs]
    return [int(grad.ne(0).any(1).sum()) for grad in torch.autograd.grad(loss(leaves, targets), leaves)]


@pytest.mark.parametrize("name", TASKS)
def test_the_backward_computes_the_samples_to_which_the_loss_gives_a_gradient(name: str) -> None:
    task, data, model = TASKS[name], images(), selective_backward(small_model(TASKS[name].outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = []
    for batch in (batch for _ in range(3) for batch in task.batches(model, data, 16)):
        expected += rows_with_gradient(task.loss, [model(x) for x in batch.inputs], batch.targets)
        loop_step(model, optimizer, task.loss, batch)
    report = explain_backward(model)
    assert report.rows == sum(max(1, rows) for rows in expected)  # at least one row is always computed
    assert report.rows < 0.9 * report.samples


def test_ratios_clipped_on_the_side_of_the_advantage_get_no_gradient() -> None:
    ratios = torch.tensor([1.3, 1.3, 0.7, 0.7, 1.1])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    scores = torch.zeros(5, 2, requires_grad=True)  # each action has probability 1/2
    old = torch.log(0.5 / ratios)
    clipped([scores], (torch.zeros(5, 1, dtype=torch.int64), old[:, None], advantage[:, None])).backward()
    assert scores.grad is not None
    assert scores.grad.ne(0).any(1).tolist() == [False, True, True, False, True]
    assert scores.grad[4].tolist() == pytest.approx([-1.1 / 2 / 5, 1.1 / 2 / 5])  # -ratio * advantage * (1 - p) / s


def test_images_whose_actions_were_rewarded_alike_have_no_advantage_in_grpo() -> None:
    data = images()

    class Knows(nn.Module):
        """Always right for bright upper halves, undecided otherwise."""

        def forward(self, x: Tensor) -> Tensor:
            upper = x[:, 0, :8].mean((1, 2)) > x[:, 0, 8:].mean((1, 2))
            return torch.stack([100.0 * upper, torch.zeros(len(x))], 1)

    for batch in TASKS["grpo"].batches(Knows(), data, 16):
        advantage = batch.targets[2]
        upper = batch.inputs[0][:, 0, :8].mean((1, 2)) > 0.5
        assert advantage[upper].eq(0).all()
        mixed = advantage[~upper].ne(0).any(1)
        assert mixed.float().mean() > 0.8  # all eight alike: 2 in 256
        assert advantage[~upper].mean(1).abs().max() < 1e-6


def test_a_triplet_has_two_images_of_one_class_and_one_of_another() -> None:
    data = images()
    three = next(TASKS["triplet"].batches(nn.Identity(), data, 16)).inputs
    data.rng = np.random.default_rng(0)
    (joined,) = next(TASKS["triplet-joined"].batches(nn.Identity(), data, 16)).inputs
    again = next(TASKS["triplet"].batches(nn.Identity(), LabelledImages(stripes(), 64, np.random.default_rng(0)), 16))
    assert torch.equal(joined, torch.cat(again.inputs))
    anchor, positive, negative = (part[:, 0, :8].mean((1, 2)) > 0.5 for part in three)
    assert torch.equal(anchor, positive)
    assert torch.equal(anchor, ~negative)


def test_a_policy_that_is_rewarded_for_the_right_class_learns_it() -> None:
    data, model = images(), small_model(2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        for batch in TASKS["ppo"].batches(model, data, 16):
            loop_step(model, optimizer, TASKS["ppo"].loss, batch)
    assert (model(data.x).argmax(1) == data.y).float().mean() > 0.95


def test_the_difference_of_gradients_is_relative_to_the_plain_one() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    for model, slope in ((one, 3.0), (other, 6.0)):
        model.weight.grad, model.bias.grad = torch.full((1, 1), slope), torch.full((1,), 4.0)
    assert math.isclose(gradient_difference(one, other), 3 / 5)
    for model in (one, other):
        model.zero_grad(set_to_none=False)
    assert gradient_difference(one, other) == 0


def test_the_copies_train_in_step_and_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = measure_loss("hinge", stripes(), n=64, s=16, epochs=1)
    assert row.steps == 4
    assert row.difference < 1e-5
    assert 0 < row.low <= row.speedup <= row.high
    assert row.why == ""

    def wrong(model: nn.Module) -> nn.Module:
        selective_backward(model)
        next(model.parameters()).register_hook(lambda gradient: 1.01 * gradient)
        return model

    monkeypatch.setattr(loss_epochs, "selective_backward", wrong)
    (row,) = measure_loss("hinge", stripes(), n=64, s=16, epochs=1)
    assert 1e-4 < row.difference < 1e-2


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_the_command_prints_a_table_and_its_record_makes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_sgd.lab.data.load", lambda name: stripes())
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    done = run("losses", "--losses", "hinge, ppo", "--s", "16", "--epochs", "1", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "LeNet on 64 images of fashion-mnist, s = 16, 1 epochs" in done.stdout
    record = json.loads(out.read_text())
    assert [(row["loss"], row["steps"]) for row in record["losses"]] == [("hinge", 4), ("ppo", 16)]
    page.write_text("Before\n<!-- bench-losses -->\nold\n<!-- /bench-losses -->\nAfter\n")
    assert run("page", str(out), str(page)).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert "| PPO | " in text
    assert text == losses_bench_page(text, record)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--losses", "hinges"), "--losses must be one of hinge, triplet, triplet-joined, ppo, grpo; got 'hinges'."),
        (("--data", "figure1a"), "--data must hold images; got samples of shape (2,). Leave it out for"),
        (("--n", "100"), "--n must be at least two batches of s = 64; got 64. Lower --s, or use"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_measured(
    arguments: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_sgd.lab.data.load", lambda name: load(name) if name == "figure1a" else stripes())
    done = run("losses", *arguments)
    assert isinstance(done.exception, ArgumentError)
    assert str(done.exception).startswith("osgd bench: ")
    assert text in str(done.exception)


def test_the_table_shows_losses_that_gain_nothing_and_why() -> None:
    def row(epoch: int, **given: Any) -> dict[str, Any]:
        fixed = {"loss": "hinge", "epoch": epoch, "steps": 9, "share": 1.0, "plain": 2.0, "selective": 2.0}
        return fixed | {"speedup": 1.0, "low": 0.9, "high": 1.1, "difference": 3e-8, "why": ""} | given

    fast = row(2, share=0.5, selective=1.0, speedup=2.0, low=1.8, high=2.0)
    record = {"n": 64, "data": "mnist", "s": 16, "epochs": 2, "losses": [row(1), fast]}
    (lines,) = losses_bench_tables(record).values()
    assert list(lines[0].values()) == ["hinge", "100, 50, 75 %", "1.00 ± 0.10", "2.00 ± 0.10", "1.33", "3e-08"]
    record["losses"] = [row(1, why="BatchNorm")]
    (lines,) = losses_bench_tables(record).values()
    assert lines[0]["loss"] == "hinge (whole batches: BatchNorm)"
