"""Importing a page is light, and it shows the cells that the terminal shows."""

import subprocess
import sys


def test_importing_the_page_loads_neither_all_recipes_nor_torch() -> None:
    script = "import sys, ordered_sgd.lab.report.page; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded
    assert "ordered_sgd.lab.experiments.recipes.tables" not in loaded
    own = [name for name in loaded if name.partition(".")[0] == "ordered_sgd"]
    assert len(own) <= 55, own
