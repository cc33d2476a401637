"""Speed bars of `ordered_linear_cross_entropy` on one thread, interleaved; `make bench` prints them."""

import pytest

from ordered_sgd.lab.bench.gpt_cost import measure_gpt
from ordered_sgd.lab.bench.head_cost import HeadShape, measure_head

pytestmark = pytest.mark.bench

# (width, words) -> time of the head and its loss at a quarter of 512 tokens, relative to plain
BARS = {(256, 32_768): 0.60, (512, 50_304): 0.65}
STEP = 1.25  # speed of a training step of the small GPT at a quarter of the tokens, relative to plain


@pytest.mark.parametrize(("width", "words"), BARS)
def test_a_quarter_of_the_tokens_takes_at_most_so_much_of_plains_time(width: int, words: int) -> None:
    rows = measure_head(HeadShape(tokens=512, width=width, words=words), [0.25], probe=False)
    ratios = {row.way: row.ratio for row in rows}
    print(f"{words:,} words, width {width}: " + ", ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items()))
    assert ratios["ordered"] <= BARS[width, words], ratios
    assert max(row.error or 0 for row in rows) < 1e-5


def test_a_training_step_of_a_small_gpt_is_a_quarter_faster() -> None:
    speeds = {row.way: row.speedup for row in measure_gpt([0.25])}
    print("training step: " + ", ".join(f"{way} {speed:.2f}" for way, speed in speeds.items()))
    assert speeds["ordered"] >= STEP, speeds
