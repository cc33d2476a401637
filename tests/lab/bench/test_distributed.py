"""What the selection over ranks costs: measured on few samples, or made up."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.lab.bench import distributed
from ordered_sgd.lab.bench.distributed import Constants, constants, measure_message, measure_ranks, predict
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.report.distributed_bench import distributed_bench_page, distributed_bench_tables
from ordered_sgd.ranks import HEAD

SECONDS = {"plain": 0.010, "local": 0.011, "global": 0.012, "264": 1e-4, "262144": 3e-4}


def made_up(ranks: int, call: str) -> Any:
    names = ("264", "262144") if ".time_messages(" in call else ("plain", "local", "global")
    return {name: {"median": SECONDS[name], "low": SECONDS[name], "high": 1.2 * SECONDS[name]} for name in names}


@pytest.fixture
def _without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "on_ranks", made_up)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def test_a_message_between_two_processes_has_a_latency() -> None:
    assert 0 < measure_message(s=4, rounds=2).latency < 1


@pytest.mark.usefixtures("_without_measuring")
def test_a_row_says_what_keeping_the_largest_of_all_adds() -> None:
    plain, local, ours = measure_ranks("mlp", 2, s=64, q=0.25)
    assert [row.q for row in (plain, local, ours)] == [128, 32, 32]
    assert ours.over_local == pytest.approx(0.001)
    assert ours.over_plain == pytest.approx(0.002)
    assert (plain.over_plain, local.over_local) == (0, 0)


def test_the_longer_the_message_the_more_it_takes_unless_that_is_noise() -> None:
    found = constants({264: 1e-4, 262144: 3e-4})
    assert found.latency + 264 * found.seconds_per_byte == pytest.approx(1e-4)
    assert found.latency + 262144 * found.seconds_per_byte == pytest.approx(3e-4)
    assert constants({264: 1e-4, 262144: 0.9e-4}) == Constants(1e-4, 0.0)


def test_on_two_ranks_a_tree_and_a_ring_are_the_same_and_more_ranks_cost_more() -> None:
    network = Constants(1e-4, 1e-9)
    found = [predict("mlp", n, s=64, step=0.01, choosing=0.0, network=network) for n in (2, 8, 64, 1024)]
    assert found[0].doubling == found[0].ring
    assert [round((row.doubling - row.bytes_received * 1e-9) / 1e-4) for row in found] == [1, 3, 6, 10]
    assert [round((row.ring - row.bytes_received * 1e-9) / 1e-4) for row in found] == [1, 7, 63, 1023]
    assert [row.bytes_received for row in found] == [4 * (64 + HEAD) * n for n in (1, 7, 63, 1023)]


@pytest.mark.usefixtures("_without_measuring")
def test_the_command_prints_two_tables_and_its_record_makes_the_page(tmp_path: Path) -> None:
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    done = run("distributed", "--models", "mlp,lenet", "--rounds", "2", "--out", str(out))
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    assert [(row["model"], row["ranks"]) for row in record["rows"]][::3] == [
        ("mlp", 1), ("mlp", 2), ("lenet", 1), ("lenet", 2)
    ]  # fmt: skip
    assert [row["ranks"] for row in record["predicted"]] == 2 * [2, 8, 64, 1024]
    titles = list(distributed_bench_tables(record))
    page.write_text("Before\n<!-- bench-distributed -->\nold\n<!-- /bench-distributed -->\nAfter\n")
    assert run("page", str(out), str(page)).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert all(f"**{title}**" in text for title in titles)
    assert "| mlp | 2 | 32 | 10.00 ± 1.00 | 11.00 ± 1.10 | 12.00 ± 1.20 | +1.00 (+9.1 %) | +2.00 (+20.0 %) |" in text
    assert text == distributed_bench_page(text, record)


@pytest.mark.usefixtures("_without_measuring")
def test_another_network_can_be_given(tmp_path: Path) -> None:
    arguments = ("--models", "mlp", "--rounds", "2", "--json", "--out", str(tmp_path / "b.json"))
    done = run("distributed", *arguments, "--latency", "5", "--bandwidth", "10")
    record = json.loads(done.stdout)
    assert record["constants"] == {"latency": 5e-6, "seconds_per_byte": 1e-10}


@pytest.mark.slow
def test_a_small_measurement_on_two_ranks(tmp_path: Path) -> None:
    small = ("--models", "logistic", "--s", "8", "--rounds", "2", "--ranks", "2")
    done = run("distributed", *small, "--out", str(tmp_path / "b.json"))
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "b.json").read_text())
    assert [row["row"] for row in record["rows"]] == ["plain", "local", "global"]
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in record["rows"])
