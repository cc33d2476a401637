"""All tables and figures at once: what every row must be."""

import pytest
import torch

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.protocol import recipe
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit
from ordered_sgd.lab.experiments.recipes.listing import EXHIBITS, exhibit, list_rows, row_work
from ordered_sgd.lab.experiments.recipes.protocols import PROTOCOLS
from ordered_sgd.lab.experiments.recipes.shrink import shrink
from ordered_sgd.lab.models import build
from ordered_sgd.rules import resolve_q

ALL = [(name, protocol) for name in EXHIBITS for protocol in PROTOCOLS]


@pytest.fixture(params=ALL, ids=[f"{name}, {protocol}" for name, protocol in ALL])
def shown(request: pytest.FixtureRequest) -> Exhibit:
    name, protocol = request.param
    return exhibit(name, PROTOCOLS[protocol])


def test_ids_are_unique(shown: Exhibit) -> None:
    ids = [row.id for row in shown.rows]
    assert len(set(ids)) == len(ids) > 0


def test_its_number_is_recorded(shown: Exhibit) -> None:
    assert shown.number in EpochRow.__dataclass_fields__


def test_every_spec_has_data_augmentation_rule_and_model(shown: Exhibit) -> None:
    different = {(spec.data, spec.model, spec.model_options): spec for row in shown.rows for spec in row.different()}
    for spec in different.values():
        entry = CATALOG[spec.data]
        recipe(spec.data, spec.augment)
        kept = spec.s if spec.fixed_q is None else resolve_q(spec.fixed_q, spec.s)
        assert rule_for(spec).first_q(spec.s) in (spec.s, kept)
        with torch.device("meta"):
            build(spec.model, entry.shape, len(entry.classes), **dict(spec.model_options))


def test_arms_are_plain_and_ordered_with_nothing_else_between_them(shown: Exhibit) -> None:
    for row in shown.rows:
        plain, ordered, *_ = row.arms.values()
        assert (plain.method, ordered.method, ordered.fixed_q) == ("sgd", "ordered", None)
        assert plain == ordered.but(method="sgd", counts=False, engine=plain.engine)
        assert {spec.seed for spec in row.arms.values()} == {0}


def test_controls_and_printed_numbers_belong_to_arms(shown: Exhibit) -> None:
    for row in shown.rows:
        assert set(row.printed) <= set(row.arms)
        assert all(row.arms[name].method == "ordered" for name in row.controls)
        assert bool(row.printed) == (row.place is not None)
        # times need no control, nor do treatments of BatchNorm: dense is theirs
        assert bool(row.controls) != (shown.serial or shown.name == "batchnorm")


def test_runs_of_trials_have_seeds_of_their_own(shown: Exhibit) -> None:
    row = shown.rows[0]
    ids = {spec.run_id for seed in range(3) for spec in row.trial(seed).values()}
    assert len(ids) == 3 * len(set(row.arms.values()))


def test_every_row_shrinks_and_says_so(shown: Exhibit) -> None:
    for row in shown.rows:
        small = row.shrink(epochs=2, train_size=100)
        assert "2 of " in small.shrunk
        assert ", 100 of " in small.shrunk
        assert row.shrunk in small.shrunk
        assert {(spec.epochs, spec.train_size) for spec in small.different()} == {(2, 100)}
        assert small.printed == row.printed


def test_the_list_has_every_row_with_its_runs_and_work() -> None:
    listed = list_rows()
    runs = {(name, row.id): row.runs for name, row in listed}
    assert len(runs) == len(listed) == sum(len(exhibit(name).rows) for name in EXHIBITS)
    assert all(row_work(row) > 0 for _, row in listed)
    assert runs["table1", "semeion-logistic"] == 3  # plain, ordered, control
    assert runs["figure4", "cifar10-preact-resnet18-aug"] == 6  # and three fixed q
    assert runs["table3", "cifar10-preact-resnet18-aug"] == 11  # nine rates, one of which is the plain arm
    assert runs["table3", "cifar10-preact-resnet18-aug-validation"] == 12


def test_figure_2_is_sent_to_its_own_command() -> None:
    with pytest.raises(ArgumentError, match="needs no training: run osgd gamma --figure2"):
        exhibit("figure2")


def test_shrink_is_the_function_of_the_rows() -> None:
    spec = exhibit("table1").rows[0].arms["sgd"]
    assert exhibit("table1").rows[0].shrink(epochs=3).arms["sgd"] == shrink(spec, epochs=3)[0]
