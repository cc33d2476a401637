import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.spec import ExperimentSpec

CHANGED = ExperimentSpec(
    data="semeion",
    model="lenet",
    model_options=(("hidden", 1024), ("dropout", 0.5)),
    rule="LinearDecay",
    rule_options=(("epochs", 10),),
    drops=(10, 100),
    q=0.25,
    seed=3,
)


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
            "method must be one of sgd, ordered, random, infobatch, last-losses; got 'orderd'. Did you mean 'ordered'?",
        ),
        ({"rule": "Accuracy"}, "rule must be one of AccuracyRule"),
        ({"q": 0}, "q must be an int of at least 1 or a fraction"),
        ({"epochs": 0}, "epochs must be at least 1; got 0. Leave it out for 50"),
        ({"validation": 1.0}, "validation must be a share in"),
        ({"flipped": -0.1}, "flipped must be a share in"),
        (
            {"method": "random"},
            "path must be given for method='random' and 'last-losses', and for them alone; got 0 epochs of it",
        ),
        ({"path": ((64, 0.1),)}, "path must be given for method='random'"),
        ({"recall": 0.9}, "recall and candidates must stand with engine='memory'; got engine='auto'"),
        ({"candidates": 8, "engine": "rows"}, "recall and candidates must stand with engine='memory'"),
        ({"method": "last-losses"}, "path must be given for method='random' and 'last-losses'"),
        ({"method": "random", "path": ((64, 0.1),)}, "path must have 50 epochs; got 1. Replay"),
    ],
)
def test_a_wrong_spec_gets_one_clear_error(given: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        ExperimentSpec(**given)  # type: ignore[arg-type]
    assert text in str(raised.value)


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
