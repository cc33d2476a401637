"""Text from the docstrings of installed packages."""

import importlib.metadata

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.prose import PACKAGES, docstrings, prose


def test_the_parts_are_disjoint_and_most_of_the_text_is_for_training() -> None:
    text = prose(("scikit-learn",))
    sizes = [sum(map(len, part)) for part in (text.train, text.validation, text.test)]
    assert sizes[0] > 8 * max(sizes[1:])
    assert min(sizes[1:]) > 10_000
    assert text.packages == {"scikit-learn": importlib.metadata.version("scikit-learn")}
    assert any("random forest" in one.lower() for one in (*text.train, *text.validation, *text.test))


def test_the_text_is_the_same_again() -> None:
    assert prose(("scikit-learn",)) == prose(("scikit-learn",))


def test_docstrings_are_those_of_modules_classes_and_functions() -> None:
    method = '    async def f(self):\n        """Of f."""\n        "not one"\n'
    source = f'"""Of the module."""\nclass A:\n    """Of A."""\n{method}'
    assert list(docstrings(source)) == ["Of the module.", "Of A.", "Of f."]


def test_the_packages_are_requirements_of_this_one() -> None:
    names = " ".join(importlib.metadata.requires("ordered-sgd") or ())
    assert all(package in names for package in PACKAGES)


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises((ArgumentError, importlib.metadata.PackageNotFoundError), match="no-such-package"):
        prose(("no-such-package",))
