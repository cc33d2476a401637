"""Runs without training, for what only reads them."""

from collections.abc import Sequence

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run


def made_run(spec: ExperimentSpec, errors: Sequence[float | None], *, seconds: float = 2.0, q: int = 64) -> Run:
    """A finished run with these test errors; None: diverged."""
    rows = [
        EpochRow(epoch, q, spec.lr, diverged=True)
        if error is None
        else EpochRow(
            epoch,
            q,
            spec.lr,
            "dense",
            seconds=seconds,
            cpu_seconds=seconds,
            samples=640,
            backpropagated=10 * q,
            train_accuracy=0.9,
            running_loss=1.0,
            running_ordered_loss=1.5,
            train_loss=1.0 / epoch,
            ordered_risk=1.2 / epoch,
            test_error=error,
            test_loss=error / 10,
            test_cross_entropy=error / 10,
            test_cross_entropy_scaled=error / 20,
            calibration_error=0.05,
        )
        for epoch, error in enumerate(errors, 1)
    ]
    return Run(spec, {"torch": "2"}, rows, finished=True)


def made_arm(name: str, errors: Sequence[Sequence[float | None]], *, tuned: bool = False, **given: float) -> Arm:
    """An arm whose seeds have these errors by epoch."""
    method = name.split()[0]
    path = tuple((64, 0.01) for _ in errors[0]) if method == "random" else ()
    runs = [
        made_run(ExperimentSpec(method=method, seed=seed, epochs=len(one), path=path), one, **given)  # type: ignore[arg-type]
        for seed, one in enumerate(errors)
    ]
    return Arm(name, tuple(runs), tuned=tuned)
