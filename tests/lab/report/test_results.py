"""RESULTS.md, and what pages quote of it, is what the committed records say."""

from pathlib import Path

import pytest

from ordered_sgd.lab.report import sections
from ordered_sgd.lab.report.sections import filled, markdown, results_sections

ROOT = Path(__file__).parents[3]


def test_the_documents_are_made_from_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in vars(sections) if name.startswith("draw_")]:
        monkeypatch.setattr(sections, name, lambda *given: None)  # figures are no part of the documents
    parts = results_sections(ROOT / "docs" / "records" / "results.csv.gz")
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == markdown(parts, "Results")
    for name in ("units.md", "memory.md"):
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert filled(page, parts)[0] == page
