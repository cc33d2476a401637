"""Advice on small models: what is measured is real, and nothing of the user's is changed."""

import copy
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.advise import Advice, advise
from ordered_sgd.lab.advise.advice_page import advice_page, expected_rows, step_rows
from ordered_sgd.lab.advise.candidate import alike, make_candidate, pair, per_sample
from ordered_sgd.lab.advise.forecast import RECOMMENDED, WORTH, Expected
from ordered_sgd.lab.advise.steps import _first_calls, measure_steps
from ordered_sgd.lab.advise.warmup import carried, found_again, warm_up
from ordered_sgd.lab.advise.words import RATE, code_for, path_of

SIZES = [(torch.ones(n, 2), torch.ones(n).long()) for n in (20, 400, 30, 50)]
RESULTS = Path(__file__).parents[3] / "RESULTS.md"


def loader(n: int = 96, s: int = 16, classes: int = 3) -> DataLoader[Any]:
    torch.manual_seed(0)
    x = torch.randn(n, 20)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long() * (classes > 2)), s, shuffle=True)


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), *layers, nn.ReLU(), nn.Linear(64, 3))


def quick(model: nn.Module, criterion: Any, batches: Any, *more: Any) -> Advice:
    return advise(model, criterion, batches, *more, epochs=3, minutes=0.02)


@pytest.fixture(scope="module")
def found() -> Advice:
    return quick(network(), nn.CrossEntropyLoss(), loader())


def test_every_engine_is_timed_at_every_q_and_its_gradient_compared(found: Advice) -> None:
    steps = {(step.engine, step.q): step for step in found.costs.steps}
    assert {engine for engine, _ in steps} == {"sgd", "dense", "selective", "twopass", "memory"}
    assert {q for _, q in steps} == {16, 8, 4, 2, 1}
    for (engine, _), step in steps.items():
        assert step.seconds is not None
        assert step.low <= step.seconds <= step.high  # type: ignore[operator]
        assert step.exact == (engine != "memory"), step
        assert engine in ("sgd", "memory") or step.error < 1e-5  # type: ignore[operator]
    assert steps["selective", 4].ran == "selective"  # samples were really left out


def test_the_verdict_agrees_with_the_expected_times(found: Advice) -> None:
    best = min((way for way in found.expected if way.way in RECOMMENDED), key=lambda way: way.ratio)
    assert found.best == best
    assert found.worth == (best.ratio <= WORTH and best.engine != "dense")
    assert found.verdict.startswith("Worth it" if found.worth else "Not worth it")
    assert f"{best.ratio:.2f} of plain SGD's time" in found.verdict


def test_the_training_is_looked_at_while_it_learns(found: Advice) -> None:
    warm = found.warm_up
    assert warm.per_epoch == 6
    assert 0 < warm.epochs <= 5
    assert warm.accuracy is not None
    assert found.warm_up.carried[16] == pytest.approx(1)
    assert warm.carried[4] > 4 / 16
    assert 0 <= warm.remembered[4] <= 1
    assert warm.remembered[16] == 1
    assert warm.looked_at == 96


def test_model_optimizer_and_random_numbers_stay_as_they_were() -> None:
    model = network(nn.Dropout(0.1)).eval()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    batches = [next(iter(loader()))] * 4
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    quick(model, nn.CrossEntropyLoss(reduction="none"), batches, optimizer)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model.training
    assert not optimizer.state
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_batchnorm_is_not_worth_it_exactly_and_the_approximation_is_named() -> None:
    found = quick(network(nn.BatchNorm1d(64)), nn.CrossEntropyLoss(), loader())
    assert not found.worth
    assert "BatchNorm in training couples the samples" in found.verdict
    assert 'engine=Rows(batchnorm="full-batch")' in found.code
    rows = next(step for step in found.costs.steps if step.engine == "rows" and step.q == 4)
    assert not rows.exact
    assert rows.error > 1e-3  # type: ignore[operator]
    whole = next(step for step in found.costs.steps if step.engine == "selective" and step.q == 4)
    assert whole.exact
    assert not found.costs.leaves_out("selective")
    assert "statistics over the batch" in whole.why


