"""A part of a published data set is never trained on under the name of the whole."""

from dataclasses import replace

import numpy as np
import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data import Dataset
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.experiments import run
from ordered_sgd.lab.experiments.run import counted, problem_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec

WHOLE = Dataset(np.zeros((40, 3, 32, 32), np.uint8), np.arange(40) % 10, CATALOG["cifar10"].classes, "cifar10")
PART = replace(WHOLE, missing="49,960 of 50,000 training samples")
SPEC = ExperimentSpec(data="cifar10", model="preact-resnet18")


def test_a_partial_set_must_be_asked_for_by_its_size() -> None:
    for size in (None, 41):
        with pytest.raises(ArgumentError, match=r"cifar10 must be whole; got all but 49,960 .* --train-size 40"):
            problem_for(SPEC.but(train_size=size), (PART, WHOLE))
    assert len(problem_for(SPEC.but(train_size=40), (PART, WHOLE)).train) == 40
    assert len(problem_for(SPEC, (WHOLE, WHOLE)).train) == 40


def test_the_size_of_a_partial_set_is_put_into_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, size in ((PART, 40), (WHOLE, None)):
        monkeypatch.setattr(run, "load", lambda *args, here=here, **options: here)
        assert counted(SPEC).train_size == size
    assert counted(ExperimentSpec(data="mine.csv")) == ExperimentSpec(data="mine.csv")
