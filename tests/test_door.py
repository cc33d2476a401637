"""The public door: complete, typed, and light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ordered_sgd

HEAVY = ("torch", "sklearn", "numba", "matplotlib", "scipy", "pandas")


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(' '.join({{m.partition('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_after("import ordered_sgd; dir(ordered_sgd)") & set(HEAVY)


@pytest.mark.parametrize("name", ["rules", "batches", "errors", "theory", "linear"])
def test_modules_without_torch_stay_without_torch(name: str) -> None:
    assert not loaded_after(f"import ordered_sgd\nordered_sgd.{name}") & {"torch", "sklearn", "numba", "matplotlib"}


def test_every_public_name_resolves_and_is_what_its_module_defines() -> None:
    for name in ordered_sgd.__all__:
        assert getattr(ordered_sgd, name) is not None
    assert sorted(ordered_sgd.__all__) == dir(ordered_sgd)


def test_type_checkers_see_the_names_of_the_table() -> None:
    tree = ast.parse(Path(ordered_sgd.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in guarded.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "an import is public to type checkers only as `x as x`"
            seen[alias.name] = node.module
    assert {name: module for name, module in seen.items() if module is not None} == ordered_sgd._DOOR
    assert {name for name, module in seen.items() if module is None} == set(ordered_sgd._MODULES)


@pytest.mark.slow
def test_a_type_checker_knows_what_the_names_are(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import torch\nimport ordered_sgd\nfrom ordered_sgd import OrderedLoss, ordered_mean\n"
        "reveal_type(ordered_mean(torch.ones(3), q=2))\n"
        "reveal_type(ordered_sgd.AccuracyRule().next_q)\n"
        "OrderedLoss(torch.nn.MSELoss(reduction='none'), q='half')\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert 'Revealed type is "torch._tensor.Tensor"' in run.stdout, run.stdout
    assert "def (q: int, s: int, observed: ordered_sgd.rules.Observed) -> int" in run.stdout
    assert 'Argument "q" to "OrderedLoss" has incompatible type "str"; expected "float | Above | Rule"' in run.stdout
    assert "Found 1 error" in run.stdout


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ordered_sgd' has no attribute 'nothing'"):
        ordered_sgd.nothing  # noqa: B018