def test_regression_has_no_rule_of_accuracy() -> None:
    x = torch.randn(64, 20)
    batches = [(part, part[:, :1]) for part in x.split(16)]
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 1))
    found = quick(model, nn.MSELoss(), batches)
    assert [way.way for way in found.expected] == ["plain SGD", "q = s/2", "q = s/4"]
    assert found.warm_up.accuracy is None


def test_a_large_output_layer_is_weighed() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(2000, 8), nn.Linear(8, 2000)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.embedding(x))
            return scores

    def per_token(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.transpose(1, 2), y, reduction="none")

    text = torch.randint(2000, (32, 9))
    found = quick(Words(), per_token, [(part[:, :-1], part[:, 1:]) for part in text.split(8)])
    assert found.costs.head_share is not None
    assert 0.01 < found.costs.head_share <= 1
    assert any("ordered_linear_cross_entropy" in sentence for sentence in found.findings)


def test_an_engine_that_cannot_run_says_why() -> None:
    class OnlyFull(nn.Module):  # two passes call it with fewer samples
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 3)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 16:
                raise RuntimeError("a batch has 16 samples here")
            scores: Tensor = self.layer(x)
            return scores

    candidate = make_candidate(OnlyFull(), nn.CrossEntropyLoss(), loader(), None)
    step = measure_steps(candidate, seconds=0.1, tick=lambda share: None).at("twopass", 4)
    assert step.ran == "dense"
    assert "16 samples here" in step.why


def test_a_step_that_raises_is_left_out_unless_it_is_the_plain_one() -> None:
    def broken() -> None:
        raise RuntimeError("no such kernel")

    steps = SimpleNamespace(calls={"sgd": lambda: None, "twopass": broken})
    failed, compiling = _first_calls(steps, ("sgd", "twopass"))  # type: ignore[arg-type]
    assert failed == {"twopass": "no such kernel"}
    assert compiling == 0
    with pytest.raises(RuntimeError):
        _first_calls(SimpleNamespace(calls={"sgd": broken}), ("sgd",))  # type: ignore[arg-type]


def test_wrong_labels_stand_apart() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    y = (x[:, 0] > 0).long()
    y[:20] = 1 - y[:20]
    batches = DataLoader(TensorDataset(3 * x, y), 16, shuffle=True)
    candidate = make_candidate(nn.Linear(20, 2), nn.CrossEntropyLoss(), batches, None)
    assert 5 <= warm_up(candidate, seconds=1.0, tick=lambda share: None).suspects <= 25


def test_the_page_and_the_tables_hold_what_was_found(found: Advice) -> None:
    page = advice_page(found, "a <model>")
    assert "a &lt;model&gt;" in page
    assert found.verdict in page.replace("&#39;", "'")
    assert page.count("<svg") == 1
    assert step_rows(found)[0]["step"] == "plain SGD"
    assert expected_rows(found.expected)[0]["of plain SGD's"] == "1.00"
    assert json.loads(json.dumps(found.to_dict()))["s"] == 16
    assert str(found).startswith(found.verdict)


def test_the_lines_to_write_run() -> None:
    for way in RECOMMENDED:
        for engine in ("selective", "twopass"):
            lines = code_for(Expected(way, engine, 1.0, 0.5, (16,)), coupled=False)
            model = network()
            x, y = next(iter(loader()))
            names = {"model": model, "criterion": nn.CrossEntropyLoss(reduction="none"), "x": x, "y": y}
            exec(lines, names | {"optimizer": torch.optim.SGD(model.parameters(), 0.1)})


