import re
from dataclasses import asdict
from typing import Any

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER, SWITCHES, Protocol, base, preset
from ordered_sgd.lab.experiments.spec import ExperimentSpec


def changed(one: ExperimentSpec, other: ExperimentSpec) -> set[str]:
    return {name for name, value in asdict(one).items() if value != asdict(other)[name]}


def test_the_presets_differ_in_the_documented_switches_alone() -> None:
    paper, scripts = asdict(PAPER), asdict(AUTHORS_CODE)
    assert {name: (paper[name], scripts[name]) for name in SWITCHES if paper[name] != scripts[name]} == {
        "last_drop": (False, True),
        "hidden_rule": (False, True),
        "counts": (False, True),
        "hinge": ("sum", "mean"),
        "lenet_hidden": (1014, 1024),
        "lenet_dropout": (0.0, 0.5),
    }


# Model, augmented -> the fields of a spec in which the presets differ.
DIFFERENT = [
    ("logistic", False, {"drops", "hidden_rule", "counts"}),
    ("svm", False, {"drops", "hidden_rule", "counts", "loss"}),
    ("lenet", False, {"drops", "hidden_rule", "counts", "model_options"}),
    ("lenet", True, {"hidden_rule", "counts", "model_options"}),
    ("preact-resnet18", True, {"hidden_rule", "counts"}),
]


@pytest.mark.parametrize(("model", "augmented", "fields"), DIFFERENT)
def test_specs_of_the_presets_differ_in_what_the_switches_say(model: str, augmented: bool, fields: set[str]) -> None:
    specs = [base("mnist", model, protocol, augmented=augmented) for protocol in (PAPER, AUTHORS_CODE)]
    assert changed(*specs) == fields


TURNED: list[tuple[dict[str, Any], str, set[str]]] = [
    ({"last_drop": True}, "logistic", {"drops"}),
    ({"hidden_rule": True}, "logistic", {"hidden_rule"}),
    ({"counts": True}, "logistic", {"counts"}),
    ({"hinge": "mean"}, "svm", {"loss"}),
    ({"lenet_hidden": 1024}, "lenet", {"model_options"}),
    ({"lenet_dropout": 0.5}, "lenet", {"model_options"}),
    ({"accuracy": "epoch"}, "lenet", {"accuracy"}),
]


@pytest.mark.parametrize(("switch", "model", "fields"), TURNED)
def test_every_switch_can_be_turned_alone(switch: dict[str, Any], model: str, fields: set[str]) -> None:
    alone = preset("paper", **switch)
    assert changed(base("mnist", model, PAPER), base("mnist", model, alone)) == fields


def test_every_switch_is_among_those_that_are_turned_alone() -> None:
    assert {name for switch, _, _ in TURNED for name in switch} == set(SWITCHES)


def test_all_switches_turned_make_the_other_preset() -> None:
    turned = preset("paper", **{name: getattr(AUTHORS_CODE, name) for name in SWITCHES})
    assert all(getattr(turned, name) == getattr(AUTHORS_CODE, name) for name in SWITCHES)


@pytest.mark.parametrize("protocol", [PAPER, AUTHORS_CODE], ids=lambda protocol: protocol.name)
def test_the_text_s_numbers_hold_in_both_protocols(protocol: Protocol) -> None:
    plain, augmented = (base("cifar10", "preact-resnet18", protocol, augmented=a) for a in (False, True))
    for spec in (plain, augmented):
        assert (spec.s, spec.lr, spec.momentum, spec.weight_decay) == (64, 0.01, 0.9, 1e-4)
    assert (plain.drops[0], augmented.drops) == (10, (10, 100))


def test_epochs_are_the_scripts() -> None:
    assert [base(data, "lenet", PAPER).epochs for data in ("mnist", "fashion-mnist")] == [50, 20]
    assert base("fashion-mnist", "lenet", PAPER, augmented=True).epochs == 200


def test_a_misspelt_switch_or_preset_is_named() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'hidden_rule'"):
        preset("paper", hidden_rul=True)
    with pytest.raises(ArgumentError, match="must be one of paper, authors-code"):
        preset("papers")


@pytest.mark.parametrize(
    ("switch", "rule"),
    [
        ({"accuracy": "never"}, "accuracy must be one of epoch, pass, clean; got 'never'. The paper's is pass."),
        ({"hinge": "abc"}, "hinge must be one of sum, mean; got 'abc'."),
        ({"hidden_rule": "false"}, "hidden_rule must be True or False; got 'false'."),
        ({"lenet_hidden": True}, "lenet_hidden must be an int of at least 1; got True."),
        ({"lenet_dropout": 1.0}, "lenet_dropout must be a share in [0, 1); got 1.0."),
    ],
    ids=str,
)
def test_a_switch_with_a_value_of_another_kind_is_refused_before_a_run_is_built(
    switch: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"preset: {rule}")):
        preset("paper", **switch)
