import csv
import gzip
from dataclasses import fields
from operator import itemgetter
from pathlib import Path

import pytest

from ordered_sgd import engines
from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.comparison import replay_of
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.plan import Replay, rule_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.spec_engines import ENGINES
from ordered_sgd.lab.experiments.store import Run
from ordered_sgd.rules import AccuracyRule, FixedQ, LinearDecay, LossMassRule

RECORDED = Path(__file__).parents[3] / "docs" / "records" / "results.csv.gz"

CHANGED = ExperimentSpec(
    data="semeion",
    model="lenet",
    model_options=(("hidden", 1024), ("dropout", 0.5)),
    q=LinearDecay(10),
    drops=(10, 100),
    seed=3,
)


RULES = {
    '{"q": 16}': 16,
    '{"q": 0.25}': 0.25,
    "{}": AccuracyRule(),
    '{"rule_options": [["divisors", [2]], ["q_min", 4], ["thresholds", [0.5]]]}': AccuracyRule((0.5,), (2,), q_min=4),
    '{"rule": "LinearDecay", "rule_options": [["end", 0.25], ["epochs", 8]]}': LinearDecay(8, end=0.25),
    '{"rule": "LossMassRule"}': LossMassRule(),
    '{"rule": "FixedQ", "rule_options": [["q", 16]]}': FixedQ(16),
}


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_written_by_its_name_and_the_options_that_are_not_its_defaults(text: str) -> None:
    assert ExperimentSpec(q=RULES[text]).to_json() == text
    assert ExperimentSpec.from_json(text).q == RULES[text]
    assert type(ExperimentSpec.from_json(text).q) is type(RULES[text])


def test_every_recorded_spec_is_written_as_it_was() -> None:
    with gzip.open(RECORDED, "rt", newline="") as file:
        rows = csv.reader(file)
        pick = itemgetter(*map(next(rows).index, ("spec", "run_id", "method")))
        recorded = {spec: (run_id, method) for spec, run_id, method in map(pick, rows)}
    assert len(recorded) > 3000
    specs = {text: ExperimentSpec.from_json(text) for text in recorded}
    assert [text for text, spec in specs.items() if spec.to_json() != text] == []
    assert {text: (spec.run_id, spec.method_name) for text, spec in specs.items()} == recorded


def test_a_control_s_path_takes_the_place_of_a_fixed_q() -> None:
    row = EpochRow(1, 16, 0.1)
    for q, text in ((16, "{}"), (AccuracyRule(), "{}"), (LinearDecay(2), '{"rule": "LinearDecay", "rule_options"')):
        control = replay_of(Run(ExperimentSpec(q=q, epochs=1), {}, [row], finished=True))
        assert control.fixed_q is None
        assert rule_for(control) == Replay((16,))
        assert control.but(method="ordered", path=(), epochs=50).to_json().startswith(text)


@pytest.mark.parametrize("spec", [ExperimentSpec(), CHANGED, CHANGED.but(method="random", epochs=1, path=((8, 0.1),))])
def test_a_spec_survives_json(spec: ExperimentSpec) -> None:
    again = ExperimentSpec.from_json(spec.to_json())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.run_id == spec.run_id


def test_only_what_differs_from_the_defaults_is_written_so_that_a_new_field_renames_no_run() -> None:
    assert ExperimentSpec().to_json() == "{}"
    assert ExperimentSpec(seed=4).to_json() == '{"seed": 4}'


