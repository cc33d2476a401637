"""The wheel, installed without extras into an environment of its own."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INCLUDED = "ordered_sgd/lab/data/included/"

USE = """
import warnings; warnings.simplefilter("error")
import torch, ordered_sgd
from ordered_sgd import OrderedStep, theory
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = OrderedStep(model, torch.nn.CrossEntropyLoss(reduction="none"), optimizer, q=0.5)
print(ordered_sgd.__version__, step(torch.randn(8, 4), torch.zeros(8).long()).q, theory.gamma_weights(8, 4, 2).sum())
try:
    import sklearn
except ModuleNotFoundError:
    print("no extras")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert len(list(folder.glob("*.tar.gz"))) == 1
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} <= {"ordered_sgd"}
    assert {"ordered_sgd/py.typed", "ordered_sgd/lab/playground/page/page.html"} <= set(names)
    included = {name.removeprefix(INCLUDED) for name in names if name.startswith(INCLUDED)}
    assert included == {"NOTICE.md", "random_index.npy", "semeion.npz"}


@pytest.mark.slow
def test_the_wheel_works_without_extras(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = subprocess.run([str(python), "-c", USE], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[:2] == ["0.1.0 4 2.0", "no extras"]
