import json
from pathlib import Path

import pytest

from ordered_sgd.lab.bench.loss_epochs import TASKS
from ordered_sgd.lab.report.accumulation_bench import accumulation_bench_page
from ordered_sgd.lab.report.distributed_bench import distributed_bench_page
from ordered_sgd.lab.report.head_bench import head_bench_page
from ordered_sgd.lab.report.linear_bench import linear_bench_page
from ordered_sgd.lab.report.losses_bench import losses_bench_page
from ordered_sgd.lab.report.step_bench import step_bench_page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_figures_of_the_engine_page_are_those_of_its_record() -> None:
    record = json.loads((DOCS / "records" / "bench-step.json").read_text())
    page = (DOCS / "engines.md").read_text()
    assert page == step_bench_page(page, record, "engines.svg")
    assert (DOCS / "engines.svg").exists()


def test_the_figures_of_the_page_on_linear_models_are_those_of_its_record() -> None:
    record = json.loads((DOCS / "records" / "bench-linear.json").read_text())
    page = (DOCS / "linear.md").read_text()
    assert page == linear_bench_page(page, record)
    assert len(record["reached"]) == 6


@pytest.mark.skipif(not (DOCS / "records" / "bench-distributed.json").exists(), reason="not measured yet")
def test_the_figures_of_the_page_on_ranks_are_those_of_its_record() -> None:
    record = json.loads((DOCS / "records" / "bench-distributed.json").read_text())
    page = (DOCS / "distributed.md").read_text()
    assert page == distributed_bench_page(page, record)
    assert {row["ranks"] for row in record["rows"]} == {1, 2}


def test_the_figures_of_other_losses_on_the_selective_page_are_those_of_their_record() -> None:
    record = json.loads((DOCS / "records" / "bench-losses.json").read_text())
    page = (DOCS / "selective.md").read_text()
    assert page == losses_bench_page(page, record)
    assert {row["loss"] for row in record["losses"]} == set(TASKS)
    assert all(row["difference"] < 1e-5 for row in record["losses"])
    assert not any(row["why"] for row in record["losses"])


@pytest.mark.skipif(not (DOCS / "records" / "bench-head.json").exists(), reason="not measured yet")
def test_the_figures_of_the_page_on_language_models_are_those_of_their_record() -> None:
    record = json.loads((DOCS / "records" / "bench-head.json").read_text())
    page = (DOCS / "language.md").read_text()
    assert page == head_bench_page(page, record)
    assert (512, 50_304) in {(row["width"], row["words"]) for row in record["heads"]}
    assert all(row["error"] < 1e-5 for row in record["heads"] if row["way"] == "ordered")
    assert record["steps"]


def test_the_figures_of_gradient_accumulation_are_those_of_their_record() -> None:
    record = json.loads((DOCS / "records" / "bench-accumulation.json").read_text())
    page = (DOCS / "loop.md").read_text()
    assert page == accumulation_bench_page(page, record)
    regrouped = [row for row in record["accumulation"] if row["way"] == "regrouped"]
    assert {row["ran"] for row in regrouped} == {"micro-batches, regrouped"}
    assert all(row["error"] < 1e-5 for row in regrouped)