def test_what_the_advice_says_of_the_rate_is_in_the_results() -> None:
    said = r"at their best learning rates, picked on the test set, ordered SGD at ([\d.]+) .*? SGD at ([\d.]+) "
    pairs = [(float(ordered), float(plain)) for ordered, plain in re.findall(said, RESULTS.read_text())]
    assert len(pairs) >= 16
    assert all(plain / 4 < ordered <= plain for ordered, plain in pairs)
    assert "never above" in RATE


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), []), "advise: loader must yield batches; got none."),
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), [torch.ones(4, 2)]), "must yield inputs and targets; got a Tensor."),
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), [(1, 2, 3)]), "got a tuple of 3. Yield pairs (x, y)"),
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), iter([])), "loader must be one that can be gone through several"),
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), nn.Linear(2, 2)), "advise: loader must yield batches; got Linear."),
        (
            (nn.Linear(2, 2), nn.CrossEntropyLoss(), SIZES),
            "yield batches of one size, but for the last; got sizes from",
        ),
        ((nn.Linear(2, 2).requires_grad_(False), nn.CrossEntropyLoss(), []), "model must have parameters to train"),
        ((nn.Linear(2, 2), nn.CrossEntropyLoss(), [], "sgd"), "advise: optimizer must be a torch optimizer"),
        (
            (nn.Linear(2, 1), nn.MSELoss(), [(torch.ones(4, 2), torch.ones(4))]),
            "got shape (4, 4) from (4, 1) and (4,). Give outputs and targets the same shape.",
        ),
        ((len, nn.CrossEntropyLoss(), []), "advise: model must be a torch module; got builtin_function_or_method."),
        ((nn.Linear(2, 2), "ce", []), "advise: criterion must be callable; got str."),
        (
            (nn.Linear(2, 2), lambda out, y: (out - y).mean(), [(torch.ones(4, 2), torch.ones(4, 1))]),
            'criterion must return one loss per sample, shape (s,); got a scalar. Build it with reduction="none".',
        ),
    ],
)
def test_what_cannot_be_advised_on_is_one_clear_error(given: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(text)):
        advise(*given)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="optimizer must train the model's parameters"):
        advise(network(), nn.CrossEntropyLoss(), loader(), torch.optim.SGD(network().parameters(), 0.1))


def test_an_optimizer_is_copied_with_its_groups() -> None:
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
    made = alike(torch.optim.AdamW(groups, lr=0.1, betas=(0.5, 0.6)), model)(copied := copy.deepcopy(model))
    assert [group["lr"] for group in made.param_groups] == [0.5, 0.1]
    assert made.param_groups[1]["betas"] == (0.5, 0.6)
    assert made.param_groups[0]["params"][0] is copied[0].weight


def test_batches_of_dicts_have_labels() -> None:
    x, y = pair({"input_ids": torch.ones(2, 3), "labels": torch.zeros(2)})
    assert list(x) == ["input_ids"]
    assert y.shape == (2,)


def test_losses_are_one_for_each_sample() -> None:
    losses = per_sample(nn.MSELoss())
    assert torch.equal(losses(torch.ones(4, 3), torch.zeros(4, 3)), torch.ones(4))


def test_shares_and_recall_by_hand() -> None:
    import numpy as np

    losses = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert carried(losses, [1, 2, 4]) == {1: pytest.approx((0.4 + 0.25) / 2), 2: pytest.approx(0.6), 4: 1.0}
    assert found_again(losses, losses[:, ::-1], 2) == pytest.approx((0 + 1) / 2)
    assert path_of([8, 8, 4, 4, 4]) == "8 (1-2), 4 (3-5)"


def test_reduced_functions_and_flat_losses_of_tokens_are_losses_of_samples() -> None:
    outputs, y = torch.randn(4, 5, 7), torch.randint(7, (4, 5))

    def flat(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")

    each = nn.functional.cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(1)
    torch.testing.assert_close(per_sample(flat)(outputs, y), each)
    one = per_sample(nn.functional.cross_entropy)(outputs[:, 0], y[:, 0])
    torch.testing.assert_close(one, nn.functional.cross_entropy(outputs[:, 0], y[:, 0], reduction="none"))


def test_frozen_batchnorm_stays_frozen_and_a_model_in_evaluation_is_trained() -> None:
    model = network(nn.BatchNorm1d(64)).train()
    model[1].eval()
    assert not make_candidate(model, nn.CrossEntropyLoss(), loader(), None).coupled
    assert make_candidate(model.eval(), nn.CrossEntropyLoss(), loader(), None).coupled


def test_an_epoch_without_an_end_is_an_error_and_not_a_guess() -> None:
    class Endless:
        def __iter__(self) -> Any:
            return itertools.cycle(loader())

    with pytest.raises(ArgumentError, match="an epoch must end while it is looked at, or have a length; got more than"):
        quick(network(), nn.CrossEntropyLoss(), Endless())


def test_a_training_that_diverges_names_the_rate() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 1e30)
    with pytest.raises(ArgumentError, match=r"losses must stay finite in the training.* Lower the learning rate"):
        quick(model, nn.CrossEntropyLoss(), loader(), optimizer)
