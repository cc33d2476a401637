"""What is recorded of an epoch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochRow:
    """One epoch of a run. Errors in percent, times in seconds.

    Parameters
    ----------
    epoch, q, lr, engine
        Its number from 1, and what it trained with; the engine is the one that ran in its last full batch.
    seconds, cpu_seconds, samples, backpropagated
        Spent in training steps (no evaluation, no data), by the clock and of the processor: with one thread on an idle
        machine the two are the same; samples seen, and samples that were kept. Steps in which torch.compile compiled
        the model count in `compile_seconds` alone.
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
    balanced_accuracy, recalls, auc
        Of a table with classes: the mean of the recalls on the test set in [0, 1], the recall of each class in their
        order separated by blanks, and with two classes the area under the ROC curve.
    r2, mae
        Of a regression, on the test set: its `test_error` is the share of the variance that is not explained,
        100 (1 - R²), and the mean absolute error is in units of the target.
    scored, recall
        Of ``engine="memory"``: samples that were scored, and the share of the q largest losses of a batch that was
        found, as it is estimated: the mean over the batches in which an estimate was known.
    compile_seconds
        Of the steps in which torch.compile compiled the model; None where there was none.
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
    balanced_accuracy: float | None = None
    recalls: str = ""
    auc: float | None = None
    r2: float | None = None
    mae: float | None = None
    compile_seconds: float | None = None
