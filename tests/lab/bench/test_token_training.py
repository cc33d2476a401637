"""A tiny language model trained on some of its tokens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.bench import token_training
from ordered_sgd.lab.bench.token_training import Corpus, Size, TokenRun, encode, next_run, sample, train
from ordered_sgd.lab.bench.workloads import CausalTransformer
from ordered_sgd.lab.cli import bench_tokens
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.data.prose import Prose
from ordered_sgd.lab.report.tokens_bench import best_runs, draw_tokens_bench, tokens_bench_page, tokens_bench_tables

pytest.importorskip("tokenizers")
TINY = Size(vocabulary=300, layers=1, width=16, s=4, length=8, steps=6, points=3)
TEXT = Prose(["the cat sat on the mat"] * 200, ["the cat"] * 30, ["the mat"] * 30, {"cats": "1.0"})
RUN = TokenRun("plain", 1.0, 0.01, 0)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return encode(TEXT, TINY.vocabulary)


def test_encoding_ends_every_docstring_and_stays_in_the_vocabulary(corpus: Corpus) -> None:
    assert int((corpus.train == 0).sum()) == 200
    assert max(int(part.max()) for part in (corpus.train, corpus.validation, corpus.test)) < TINY.vocabulary


def test_targets_are_the_tokens_that_follow(corpus: Corpus) -> None:
    x, y = next(sample(corpus.train, TINY, torch.Generator().manual_seed(0)))
    assert x.shape == y.shape == (TINY.s, TINY.length)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_a_run_records_its_points_and_is_the_same_again(corpus: Corpus) -> None:
    first, again = train(RUN, corpus, TINY), train(RUN, corpus, TINY)
    assert [point["tokens"] for point in first["points"]] == [64, 128, 192]
    assert [p["loss"] for p in first["points"]] == [p["loss"] for p in again["points"]]
    assert first["points"][0]["seconds"] < first["points"][-1]["seconds"]
    assert first["points"][-1]["loss"] < first["points"][0]["loss"]


@pytest.mark.parametrize("kept", ["ordered", "random"])
def test_all_tokens_kept_trains_as_plain_does(kept: str, corpus: Corpus) -> None:
    expected = train(RUN, corpus, TINY)["test"]
    assert train(replace(RUN, kept=kept), corpus, TINY)["test"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("kept", "q"), [("ordered", 0.25), ("random", 0.25)])
def test_as_many_tokens_as_asked_have_a_gradient(kept: str, q: float) -> None:
    head, target = nn.Linear(4, 20), torch.randint(20, (32,))
    hidden = torch.randn(32, 4, requires_grad=True)
    TokenRun(kept, q, 0.1, 0).loss(hidden, head, target, torch.Generator().manual_seed(0)).backward()
    assert hidden.grad is not None
    rows = (hidden.grad.abs().sum(1) > 0).nonzero().squeeze(1)
    assert len(rows) == 8
    losses = F.cross_entropy(head(hidden), target, reduction="none")
    assert (set(rows.tolist()) == set(losses.topk(8).indices.tolist())) == (kept == "ordered")


def test_validation_is_the_mean_over_all_tokens(corpus: Corpus) -> None:
    torch.manual_seed(0)
    model = CausalTransformer(layers=1, width=16, vocabulary=TINY.vocabulary, length=TINY.length)
    tokens = corpus.validation[: 5 * TINY.length + 1]
    x, y = tokens[:-1].view(5, -1), tokens[1:].view(5, -1)
    expected = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    assert token_training.mean_loss(model, tokens, TINY) == pytest.approx(expected, rel=1e-5)


def fake(run: TokenRun) -> dict[str, Any]:
    """A record whose loss is lowest at the rate 0.01 for all, and at 0.1 for random tokens."""
    best = 0.1 if run.kept == "random" else 0.01
    loss = 1.0 + (run.rate != best) + 0.1 * run.seed
    points = [{"tokens": n, "seconds": n * run.q, "loss": loss + 1 / n} for n in (1, 2)]
    return {"kept": run.kept, "q": run.q, "rate": run.rate, "seed": run.seed, "points": points, "test": loss}


def fake_record(seeds: int = 3) -> dict[str, Any]:
    record: dict[str, Any] = {"size": vars(TINY), "packages": {"cats": "1"}, "trained": []}
    record["machine"] = {"processor": "P", "torch": "T"}
    while run := next_run(record["trained"], (0.5,), (0.01, 0.1), seeds):
        record["trained"].append(fake(run))
    return record


def test_the_first_seed_tries_all_rates_and_the_others_the_best() -> None:
    runs = fake_record()["trained"]
    tried = {(run["kept"], run["rate"]) for run in runs if run["seed"] > 0}
    assert len(runs) == 3 * (2 + 2)
    assert tried == {("plain", 0.01), ("ordered", 0.01), ("random", 0.1)}
    assert [run["seed"] for run in best_runs([run for run in runs if run["kept"] == "random"])] == [0, 1, 2]


def test_the_tables_compare_each_way_at_its_best_rate() -> None:
    first, second = tokens_bench_tables(fake_record()).values()
    assert [row["trained on"] for row in first] == ["all tokens", "the hardest 50 %", "a random 50 %"]
    assert [row["rate"] for row in first] == ["0.01", "0.01", "0.1"]
    assert [row["processor time"] for row in first] == ["1.00", "0.50", "0.50"]
    assert first[0]["validation loss"] == "1.600 (0.100)"
    assert second[0] == {"trained on": "all tokens", "rate 0.01": "1.500", "rate 0.1": "2.500"}


def test_the_page_is_filled_and_the_figure_drawn(tmp_path: Path) -> None:
    record = fake_record()
    page = tokens_bench_page("<!-- bench-tokens --><!-- /bench-tokens -->", record, "x.svg")
    assert "| the hardest 50 % | 0.01 |" in page
    assert page == tokens_bench_page(page, record, "x.svg")
    (path,) = draw_tokens_bench(record["trained"], tmp_path / "x")
    assert path.read_bytes() == draw_tokens_bench(record["trained"], tmp_path / "y")[0].read_bytes()


def test_the_command_records_every_run_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_training, "encode", lambda *args: None)
    monkeypatch.setattr(token_training, "train", lambda run, *args: fake(run))
    monkeypatch.setattr("ordered_sgd.lab.data.prose.prose", lambda: TEXT)
    out = tmp_path / "record.json"
    call = ["tokens", "--q", "0.5", "--rates", "0.01,0.1", "--steps", "6", "--out", str(out)]
    one = CliRunner().invoke(command, [*call, "--seeds", "1"])
    assert one.exit_code == 0, one.output
    assert "training 6 of 6" in one.stderr
    more = CliRunner().invoke(command, [*call, "--seeds", "2", "--resume"])
    assert more.exit_code == 0, more.output
    assert "training 7 of 9" in more.stderr
    assert len(json.loads(out.read_text())["trained"]) == 9
    other = CliRunner().invoke(command, [*call, "--steps", "7", "--resume"])
    assert isinstance(other.exception, ArgumentError)
    assert "same machine, packages and size" in str(other.exception)
    wrong = CliRunner().invoke(command, [*call, "--q", "1.0"])
    assert "--q must be shares between 0 and 1" in str(wrong.exception)
    assert bench_tokens.tokens.help