def test_every_change_makes_another_run() -> None:
    changes = {"seed": 1, "lr": 0.1, "engine": "dense", "threads": 2, "q": 4, "epochs": 3, "augment": "standard"}
    ids = {ExperimentSpec().run_id, *(ExperimentSpec(**{name: value}).run_id for name, value in changes.items())}
    assert len(ids) == len(changes) + 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"method": "orderd"},
            "sampler, infobatch-sampler; got 'orderd'. Did you mean 'ordered'?",
        ),
        ({"q": None}, "q must be a number or one of the rules AccuracyRule, FixedQ, LinearDecay"),
        ({"q": AccuracyRule}, "Use q=AccuracyRule() for the paper's schedule."),
        ({"q": Replay((16,))}, "q must be a number or one of the rules"),
        ({"engine": "row"}, "engine must be one of auto, dense, rows, twopass, memory, kernels; got 'row'. Did you"),
        ({"engine": "memory", "recall": 1.5}, "recall must be a share in (0, 1]; got 1.5."),
        ({"batchnorm": "subset"}, "batchnorm must be used with engine 'rows' or 'twopass' or 'memory'; got engi"),
        ({"q": 0}, "q must be an int of at least 1 or a fraction"),
        ({"epochs": 0}, "epochs must be at least 1; got 0. Leave it out for 50"),
        ({"validation": 1.0}, "validation must be a share in"),
        ({"flipped": -0.1}, "flipped must be a share in"),
        (
            {"method": "random"},
            "path must be given for random and last-losses only; got 0 epochs for method='random'. Take the path",
        ),
        (
            {"path": ((64, 0.1),)},
            "path must be given for random and last-losses only; got 1 epochs",
        ),
        ({"recall": 0.9}, "recall must be used with engine 'memory'; got engine='auto'. Leave recall out"),
        ({"candidates": 8, "engine": "rows"}, "candidates must be used with engine 'memory'; got engine='rows'"),
        (
            {"method": "last-losses"},
            "path must be given for random and last-losses only; got 0",
        ),
        ({"method": "random", "path": ((64, 0.1),)}, "path must have 50 epochs; got 1. Replay"),
    ],
)
def test_a_wrong_spec_gets_one_clear_error(given: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        ExperimentSpec(**given)  # type: ignore[arg-type]
    assert text in str(raised.value)


def test_a_recorded_rule_of_another_version_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"rule must be one of AccuracyRule.* got 'Accuracy'. Did you mean"):
        ExperimentSpec.from_json('{"rule": "Accuracy"}')


def test_a_method_that_orders_nothing_runs_without_the_memory_but_as_the_other_engines_say() -> None:
    memory = ExperimentSpec(engine="memory", recall=0.8)
    assert memory.engine_options == ("memory", {"recall": 0.8, "candidates": None, "batchnorm": None})
    assert memory.but(method="sgd").engine_options == ("auto", {})
    scored = ExperimentSpec(engine="memory", batchnorm="scored", recall=0.8)
    assert scored.method_name == "ordered memory recall=0.8 batchnorm=scored"
    rows = ExperimentSpec(engine="rows", batchnorm="full-batch")
    for method in ("ordered", "sgd"):
        assert rows.but(method=method).engine_options == ("rows", {"batchnorm": "full-batch"})


def test_specs_know_the_engines_of_a_step_with_options_that_these_take() -> None:
    assert {name for name, engine in ENGINES.items() if not engine.compiled} == set(engines.ENGINES)
    for name, engine in engines.ENGINES.items():
        assert set(ENGINES[name].options) <= {field.name for field in fields(engine)}  # type: ignore[arg-type]


def test_one_sample_and_all_of_them_are_two_runs() -> None:
    one, everything = ExperimentSpec(q=1), ExperimentSpec(q=1.0)
    assert one != everything
    assert len({one, everything, ExperimentSpec(q=1)}) == 2
    assert [spec.method_name for spec in (one, everything)] == ["ordered q=1", "ordered q=1.0"]


def test_a_table_s_name_tells_methods_apart() -> None:
    specs = [ExperimentSpec(method="sgd"), ExperimentSpec(), ExperimentSpec(q=16), ExperimentSpec(q=0.25)]
    specs += [spec.but(optimizer="adam") for spec in specs[:3]]
    names = [spec.method_name for spec in specs]
    assert names == ["sgd", "ordered", "ordered q=16", "ordered q=0.25", "adam", "ordered adam", "ordered adam q=16"]
    memory = ExperimentSpec(engine="memory")
    others = [memory, memory.but(recall=0.8), memory.but(candidates=16), memory.but(method="sgd")]
    assert [spec.method_name for spec in others] == [
        *("ordered memory", "ordered memory recall=0.8", "ordered memory c=16", "sgd")
    ]
