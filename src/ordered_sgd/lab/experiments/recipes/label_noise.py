"""What the paper does not show: wrong labels in the training set, which have the largest losses of all."""

from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RecipeRow
from ordered_sgd.lab.experiments.recipes.protocols import Protocol
from ordered_sgd.lab.experiments.spec import ExperimentSpec

FLIPPED = (0.0, 0.1, 0.2, 0.4)  # shares of the training labels
TRIM, RAMP = 0.2, 10  # share of a batch that is dropped, and epochs over which it grows
_QUARTER = "ordered s/4"


def label_noise(protocol: Protocol) -> Exhibit:
    """Test error, of right labels, after training with a share of the labels wrong: a row for each share."""
    rows = tuple(
        RecipeRow(f"digits-{100 * share:g}", f"digits, {share:.0%} wrong", _arms(share), controls=(_QUARTER,))
        for share in FLIPPED
    )
    notes = (
        "scikit-learn's digits, the linear model, 40 epochs, the rate divided by 10 from epoch 20 on; each seed has "
        "its own split and its own wrong labels. The same in both protocols.",
        "ordered follows the paper's rule; the others, random too, keep a quarter of each batch from the first step. "
        f"trim drops {TRIM:.0%} of each batch first, or the share that is wrong, which nobody knows in practice; it "
        f"grows from nothing over the first {RAMP} epochs, or is dropped at once.",
    )
    return Exhibit("label-noise", "Wrong labels", "test_error", rows, along="flipped", notes=notes)


def _arms(share: float) -> dict[str, ExperimentSpec]:
    ordered = ExperimentSpec(data="digits", epochs=40, drops=(20,), flipped=share)
    quarter = ordered.but(q=0.25)
    return {
        "sgd": ordered.but(method="sgd"),
        "ordered": ordered,
        _QUARTER: quarter,
        f"s/4, trim {TRIM:.0%}": quarter.but(trim=TRIM, trim_epochs=RAMP),
        f"s/4, trim {TRIM:.0%} at once": quarter.but(trim=TRIM, trim_epochs=0),
        "s/4, trim as many as wrong": quarter.but(trim=share, trim_epochs=RAMP) if share else quarter,
    }
