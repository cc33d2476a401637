"""Real English text that is there without a download: the docstrings of the scientific packages beside this one."""

import ast
import importlib.metadata
import importlib.util
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ordered_sgd.errors import ArgumentError, message

PACKAGES = ("numpy", "scipy", "scikit-learn")
_MODULES = {"scikit-learn": "sklearn"}
_TESTS = {"test", "tests", "conftest.py"}
_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Prose:
    """Docstrings of three disjoint sets of files, and the versions of the packages they come from."""

    train: list[str]
    validation: list[str]
    test: list[str]
    packages: dict[str, str]


def prose(packages: Sequence[str] = PACKAGES) -> Prose:
    """The docstrings of installed packages, of every file but the tests.

    A twentieth of the files is for validation and another for tests, by a checksum of their names, so that the
    splits stay as they are when files are added.
    """
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    versions = {}
    for package in packages:
        versions[package] = importlib.metadata.version(package)
        root = _folder(package)
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root)
            if _TESTS.isdisjoint(name.parts):
                place = zlib.crc32(f"{package}/{name.as_posix()}".encode()) % 20
                parts[{0: 1, 1: 2}.get(place, 0)].extend(docstrings(path.read_text(encoding="utf-8")))
    return Prose(*parts, versions)


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a Python file, in the order of `ast.walk`.

    >>> list(docstrings('def f():\\n    "What f returns."'))
    ['What f returns.']
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _NODES) and (text := ast.get_docstring(node)):
            yield text


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(_MODULES.get(package, package))
    if found is None or found.origin is None:
        rule, remedy = "be an installed package of Python files", f"Run: pip install {package}"
        raise ArgumentError(message("prose", "package", rule, repr(package), remedy))
    return Path(found.origin).parent
