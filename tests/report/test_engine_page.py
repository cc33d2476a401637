import json
from pathlib import Path

from ordered_sgd.report.step_bench import step_bench_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_figures_of_the_engine_page_are_those_of_its_record() -> None:
    record = json.loads((DOCS / "records" / "bench-step.json").read_text())
    page = (DOCS / "engines.md").read_text()
    shown = page.partition("<!-- bench-step -->")[2].partition("<!-- /bench-step -->")[0].strip()
    assert shown == step_bench_markdown(record["rows"])
