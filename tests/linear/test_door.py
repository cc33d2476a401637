"""Importing the package is light, needs no torch, and names a missing extra."""

import subprocess
import sys

import pytest

from ordered_sgd import linear
from ordered_sgd.errors import MissingExtraError
from ordered_sgd.installed import how_to_install


def loaded_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(' '.join({{m.partition('.')[0] for m in sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_estimators_train_without_torch() -> None:
    fit = "OrderedLogisticRegression(max_iter=1).fit([[0.0], [1.0]], [0, 1])"
    loaded = loaded_after(f"from ordered_sgd.linear import OrderedLogisticRegression\n{fit}")
    assert {"sklearn", "numba"} <= loaded
    assert "torch" not in loaded


def test_kernels_load_no_scikit_learn_and_the_package_alone_loads_nothing() -> None:
    assert "sklearn" not in loaded_after("import ordered_sgd.linear.kernels")
    assert not loaded_after("import ordered_sgd.linear") & {"sklearn", "numba", "scipy", "torch"}


@pytest.mark.parametrize("module", ["numba", "sklearn"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    text = f"OrderedLinearSVC: {module} must be installed; got no module '{module}'. {how_to_install('linear')}"
    with pytest.raises(MissingExtraError) as caught:
        linear.__getattr__("OrderedLinearSVC")
    assert str(caught.value) == text
