"""What is recorded of an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass

from ordered_sgd import theory
from ordered_sgd.diagnostics.calibration import best_temperature, calibration_error, cross_entropy
from ordered_sgd.lab.experiments.evaluate import Scores


@dataclass(frozen=True)
class EpochRow:
    """One epoch of a run. Errors in percent, times in seconds.

    Parameters
    ----------
    epoch, q, lr, engine
        Its number from 1, and what it trained with; the engine is the one that ran in its last full batch.
    seconds, cpu_seconds, samples, backpropagated
        Spent in training steps (no evaluation, no data), by the clock and of the processor: with one thread on an idle
        machine the two are the same; samples seen, and samples that were kept.
    train_accuracy
        As the rule saw it, in [0, 1].
    running_loss, running_ordered_loss
        Means over the batches while the weights moved: of all samples, and of those that were kept.
    train_loss, ordered_risk
        L and L_q of the whole training set at the end of the epoch, without augmentation: what the paper plots. Of a
        timed run after its last epoch only.
    test_error, test_loss
        Of the test set, or of the held-out share.
    test_cross_entropy, test_cross_entropy_scaled, calibration_error
        Of the softmax of the scores: as it is; with a temperature fitted on one half of the set and judged on the
        other, both ways; and the expected calibration error.
    diverged
        Whether a loss was not finite: then the run ends here, and the other numbers are None.
    scored, recall
        Of ``engine="memory"``: samples that were scored, and the share of the q largest losses of a batch that was
        found, as it is estimated: the mean over the batches in which an estimate was known.
    """

    epoch: int
    q: int
    lr: float
    engine: str = ""
    seconds: float | None = None
    cpu_seconds: float | None = None
    samples: int = 0
    backpropagated: int = 0
    train_accuracy: float | None = None
    running_loss: float | None = None
    running_ordered_loss: float | None = None
    train_loss: float | None = None
    ordered_risk: float | None = None
    test_error: float | None = None
    test_loss: float | None = None
    test_cross_entropy: float | None = None
    test_cross_entropy_scaled: float | None = None
    calibration_error: float | None = None
    diverged: bool = False
    scored: int | None = None
    recall: float | None = None


def epoch_row(
    epoch: int,
    *,
    q: int,
    s: int,
    lr: float,
    engine: str,
    accuracy: float | None,
    sums: Mapping[str, float],
    train: Scores | None,
    test: Scores,
) -> EpochRow:
    """The row of an epoch from its sums over batches and the scores of both sets at its end."""
    return EpochRow(
        epoch=epoch,
        q=q,
        lr=lr,
        engine=engine,
        seconds=sums["seconds"],
        cpu_seconds=sums["cpu_seconds"],
        samples=round(sums["samples"]),
        backpropagated=round(sums["backpropagated"]),
        train_accuracy=accuracy,
        running_loss=sums["loss"] / sums["samples"],
        running_ordered_loss=sums["ordered_loss"] / sums["backpropagated"],
        train_loss=None if train is None else float(train.losses.mean(dtype="float64")),
        ordered_risk=None if train is None else theory.ordered_risk(train.losses, s, q),
        test_error=test.error,
        test_loss=float(test.losses.mean(dtype="float64")),
        test_cross_entropy=cross_entropy(test.scores, test.y),
        test_cross_entropy_scaled=scaled_cross_entropy(test),
        calibration_error=calibration_error(test.scores, test.y),
        scored=round(sums["scored"]) if "scored" in sums else None,
        recall=sums["found"] / sums["measured"] if sums.get("measured") else None,
    )


def scaled_cross_entropy(scored: Scores) -> float | None:
    """Cross-entropy with a temperature that was fitted on the other half of the set: even on odd samples, and back."""
    scores, y = scored.scores, scored.y
    if len(y) < 2:
        return None
    halves = [(scores[i::2], y[i::2]) for i in (0, 1)]
    parts = [
        cross_entropy(*judged, temperature=best_temperature(*fitted)) * len(judged[1])
        for judged, fitted in (halves, halves[::-1])
    ]
    return sum(parts) / len(y)
