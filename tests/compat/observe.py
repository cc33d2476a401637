"""What an engine and `selective_backward` make of one model, beside plain autograd on the same random numbers."""

import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Generator, nn
from torch.utils._pytree import tree_map

from ordered_sgd import OrderedStep, explain_backward, selective_backward
from ordered_sgd.engines import auto
from ordered_sgd.errors import first_line
from tests.compat.common import Entry
from tests.contracts.engine_cases_common import Case
from tests.contracts.engine_checks import as_auto_lays_out, call, frozen_sgd, gradient_error, gradients, one_liner

SIZES = (8, 6, 8)  # samples in the batches of three steps; auto runs one before them, densely, to count operations
Q = 2
TOLERANCE = 5e-6  # relative, in float32: sums of the kept samples have fewer terms
# Operations from which auto runs rows: batches of 8 stand for those of 64 here, for which the threshold was measured.
ROWS_FROM = auto.ROWS_FROM * SIZES[0] / 64
ZEROS = "parameters of an unused output have a gradient of zeros, where plain autograd leaves None"
OURS = ("engine ", "OrderedStep:", "selective_backward:")  # how a warning of this package starts


def observe(entry: Entry) -> dict[str, Any]:
    """What ran under `auto`, `rows` (where auto did not run it) and `selective_backward`, as plain data."""
    with mock.patch.object(auto, "ROWS_FROM", ROWS_FROM):
        found = {"auto": _guarded(_engine, entry.case, "auto")}
    if not str(found["auto"].get("ran")).startswith("rows"):
        found["rows"] = _guarded(_engine, entry.case, "rows")
    found["selective"] = _guarded(_selective, entry.case)
    if max(way.get("error", 0.0) for way in found.values()) > TOLERANCE:  # a mistake, or the rounding of float32?
        found["float64"] = _guarded(_selective, _in_float64(entry.case))
    return found


def _in_float64(case: Case) -> Case:
    def batch(s: int, g: Generator) -> Any:
        return tree_map(lambda t: t.double() if t.is_floating_point() else t, case.batch(s, g))

    return replace(case, build=lambda: case.build().double(), batch=batch)


def _guarded(run: Any, *arguments: Any) -> dict[str, Any]:
    """The observation, or why there is none; with the seconds that it took and what was warned of."""
    torch._dynamo.reset()
    torch.set_num_threads(1)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = run(*arguments)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))[-3000:]
            found = {"failed": f"{type(error).__name__}: {first_line(error)}", "trace": trace}
    said = {str(one.message) for one in caught if str(one.message).startswith(OURS)}
    return {**found, "warnings": sorted(said), "seconds": round(time.perf_counter() - start, 1)}


def _engine(case: Case, engine: str) -> dict[str, Any]:
    """Steps of an engine: what ran in the last of them, why, and the largest error of all."""
    model, twin = _twins(case)
    step = OrderedStep(model, case.criterion, frozen_sgd(model), q=Q, engine=engine)
    sizes = (SIZES[0], *SIZES) if engine == "auto" else SIZES
    ran, error = "", 0.0
    for number, s in enumerate(sizes):
        (x, y), (same_x, same_y) = (case.batch(s, Generator().manual_seed(number)) for _ in range(2))
        if engine == "auto":
            same_x = _as_auto_lays_out(twin, same_x)
        torch.manual_seed(100 + number)
        record = step(x, y)
        ran, after = record.engine, torch.get_rng_state()
        torch.manual_seed(100 + number)
        plain = one_liner(twin, case.criterion, same_x, same_y, Q, record.rows)
        error = max(error, _error(model, twin))
        if not torch.equal(after, plain.random_state):
            return {"failed": "the random generator ends in another state"}
    return {"ran": ran, "error": error, "why": step.why}


def _selective(case: Case) -> dict[str, Any]:
    """Steps of a plain loop with `selective_backward`: how many samples were computed, why, and the largest error."""
    model, twin = _twins(case)
    selective_backward(model)
    error = 0.0
    for number, s in enumerate(SIZES):
        (x, y), (same_x, same_y) = (case.batch(s, Generator().manual_seed(number)) for _ in range(2))
        torch.manual_seed(100 + number)
        rows = one_liner(model, case.criterion, x, y, Q).rows
        after = torch.get_rng_state()
        torch.manual_seed(100 + number)
        plain = one_liner(twin, case.criterion, same_x, same_y, Q, rows)
        error = max(error, _error(model, twin))
        if not torch.equal(after, plain.random_state):
            return {"failed": "the random generator ends in another state"}
    report = explain_backward(model)
    share = report.rows / report.samples if report.samples else 1.0
    grads = zip(gradients(model).values(), gradients(twin).values(), strict=True)
    zeros = [ZEROS] if any(a is not None and b is None for a, b in grads) else []
    untraced = ["torch.compile leaves a part of the model alone"] if report.eager else []
    why = report.plain or "; ".join([*report.reasons, *untraced, *zeros]) or None
    all_of_it = report.skipping == report.passes and not report.eager
    ran = "whole" if report.skipping == 0 else "selective" if all_of_it else "in part"
    return {"ran": ran, "error": error, "why": why, "share": round(share, 3)}


def _twins(case: Case) -> tuple[nn.Module, nn.Module]:
    return _made(case), _made(case)


def _made(case: Case) -> nn.Module:
    """The model with noise in place of parameters that are all zero: behind a head of zeros no gradient arrives."""
    torch.manual_seed(1)
    model = case.build()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return model


def _error(model: nn.Module, twin: nn.Module) -> float:
    """Largest difference of a gradient or a buffer, relative to its largest entry."""
    got, wanted = (
        {
            name: grad.to_dense() if grad is not None and grad.is_sparse else grad
            for name, grad in gradients(one).items()
        }
        for one in (model, twin)
    )
    for name in wanted:  # zeros in place of None are said separately
        if got[name] is not None and wanted[name] is None and not got[name].any():
            got[name] = None
    pairs = [(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True) if b.is_floating_point()]
    finite = [(a[b.isfinite()], b[b.isfinite()]) for a, b in pairs]  # masks hold -inf
    moved = (float((a - b).abs().max() / (b.abs().max() + 1e-30)) for a, b in finite if b.numel())
    return max(gradient_error(got, wanted), *moved, 0.0)


def _as_auto_lays_out(model: nn.Module, x: Any) -> Any:
    """Channels-last images, unless the model cannot take them."""
    laid_out = as_auto_lays_out(model, x)
    with _as_before(model), torch.no_grad():
        try:
            call(model, laid_out)
        except Exception:
            return x
    return laid_out


@contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    saved = [(buffer, buffer.clone()) for buffer in model.buffers()]
    yield
    for buffer, value in saved:
        buffer.copy_(value)
