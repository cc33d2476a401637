"""Every public class documents its parameters: the signature's names in its order, each with a type and its default."""

import ast
import dataclasses
import importlib.util
import inspect
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ordered_sgd

PAGES = Path(__file__).parents[2] / "docs/_make/pages.py"
ENTRY = re.compile(r"(?P<name>\w+) : (?P<type>.+?)(, default=(?P<default>.+))?")


def assigned(path: Path, name: str) -> list[str] | None:
    """The strings in the value that a file assigns to a name; the file is not imported."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return [str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
    return None


def public_classes(module: str) -> list[str]:
    """Names of the classes in a module's `__all__`, or of the public ones that it defines."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    names = assigned(path, "__all__")
    if names is None:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        names = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return sorted(name for name in names if name[0].isupper() and not name.isupper())


# Names only: importing every integration here would slow down the collection of all tests.
MODULES = [f"ordered_sgd.{module}" for module in assigned(PAGES, "MODULES") or []]
CLASSES = [("ordered_sgd", name) for name in sorted(ordered_sgd._DOOR) if name[0].isupper()]
CLASSES += [(module, name) for module in MODULES for name in public_classes(module) if name not in ordered_sgd._DOOR]


def faults(kind: type) -> list[str]:
    """What is wrong with the parameters in a class's docstring. Exceptions need none."""
    if issubclass(kind, BaseException):
        return []
    parameters = [
        p for p in inspect.signature(kind).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    defaults = {p.name: default_of(kind, p) for p in parameters if not p.name.startswith("_")}
    sections = sections_of(inspect.cleandoc(vars(kind).get("__doc__") or ""))
    is_record = dataclasses.is_dataclass(kind) or issubclass(kind, tuple)  # read more often than built
    entries = sections.get("Parameters", sections.get("Attributes", []) if is_record else [])
    entries = [entry for entry in entries if not entry.startswith("*")]
    names = [entry.partition(" : ")[0] for entry in entries]
    if names != list(defaults):
        return [f"documented: {names}, signature: {list(defaults)}"]
    return [fault for entry in entries if (fault := fault_of(entry, defaults))]


def default_of(kind: type, parameter: inspect.Parameter) -> Any:
    """The default of a parameter, also of a dataclass field with a factory."""
    if dataclasses.is_dataclass(kind):
        factories = {field.name: field.default_factory for field in dataclasses.fields(kind)}
        factory = factories.get(parameter.name, dataclasses.MISSING)
        if factory is not dataclasses.MISSING:
            return factory()
    return parameter.default


def sections_of(text: str) -> dict[str, list[str]]:
    """The lines of each section of a docstring that are not indented."""
    sections: dict[str, list[str]] = {}
    lines = text.splitlines()
    current: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line and re.fullmatch("-{3,}", below):
            current = sections[line] = []
        elif line and not line.startswith((" ", "---")):
            current.append(line)
    return sections


def fault_of(entry: str, defaults: dict[str, Any]) -> str | None:
    """What is wrong with an entry such as ``q : float or Rule, default=0.5``."""
    found = ENTRY.fullmatch(entry)
    if found is None:
        return f"{entry!r} has no type"
    default, written = defaults[found["name"]], found["default"]
    if "{" in found["type"] and not re.fullmatch(rf"\{{{re.escape(str(written))}, [^}}]+\}}", found["type"]):
        return f"{entry!r}: the site takes the first of {{...}} as default and drops what follows; write str"
    if default is inspect.Parameter.empty:
        return None if written is None else f"{entry!r}: there is no default"
    if written is None or not same(written, default):
        return f"{entry!r}: the default is {default!r}"
    if default is None and not found["type"].endswith("or None"):
        return f"{entry!r}: the type of a default None ends with 'or None'"
    return None


def same(written: str, default: Any) -> bool:
    """Whether an expression such as ``1 / 16`` or ``AccuracyRule()`` is the default."""
    rules = {name: getattr(ordered_sgd.rules, name) for name in public_classes("ordered_sgd.rules")}
    try:
        return repr(eval(written, {"math": math, **rules})) == repr(default)
    except (NameError, SyntaxError):
        return written == repr(default)


def test_the_table_holds_classes_of_the_door_and_of_every_kind_of_module() -> None:
    names = {name for _, name in CLASSES}
    assert {"OrderedLoss", "StepRecord", "OrderedLinearSVC", "Observed", "ProximalSGD", "Suspects", "LeNet"} <= names
    assert {"GeneralizationBound", "OrderedCallback", "OrderedTrainer", "Batch", "ArgumentError"} <= names


TRAINERS = pytest.mark.xdist_group("trainers")  # one worker imports what takes seconds


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(module, name, marks=TRAINERS if ".integrations." in module else (), id=f"{module}.{name}")
        for module, name in CLASSES
    ],
)
def test_every_public_class_documents_its_parameters(module: str, name: str) -> None:
    loaded = pytest.importorskip(module, reason="an extra is not installed", exc_type=ImportError)
    assert faults(getattr(loaded, name)) == []


RULE = ordered_sgd.AccuracyRule()


class Plain:
    """A class.

    Parameters
    ----------
    a : int
        One.
    b : float or None, default=None
        Two.
    c : float, default=1 / 16
        Three.
    d : Rule, default=AccuracyRule()
        Four.
    **others
        Five.

    Examples
    --------
    None.
    """

    def __init__(self, a: int, *, b: float | None = None, c: float = 0.0625, d: Any = RULE, **others: Any) -> None: ...


class Result(NamedTuple):
    """A result.

    Attributes
    ----------
    value : float
        One.
    """

    value: float


def test_a_whole_docstring_has_no_faults() -> None:
    assert faults(Plain) == faults(Result) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("a : int", "a", "'a' has no type"),
        ("a : int", "a : int, default=1", "there is no default"),
        ("a : int", "a : {1, 2}", "write str"),
        ("b : float or None", "b : {1, 2} or None", "write str"),
        ("b : float or None, default=None", "b : float, default=None", "ends with 'or None'"),
        ("1 / 16", "1 / 8", "the default is 0.0625"),
        (", default=1 / 16", "", "the default is 0.0625"),
        ("AccuracyRule()", "FixedQ(1)", "the default is AccuracyRule"),
        ("c : float, default=1 / 16\n        Three.\n", "", "signature: ['a', 'b', 'c', 'd']"),
        ("Parameters\n    ----------", "Attributes\n    ----------", "documented: []"),
        ("    Examples\n", "    All others are in another class.\n\n    Examples\n", "All others"),
    ],
)
def test_every_kind_of_fault_is_seen(old: str, new: str, fault: str) -> None:
    assert old in str(Plain.__doc__)
    wrong = type("Wrong", (Plain,), {"__doc__": str(Plain.__doc__).replace(old, new)})
    (found,) = faults(wrong)
    assert fault in found
