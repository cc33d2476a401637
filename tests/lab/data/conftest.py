"""Where real data files lie, and what a function allocates."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real_file(real_root: Path) -> Callable[[str], Path]:
    """A real data file by its path below the root."""

    def find(path: str) -> Path:
        if not (real_root / path).exists():
            pytest.skip(f"{path} is not in ORDERED_SGD_DATA")
        return real_root / path

    return find


@pytest.fixture
def sample_root(real_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the samples of CIFAR-100 and SVHN, made the data root."""
    root = real_root / "samples"
    if not root.is_dir():
        pytest.skip("samples/ is not in ORDERED_SGD_DATA")
    monkeypatch.setenv("ORDERED_SGD_DATA", str(root))
    return root


@pytest.fixture
def empty_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root of the test's own."""
    monkeypatch.setenv("ORDERED_SGD_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def peak() -> Callable[[Callable[[], object]], int]:
    """The most bytes that a call held at once, its exception included."""

    def measure(call: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=r"^load: "):
                call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure
