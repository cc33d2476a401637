import json

import pytest

from ordered_sgd.errors import RecordError
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.experiments.results import RESULTS


def test_a_request_comes_back_from_json_as_it_was() -> None:
    for one in (Request("figure1"), Request("table1", ("semeion-*",), 3, "paper", {"counts": True}, 2, 100, 0.5)):
        assert Request.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_rows_are_picked_and_made_smaller() -> None:
    shown = Request("table1", ("semeion-svm",), epochs=3, switches={"hidden_rule": True}).shown()
    assert [row.id for row in shown.rows] == ["semeion-svm"]
    assert {(spec.epochs, spec.hidden_rule) for spec in shown.rows[0].arms.values()} == {(3, True)}


def test_every_result_that_is_shown_can_be_asked_for_and_is_there_once() -> None:
    rows = [(one.exhibit, one.protocol, row.id) for one in RESULTS for row in one.shown().rows]
    assert len(set(rows)) == len(rows)
    for protocol in ("paper", "authors-code"):
        assert ("table1", protocol, "semeion-logistic-aug") in rows
        for name in ("semeion-logistic", "semeion-svm", "semeion-lenet", "mnist-logistic", "mnist-svm"):
            assert ("table1", protocol, name) in rows
            assert name.startswith("mnist") or ("table5", protocol, name) in rows
    assert {
        ("ablation", "authors-code", "mnist-svm-hidden-on-hinge-mean-lr-0.01"),
        ("ablation", "authors-code", "semeion-lenet-hidden-off-lr-0.03"),
        ("whole-training", "authors-code", "mnist-lenet"),
        ("whole-training", "authors-code", "fashion-mnist-lenet"),
        ("label-noise", "paper", "digits-40"),
    } <= {*rows}
    assert {("batchnorm", "authors-code", "cifar10-preact-resnet18"), ("figure1", "paper", "figure1a")} <= {*rows}


def test_a_request_of_another_version_is_refused_as_such() -> None:
    with pytest.raises(RecordError, match="be one of this version"):
        Request.from_dict({"exhibit": "figure1", "rows": [], "shrink": {}})
