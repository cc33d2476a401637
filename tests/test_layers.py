"""Imports point downwards only, and tests lie where the package's files lie."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ordered_sgd"

# Lowest first; names on one line do not know each other.
LAYERS = [
    {"errors", "jit"},
    {"rules", "order", "theory"},
    {"core", "data"},
    {"optim", "linear", "models", "diagnostics"},
    {"experiments", "integrations"},
    {"report", "bench", "playground"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """Everything a file imports, inside functions too, as dotted names."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute in this package"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_parts(path: Path) -> set[str]:
    """Parts of the package that a file imports."""
    names = imported_names(path) - {"ordered_sgd.__version__"}
    return {name.split(".")[1] for name in names if name.startswith("ordered_sgd.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    own = part_of(path)
    assert own in LEVEL, f"{own} has no place among the layers"
    for part in imported_parts(path) - {own}:
        assert LEVEL[part] < LEVEL[own], f"{path.name} is in {own} and imports {part}, which is not below it"


WITH_TORCH = {SOURCE / "data" / name for name in ("augment.py", "mixup.py", "source.py")}
BELOW_TORCH = {"errors", "jit", "rules", "order", "theory", "linear", "data"}
WITHOUT_TORCH = [path for path in FILES if part_of(path) in BELOW_TORCH and path not in WITH_TORCH]


@pytest.mark.parametrize("path", WITHOUT_TORCH, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_below_torch_do_not_import_it(path: Path) -> None:
    assert not {name for name in imported_names(path) if name.partition(".")[0] == "torch"}


def test_ray_is_imported_by_those_alone_who_ask_for_it() -> None:
    known = {"choose.py": "ordered_sgd.experiments.backends.ray.RayTasks"}  # inside the function that makes one
    for path in FILES:
        names = {name for name in imported_names(path) if name.startswith("ray") or ".backends.ray" in name}
        assert names <= {known.get(path.name)}, path


def test_tests_lie_where_the_package_s_files_lie() -> None:
    whole = {"contracts", "bench"}  # tables of promises and speed bars cut across the package
    for test in (ROOT / "tests").rglob("test_*.py"):
        relative = test.relative_to(ROOT / "tests")
        if len(relative.parts) > 1 and relative.parts[0] not in whole:
            assert (SOURCE / relative.parent).is_dir(), f"{relative} mirrors no folder of the package"


def test_the_documentation_draws_these_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    drawn = page.partition("```\nerrors")[2].partition("```")[0]
    assert [set(line.split(" | ")) for line in ("errors" + drawn).strip().splitlines()] == LAYERS
