"""Whether rows can be skipped with the torch that is installed: known for tested versions, found out for others.

The split of backward graphs rests on modules of torch that are not public. With a version that nobody has tested, two
small models are compared with torch's own gradient on first use, and the answer is remembered on disk.
"""

import json
import os
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ordered_sgd.errors import first_line
from ordered_sgd.rewind import Buffers
from ordered_sgd.selective.compiler import SelectiveBackend
from ordered_sgd.selective.explain import BackwardReport
from ordered_sgd.selective.runs import CheckedRuns

TESTED = ("2.13",)


@cache
def why_not() -> str | None:
    """Why no rows are skipped with this version of torch; None if they are."""
    if ".".join(torch.__version__.split(".")[:2]) in TESTED:
        return None
    remembered = _folder() / f"selective-torch-{torch.__version__}.json"
    with suppress(OSError, ValueError, LookupError):
        known: str | None = json.loads(remembered.read_text())["why_not"]
        return known
    found = self_test()
    found = None if found is None else f"torch {torch.__version__} is not tested, and {found}"
    with suppress(OSError):
        remembered.parent.mkdir(parents=True, exist_ok=True)
        remembered.write_text(json.dumps({"why_not": found}))
    return found


def self_test() -> str | None:
    """What goes wrong with two small models; None if the gradients are right, and rows are skipped just where apart."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        for model, apart in ((_Apart(), True), (_Centred(), False)):
            found = _tried(model.double(), apart=apart)
            if found is not None:
                return found
    except Exception as error:  # whatever another version raises
        return f"its self-test fails ({first_line(error)})"
    finally:
        torch.set_rng_state(state)
    return None


def _tried(model: nn.Module, *, apart: bool) -> str | None:
    report = BackwardReport(name="self-test")
    report.warn_of = lambda coupling: None  # type: ignore[method-assign]  # one of the models is coupled
    runs = CheckedRuns(model, Buffers(model), model, SelectiveBackend(report, eager_dropout=True))
    parameters = list(model.parameters())
    for s, rows in ((8, [1, 2, 6]), (8, [5]), (6, [0, 3])):
        x, random = torch.randn(s, 5, 8, dtype=torch.float64), torch.get_rng_state()
        outputs, _ = runs(partial(runs.compiled, x), partial(model, x), x)
        found = torch.autograd.grad(outputs[rows].square().sum(), parameters)
        torch.set_rng_state(random)
        expected = torch.autograd.grad(model(x)[rows].square().sum(), parameters)
        if not all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(found, expected, strict=True)):
            return "its self-test gives another gradient"
    if (report.skipping > 0) is not apart:
        return "its self-test skips no rows" if apart else "its self-test misses a coupling"
    return None


class _Apart(nn.Module):
    """A model of the usual layers whose samples are apart."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.convolution, self.head = nn.Conv1d(5, 4, 3), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.convolution(self.encoder(x)).relu().flatten(1))
        return scores


class _Centred(_Apart):
    """The same with a weak coupling."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores - 1e-4 * scores.mean(0)


def _folder() -> Path:
    """Where programs keep what they can find out again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ordered-sgd"
