"""RESULTS.md is what the committed records say."""

from pathlib import Path

from ordered_sgd.report.exhibits import markdown, results_sections

ROOT = Path(__file__).parents[2]


def test_the_document_is_made_from_the_records() -> None:
    text = markdown(results_sections(ROOT / "docs" / "records" / "results.csv.gz"), "Results")
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == text
