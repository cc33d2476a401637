import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.lab.data import load
from ordered_sgd.lab.experiments.artifacts import TRACKER, pack_tracker, unpack_tracker
from ordered_sgd.lab.report.canvas import as_svg, save
from ordered_sgd.lab.report.data_map import chosen_by, draw_tracker, hardest_sheet, in_words
from tests.lab.experiments.runs import made_arm

DIGITS = load("digits")
ARMS = [made_arm(name, [[9.0, 8.0]]) for name in ("sgd", "ordered", "random")]


def tracked(*, epochs: int = 3, wrong: int = 0) -> SelectionTracker:
    """A tracker of the digits, some of which have losses of their own kind."""
    rng = np.random.default_rng(0)
    tracker = SelectionTracker(len(DIGITS), y=DIGITS.y, classes=DIGITS.classes)
    for _ in range(epochs):
        losses = rng.exponential(0.2, len(DIGITS))
        losses[:wrong] += 5
        tracker.update(np.arange(len(DIGITS)), losses, np.flatnonzero(losses > 0.2))
        tracker.end_epoch()
    return tracker


def test_the_panels_show_every_sample_every_epoch_and_every_class() -> None:
    tracker = tracked(wrong=50)
    figure = draw_tracker(tracker)
    data_map, losses, classes, _ = figure.axes
    mean, spread = tracker.data_map()
    dots, rings = (part.get_offsets() for part in data_map.collections)
    assert sorted(map(tuple, dots)) == sorted(zip(spread, mean, strict=True))
    assert len(rings) == 50 == len(tracker.suspects().indices)
    assert [line.get_xdata()[-1] for line in losses.get_lines()] == [3, 3]
    assert [bar.get_width() for bar in classes.patches] == sorted(
        (s.ratio for s in tracker.class_shares()), reverse=True
    )
    assert as_svg(figure).startswith("<svg")


def test_known_wrong_labels_are_ringed_in_place_of_the_suspects_and_without_classes_there_are_two_panels() -> None:
    wrong = np.zeros(len(DIGITS), np.bool_)
    wrong[:7] = True
    figure = draw_tracker(tracked(), wrong=wrong)
    assert len(figure.axes[0].collections[1].get_offsets()) == 7
    assert len(draw_tracker(tracked()).axes[0].collections) == 1  # nobody is suspect
    plain = SelectionTracker(3)
    plain.update([0, 1, 2], [1.0, 2.0, 3.0])
    plain.end_epoch()
    assert len(draw_tracker(plain).axes) == 3  # two panels and the scale of the colours


def test_of_many_classes_those_at_both_ends_are_shown() -> None:
    tracker = SelectionTracker(60, y=np.arange(60))
    for place in range(60):
        tracker.update([place] * 60, np.ones(60), np.arange(place))
    tracker.end_epoch()
    names = [label.get_text() for label in draw_tracker(tracker).axes[2].get_yticklabels()]
    assert names == [str(number) for number in (*range(59, 49, -1), *range(9, -1, -1))]


def test_the_sheet_is_a_picture_for_a_page_and_for_a_file(tmp_path: Path) -> None:
    tracker = tracked()
    hardest = tracker.hardest(12)
    sheet = hardest_sheet(tracker, DIGITS.x[hardest], hardest, title="The hardest")
    height, width, _ = imread(io.BytesIO(sheet)).shape
    assert re.match(rf'<svg width="{width}" height="{height}"', as_svg(sheet))
    (path,) = save(sheet, tmp_path / "new" / "sheet.svg")
    assert path.name == "sheet.png"
    assert path.read_bytes() == sheet


def test_a_run_s_tracker_comes_back_from_its_artifact() -> None:
    before = tracked(wrong=50)
    after, hardest, images = unpack_tracker(pack_tracker(before, DIGITS))
    assert (after.seen == before.seen).all()
    assert (after.chosen == before.chosen).all()
    np.testing.assert_allclose(after.data_map(), before.data_map(), rtol=1e-5)
    np.testing.assert_array_equal(after.loss_quantiles, before.loss_quantiles)
    assert set(after.suspects().indices) == set(before.suspects().indices)
    assert (hardest == before.hardest(20)).all()
    assert images is not None
    assert (images == DIGITS.x[hardest]).all()
    assert after.classes == DIGITS.classes


def test_the_report_says_and_shows_what_the_ordered_arm_chose() -> None:
    content = pack_tracker(tracked(wrong=50), DIGITS)
    found = chosen_by(ARMS, lambda spec, name: content if (spec.method, name) == ("ordered", TRACKER) else None)
    assert found is not None
    assert found.found.startswith("ordered, seed 0: 6")
    assert found.found.endswith("50 of 1,438 labels are suspicious: their losses stand apart.")
    assert list(found.pictures) == [
        "Which samples were chosen: ordered, seed 0",
        "The hardest samples: ordered, seed 0",
    ]
    assert "No suspicious labels: the losses show no separate group of outliers." in in_words(tracked())


@pytest.mark.parametrize("content", [None, pack_tracker(tracked(epochs=0), DIGITS)])
def test_where_nothing_was_tracked_nothing_is_shown(content: bytes | None) -> None:
    assert chosen_by(ARMS, lambda spec, name: content) is None
