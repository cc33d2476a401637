import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd import OrderedStep, StepRecord
from ordered_sgd.engines import Memory
from tests.step_parts import CE, batch, network, sgd

PAGE = Path(__file__).parents[1] / "docs" / "loop.md"


def record_of(**options: Any) -> StepRecord:
    model = network()
    return OrderedStep(model, CE, sgd(model), **{"q": 8, **options})(*batch())


def test_a_record_as_a_dict_holds_plain_numbers_and_the_engine() -> None:
    record = record_of()
    found = record.to_dict()
    assert list(found) == ["q", "count", "engine", "ordered_loss", "mean_loss", "correct"]
    assert [type(value) for value in found.values()] == [int, int, str, float, float, int]
    assert json.loads(json.dumps(found)) == found
    assert (found["q"], found["count"], found["engine"]) == (8, 32, "dense")
    assert found["ordered_loss"] == record.ordered_loss.item()
    assert found["mean_loss"] == record.mean_loss.item()
    assert found["correct"] == record.correct


def test_float64_losses_keep_their_digits() -> None:
    model = nn.Linear(6, 1).double()
    step = OrderedStep(model, nn.MSELoss(reduction="none"), sgd(model), q=0.5)
    record = step(torch.randn(8, 6).double(), torch.randn(8, 1).double())
    found = record.to_dict()
    assert found["ordered_loss"] == record.ordered_loss.item()
    assert "correct" not in found


def test_a_skipped_update_has_a_q_of_zero_and_no_ordered_loss() -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=8, nonfinite="skip")
    x, y = batch()
    x[0] = torch.nan
    found = step(x, y).to_dict()
    assert found["q"] == 0
    assert found["ordered_loss"] != found["ordered_loss"]
    masked = StepRecord(2, 3, "dense", torch.ones(3), torch.tensor([0, 1]), None, torch.tensor(1.0))  # on the device
    assert masked.to_dict()["q"] == 0


def test_estimates_of_the_engine_with_a_memory_are_floats_and_come_with_the_recall() -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=4, engine=Memory(candidates=8))
    x, y = batch()
    found = [step(x, y, index=torch.arange(32)).to_dict() for _ in range(6)]
    assert found[0]["recall"] == 1.0  # of the first batch everything is scored
    estimated = [record for record in found if record["engine"] == "memory"]  # the others are audits
    assert len(estimated) >= 3
    assert all(type(record["correct"]) is float for record in estimated)


def lines() -> dict[str, str]:
    """The lines of the page, by logger."""
    section = PAGE.read_text().partition("### Logging")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+) \| `(.+)` \|$", section, flags=re.MULTILINE))


def test_tensorboard_reads_back_what_the_line_of_the_page_wrote(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason='it is in the extra "compat", which "dev" does not hold')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    records = [record_of(q=q) for q in (8, 4)]
    with SummaryWriter(str(tmp_path)) as writer:
        for n, record in enumerate(records):
            exec(lines()["TensorBoard"], {"writer": writer, "record": record, "n": n})
    read = EventAccumulator(str(tmp_path)).Reload()
    assert {tag.removeprefix("train/") for tag in read.Tags()["scalars"]} == {*records[0].to_dict()} - {"engine"}
    for name in ("q", "count", "ordered_loss", "mean_loss", "correct"):
        values = [(event.step, event.value) for event in read.Scalars(f"train/{name}")]
        assert values == [(n, pytest.approx(record.to_dict()[name])) for n, record in enumerate(records)]


class Logged:
    """Stands for a logger's module, and keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, int]] = []

    def log(self, values: dict[str, Any], *, step: int) -> None:
        self.calls.append((values, step))

    log_metrics = log


@pytest.mark.parametrize(
    ("name", "module"), [("Weights & Biases", "wandb"), ("MLflow", "mlflow"), ("trackio", "trackio")]
)
def test_the_other_lines_of_the_page_hand_over_plain_values(name: str, module: str) -> None:
    logged, record = Logged(), record_of()
    exec(lines()[name], {module: logged, "record": record, "n": 3})
    ((values, step),) = logged.calls
    assert step == 3
    assert values["mean_loss"] == record.to_dict()["mean_loss"]
    assert ("engine" in values) == (name != "MLflow")  # whose metrics are numbers only
