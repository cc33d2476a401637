from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.recipes.figures import figure1, figure3, figure4, figure5, figure6, figure7, figure8
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER
from ordered_sgd.lab.experiments.recipes.published import TABLE1
from ordered_sgd.lab.experiments.recipes.tables import table1
from ordered_sgd.rules import Observed


def test_figure_1_has_four_problems_with_the_text_s_batch_and_loss() -> None:
    rows = figure1(AUTHORS_CODE).rows
    assert [row.id for row in rows] == ["figure1a", "figure1b", "figure1c", "figure1d"]
    assert {(spec.s, spec.loss, spec.drops) for row in rows for spec in row.arms.values()} == {(100, "binary", ())}
    assert rows == figure1(PAPER).rows  # the scripts do not have it


def test_curves_share_their_runs_with_table_1() -> None:
    of_table = {row.id: row.arms for row in table1(AUTHORS_CODE).rows}
    for figure, rows in ((figure3(AUTHORS_CODE), 8), (figure7(AUTHORS_CODE), 18)):
        assert len(figure.rows) == rows
        assert all(row.arms == of_table[row.id] for row in figure.rows)


def test_fixed_q_takes_no_hidden_rule_and_is_augmented() -> None:
    for row in figure8(AUTHORS_CODE).rows:
        fixed = [spec for spec in row.arms.values() if spec.fixed_q is not None]
        assert [spec.q for spec in fixed] == [10, 20, 40]
        assert not any(spec.hidden_rule or spec.counts for spec in fixed)
        assert row.arms["ordered"].hidden_rule
        assert {spec.augment for spec in row.arms.values()} == {"standard"}
        assert "ordered q=10" in row.arms


def test_figure_4_is_the_first_panel_of_figure_8() -> None:
    assert figure4(PAPER).rows == figure8(PAPER).rows[:1]


def test_figure_5_has_the_rate_at_which_both_diverge() -> None:
    rows = {row.id: row for row in figure5(PAPER).rows}
    diverging = rows["cifar10-preact-resnet18-lr-0.5"]
    assert {spec.lr for spec in diverging.arms.values()} == {0.5}
    assert "nan" in diverging.notes[0]
    assert rows["cifar10-preact-resnet18-lr-0.01"].printed["sgd"] == TABLE1["cifar10-preact-resnet18"].plain


def test_figure_6_divides_the_batch_in_both_protocols() -> None:
    for protocol in (PAPER, AUTHORS_CODE):
        levels = {}
        for row in figure6(protocol).rows:
            spec = row.arms["ordered"]
            rule = rule_for(spec)
            levels[spec.s] = [rule.next_q(spec.s, spec.s, Observed(1, accuracy=a)) for a in (0.8, 0.9, 0.95, 0.995)]
        assert levels == {s: [s // 2, s // 4, s // 8, s // 16] for s in (32, 64, 128, 256)}
