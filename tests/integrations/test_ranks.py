"""Trainers on two real processes; the fast twin for Lightning is in test_lightning.py."""

import json
from pathlib import Path

import pytest
import torch

from tests.distributed.launch import torchrun

JOB = Path(__file__).with_name("ranks_job.py")


@pytest.mark.slow
def test_two_ranks_keep_the_q_largest_of_both_and_end_at_the_weights_of_one_process(tmp_path: Path) -> None:
    run = torchrun(2, JOB, tmp_path, timeout=600)
    assert run.returncode == 0, run.stderr[-4000:]
    ranks = json.loads((tmp_path / "results.json").read_text())
    assert len(ranks) == 2
    for results in ranks:
        partners = {"lightning", "huggingface", "head", "accelerate", "samples", "updates"}
        assert set(results) == partners | {"lightning itself", "accelerate selective"}
        for name, found in results.items():
            assert found["error"] < 2e-6, (name, found)
            assert found["same"], (
                name,
                found,
            )  # the rule has moved q as in one process; tokens: there is a group, and the head ran


@pytest.mark.slow
def test_two_ranks_with_a_batch_sampler_are_the_plain_trainer_or_resume_with_the_same_bits(tmp_path: Path) -> None:
    run = torchrun(2, JOB.with_name("sampled_ranks_job.py"), tmp_path, timeout=600)
    assert run.returncode == 0, run.stderr[-4000:]
    for results in json.loads((tmp_path / "results.json").read_text()):
        assert set(results) == {"lightning", "huggingface", "updates"}
        for name, found in results.items():
            logged = found.pop("logged")
            assert {"ordered/loaded", "ordered/recall"} <= set(logged)
            assert 0.3 < logged["ordered/loaded"] < 0.9
            assert all(found.values()), (name, found)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["token", "sample"])
def test_two_ranks_of_an_sft_trainer_end_at_the_weights_of_one_process(unit: str, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason='trl is in the extra "trl"')
    for ranks in (1, 2):
        run = torchrun(ranks, JOB.with_name("trl_ranks_job.py"), tmp_path, unit, str(ranks), timeout=300)
        assert run.returncode == 0, run.stderr[-4000:]
    one, two = (torch.load(tmp_path / f"weights-{ranks}.pt") for ranks in (1, 2))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=2e-6)
