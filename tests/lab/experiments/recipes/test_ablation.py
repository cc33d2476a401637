from ordered_sgd.lab.experiments.comparison import GRID
from ordered_sgd.lab.experiments.recipes.ablation import ABLATED, ablation
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER
from ordered_sgd.lab.experiments.recipes.tables import table1


def test_it_crosses_hidden_rule_hinge_and_rate() -> None:
    rows = ablation(AUTHORS_CODE).rows
    cells = {name: [row for row in rows if row.id.startswith(f"{name}-hidden")] for name in ABLATED}
    sizes = {name: len(found) for name, found in cells.items()}
    assert sizes == {name: 2 * len(GRID) * (2 if name.endswith("svm") else 1) for name in ABLATED}
    settings = {(s.hidden_rule, s.loss, s.lr) for row in cells["mnist-svm"] for s in row.arms.values()}
    assert settings == {
        (on, f"hinge-{hinge}", rate) for on in (True, False) for hinge in ("sum", "mean") for rate in GRID
    }


def test_its_cell_with_a_preset_s_switches_is_the_row_of_table_1() -> None:
    by_id = {row.id: row for row in table1(AUTHORS_CODE).rows}
    (cell,) = [row for row in ablation(AUTHORS_CODE).rows if row.id == "semeion-svm-hidden-on-hinge-mean-lr-0.01"]
    assert cell.arms == by_id["semeion-svm"].arms
    assert cell.printed == by_id["semeion-svm"].printed
    (cell,) = [row for row in ablation(PAPER).rows if row.id == "semeion-lenet-hidden-off-lr-0.01"]
    assert cell.arms == {row.id: row.arms for row in table1(PAPER).rows}["semeion-lenet"]


def test_other_rates_have_nothing_printed() -> None:
    for row in ablation(PAPER).rows:
        assert bool(row.printed) == row.id.endswith("lr-0.01")
