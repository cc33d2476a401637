from typing import Any

import pytest

from ordered_sgd.jit import compiled


def test_a_function_that_has_no_place_for_its_cache_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", made)  # no file, hence no directory beside it
    assert compiled(made["twice"])(21) == 42


def test_a_function_is_compiled_where_no_cache_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled(lambda x: x + 1)(1) == 2
