import json

import numpy as np
import pytest

from ordered_sgd import theory
from ordered_sgd.lab.cli.main import main


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, float]]:
    with pytest.raises(SystemExit):
        main(["q", *arguments, "--json"])
    found: list[dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_the_numbers_are_those_of_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    for row in rows(capsys, "--n", "600", "--s", "64"):
        weights = theory.gamma_weights(600, 64, int(row["q"])) / row["q"]
        assert row["effective_samples"] == round(1 / np.sum(weights**2))
        assert row["hardest_1_percent"] == pytest.approx(weights[:6].sum())
        assert row["hardest_10_percent"] == pytest.approx(weights[:60].sum())


def test_the_paper_s_levels_are_the_default_and_small_batches_have_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["q"] for row in rows(capsys)] == [64, 32, 16, 8, 4]
    assert [row["q"] for row in rows(capsys, "--s", "6")] == [6, 3, 1]
    assert [row["q"] for row in rows(capsys, "--q", "5", "--q", "0.25")] == [5, 16]


def test_very_many_samples_are_answered_by_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    (many,), (limit,) = rows(capsys, "--n", "10000000000", "--q", "4"), rows(capsys, "--q", "4")
    assert many["effective_samples"] == round(limit["effective_share"] * 10**10)


def test_q_equal_to_s_is_the_plain_mean(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, "--s", "8", "--q", "8")
    assert (row["effective_share"], row["cvar_level"], row["hardest_10_percent"]) == pytest.approx((1, 1, 0.1))
