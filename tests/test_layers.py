"""Imports point downwards only, and tests lie where the package's files lie."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ordered_sgd"

# Lowest first; parts on one line do not know each other.
LIBRARY = [
    {"installed"},
    {"errors", "jit", "shuffled"},
    {"rules", "batches", "theory", "keywords"},
    {"selection", "indexed", "shared_settings", "criterion", "hinge", "nonfinite", "rewind", "watch"},
    {"traps", "units", "amounts", "scores", "ranks", "agreement", "generic_position", "update"},
    {"kept_units"},
    {"joined_units"},
    {"adaptive", "mean", "selective"},
    {"policy", "head"},
    {"loss", "engines"},
    {"record", "scoring", "present", "draws"},
    {"selector", "sampler_checks", "loading"},
    {"step", "sampler"},
    {"optim", "linear", "diagnostics", "integrations"},
]
LABORATORY = [
    {"data", "models"},
    {"experiments"},
    {"report", "bench", "playground"},
    {"advise"},
    {"cli"},
]
LAYERS = LIBRARY + [{f"lab.{name}" for name in names} for names in LABORATORY]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
DOORS = {SOURCE / "__init__.py", SOURCE / "lab" / "__init__.py"}
FILES = sorted(set(SOURCE.rglob("*.py")) - DOORS)


def part_of(name: str) -> str:
    """The part that a dotted name of the package lies in: ``selection``, ``theory``, ``lab.data``."""
    first, *rest = name.split(".")
    return f"{first}.{rest[0]}" if first == "lab" and rest else first


def module_of(path: Path) -> str:
    """The dotted name of a file in the package, without ``ordered_sgd``."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


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


def imported_modules(path: Path) -> set[str]:
    """Files of the package that a file imports, as dotted names without ``ordered_sgd``."""
    names = imported_names(path) - {"ordered_sgd.__version__"}
    inside = {name.removeprefix("ordered_sgd.") for name in names if name.startswith("ordered_sgd.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in inside}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    own = part_of(module_of(path))
    assert own in LEVEL, f"{own} has no place among the layers"
    for part in {part_of(name) for name in imported_modules(path)} - {own}:
        assert LEVEL[part] < LEVEL[own], f"{path.name} is in {own} and imports {part}, which is not below it"


def test_no_file_imports_itself_by_way_of_others() -> None:
    above: list[str] = []
    done = set()

    def visit(name: str) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            above.append(name)
            for below in imported_modules(MODULES[name]) - {name}:
                visit(below)
            done.add(above.pop())

    for name in MODULES:
        visit(name)


def test_no_two_files_and_no_two_classes_share_a_name() -> None:
    files = Counter(path.name for path in FILES if path.name != "__init__.py")
    trees = [ast.parse(path.read_text()) for path in FILES]
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for names in (files, classes) for name, count in names.items() if count > 1] == []


WITH_TORCH = {SOURCE / "lab" / "data" / name for name in ("augment.py", "mixup.py", "source.py")}
BELOW_TORCH = {"errors", "jit", "keywords", "rules", "batches", "theory", "linear", "lab.data"}
WITHOUT_TORCH = [path for path in FILES if part_of(module_of(path)) in BELOW_TORCH and path not in WITH_TORCH]


@pytest.mark.parametrize("path", WITHOUT_TORCH, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_below_torch_do_not_import_it(path: Path) -> None:
    assert not {name for name in imported_names(path) if name.partition(".")[0] == "torch"}


def test_ray_is_imported_by_those_alone_who_ask_for_it() -> None:
    known = {"choose.py": "ordered_sgd.lab.experiments.backends.ray.RayTasks"}  # inside the function that makes one
    for path in FILES:
        names = {name for name in imported_names(path) if name.startswith("ray") or ".backends.ray" in name}
        assert names <= {known.get(path.name)}, path


def test_tests_lie_where_the_package_s_files_lie() -> None:
    whole = {"contracts", "speed", "compat"}  # promises, speed bars and other packages' models cut across the package
    for test in (ROOT / "tests").rglob("test_*.py"):
        relative = test.relative_to(ROOT / "tests")
        if len(relative.parts) > 1 and relative.parts[0] not in whole:
            assert (SOURCE / relative.parent).is_dir(), f"{relative} mirrors no folder of the package"


def test_the_documentation_draws_these_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for first, layers in (("installed", LIBRARY), ("data", LABORATORY)):
        drawn = first + page.partition(f"```\n{first}")[2].partition("```")[0]
        assert [set(line.split(" | ")) for line in drawn.strip().splitlines()] == layers
