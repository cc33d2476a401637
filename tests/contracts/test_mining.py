"""Published ways of mining hard examples, written out from their definitions: the same values and gradients here."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from ordered_sgd import Above, OrderedLoss, ordered_mean, scores, theory

IGNORED = 255


class Pixels(NamedTuple):
    """A batch for segmentation, in double precision so that no two losses are equal by rounding."""

    logits: Tensor
    labels: Tensor

    @property
    def losses(self) -> Tensor:
        return F.cross_entropy(self.logits, self.labels, ignore_index=IGNORED, reduction="none")

    @property
    def valid(self) -> Tensor:
        return self.labels != IGNORED


@st.composite
def segmentations(draw: Any) -> Pixels:
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    classes, scale = draw(st.integers(2, 4)), draw(st.sampled_from([0.3, 3.0]))
    logits = scale * torch.randn(shape[0], classes, *shape[1:], generator=g, dtype=torch.float64)
    labels = torch.randint(0, classes, shape, generator=g)
    labels[torch.rand(shape, generator=g) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = IGNORED
    return Pixels(logits.requires_grad_(), labels)


def same(found: Tensor, expected: Tensor, leaf: Tensor) -> None:
    """Equal values and gradients."""
    torch.testing.assert_close(found, expected)
    (one,), (two,) = (torch.autograd.grad(value, leaf, retain_graph=True) for value in (found, expected))
    torch.testing.assert_close(one, two)


thresholds = st.sampled_from([0.1, 0.5, 0.7, 0.9])
batches = segmentations()

# -- pixels -----------------------------------------------------------------------------------------------------------


def bisenet(pixels: Pixels, thresh: float) -> Tensor:
    """OhemCELoss of BiSeNet: the pixels above -ln thresh, or the hardest sixteenth of the annotated if they are fewer.

    Both are looked for among all pixels, where ignored ones have the loss 0.
    """
    losses, least = pixels.losses.flatten(), int(pixels.valid.sum()) // 16
    above = losses[losses > -math.log(thresh)]
    return above.mean() if len(above) >= least else losses.sort(descending=True).values[:least].mean()


@given(pixels=batches, thresh=thresholds)
def test_bisenet(pixels: Pixels, thresh: float) -> None:
    expected = bisenet(pixels, thresh)
    q = Above(-math.log(thresh), at_least=1 / 16)
    found = ordered_mean(pixels.losses, q, unit="pixel", mask=pixels.valid)
    if expected.isnan():  # fewer than 16 annotated pixels, and none above: a mean of nothing
        assert found.isfinite()
        return
    same(found, expected, pixels.logits)
    criterion = torch.nn.CrossEntropyLoss(ignore_index=IGNORED, reduction="none")
    same(OrderedLoss(criterion, q=q, unit="pixel")(*pixels), expected, pixels.logits)


@given(pixels=batches, thresh=thresholds, n_min=st.integers(1, 40))
def test_bisenet_with_a_count(pixels: Pixels, thresh: float, n_min: int) -> None:
    """Its earlier form looks at the loss at position n_min, which must exist."""
    ordered = pixels.losses.flatten().sort(descending=True).values
    assume(len(ordered) > n_min <= int(pixels.valid.sum()))
    value = -math.log(thresh)
    expected = ordered[ordered > value].mean() if ordered[n_min] > value else ordered[:n_min].mean()
    found = ordered_mean(pixels.losses, Above(value, at_least=n_min), unit="pixel", mask=pixels.valid)
    same(found, expected, pixels.logits)


def mmseg(pixels: Pixels, thresh: float | None, min_kept: int, losses: Tensor) -> Tensor:
    """OHEMPixelSampler of mmsegmentation: weights 1 for the kept; the loss is the mean over all pixels, ignored too.

    With a threshold, pixels are kept whose right class has a probability below it, or below that of the first one that
    is not among the min_kept hardest per image; else those with the min_kept largest losses per image.
    """
    valid, count = pixels.valid, min_kept * len(pixels.labels)
    own = pixels.logits.softmax(1).gather(1, pixels.labels.where(valid, 0)[:, None])[:, 0][valid]
    if thresh is None:
        kept = torch.zeros_like(own, dtype=torch.bool)
        kept[losses[valid].argsort(descending=True, stable=True)[:count]] = True
    else:
        ascending = own.sort().values
        limit = ascending[min(count, len(own) - 1)].item() if len(own) else 0.0
        kept = own < max(limit, thresh)
    return losses[valid][kept].sum() / losses.numel()


@given(pixels=batches, thresh=st.none() | thresholds, min_kept=st.integers(2, 30), weighted=st.booleans())
def test_mmseg(pixels: Pixels, thresh: float | None, min_kept: int, weighted: bool) -> None:
    plain, valid = pixels.losses, pixels.valid
    losses = plain * torch.linspace(0.5, 2, plain.numel(), dtype=plain.dtype).view_as(plain) if weighted else plain
    count, there = min_kept * len(plain), int(valid.sum())
    assume(thresh is None or count < there)
    expected = mmseg(pixels, thresh, min_kept, losses)
    if thresh is None:
        q: Any = count
        kept = min(count, there)
        found = ordered_mean(losses, q, unit="pixel", mask=valid)
    else:  # by probability, whatever the losses are
        q = Above(-math.log(thresh), at_least=count)
        kept = max(count, int(((plain > q.value) & valid).sum()))
        found = ordered_mean(losses, q, unit="pixel", mask=valid, scores=plain)
    same(found * kept / plain.numel(), expected, pixels.logits)


def test_mmseg_leaves_the_easiest_pixel_out_where_fewer_than_min_kept_are_there() -> None:
    """So docs/mining.md says."""
    pixels = Pixels(torch.randn(1, 3, 4, 4), torch.randint(0, 3, (1, 4, 4)))
    pixels.logits[0, :, 0, 0] = torch.tensor([9.0, 0, 0])
    pixels.labels[0, 0, 0] = 0
    left_out = mmseg(pixels, 0.1, 100, pixels.losses)
    everything = ordered_mean(pixels.losses, Above(-math.log(0.1), at_least=100), unit="pixel")
    assert everything.item() == pytest.approx(pixels.losses.mean().item())
    assert left_out.item() == pytest.approx((pixels.losses.sum() - pixels.losses.min()).item() / 16, rel=1e-5)


@given(pixels=batches, share=st.sampled_from([0.1, 0.2, 0.5, 0.9]))
def test_deeplab(pixels: Pixels, share: float) -> None:
    """DeepLabCE of detectron2: the mean of the hardest share of all pixels, ignored ones among them with the loss 0."""
    losses, there = pixels.losses, int(pixels.valid.sum())
    k = int(share * losses.numel())
    assume(k > 0)
    expected = losses.flatten().topk(k).values.mean()
    found = ordered_mean(losses, k, unit="pixel", mask=pixels.valid)
    same(found * min(k, there) / k, expected, pixels.logits)


# -- boxes ------------------------------------------------------------------------------------------------------------


class Boxes(NamedTuple):
    """Losses (images, boxes), and which boxes are positives."""

    losses: Tensor
    positives: Tensor


@st.composite
def detections(draw: Any) -> Boxes:
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 30))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    losses = torch.rand(shape, generator=g, dtype=torch.float64)
    if draw(st.booleans()):
        losses = (4 * losses).round()  # ties
    positives = torch.rand(shape, generator=g) < draw(st.sampled_from([0.05, 0.2, 0.6]))
    positives[torch.rand(shape[0], generator=g) < 0.3] = False  # images without any
    return Boxes(losses.requires_grad_(), positives)


def ssd(boxes: Boxes, ratio: int = 3) -> tuple[Tensor, int]:
    """The summed loss of the positives of each image and its hardest negatives, 3:1 at most; and how many boxes."""
    total, count = boxes.losses.sum() * 0, 0
    for losses, positive in zip(*boxes, strict=True):
        negatives = losses[~positive].sort(descending=True, stable=True).values[: ratio * int(positive.sum())]
        total = total + losses[positive].sum() + negatives.sum()
        count += int(positive.sum()) + len(negatives)
    return total, count


@given(boxes=detections(), ratio=st.integers(1, 4))
def test_ssd(boxes: Boxes, ratio: int) -> None:
    total, count = ssd(boxes, ratio)
    counts = ratio * boxes.positives.sum(1)
    found = ordered_mean(boxes.losses, counts, unit="pixel", within="sample", always_keep=boxes.positives)
    same(found, total / max(count, 1), boxes.losses)
    n = max(1, int(boxes.positives.sum()))  # what the paper divides by, and torchvision
    same(found * count / n, total / n, boxes.losses)


@given(boxes=detections())
def test_ssd_by_ranks_of_all_boxes_counts_positives_twice_where_negatives_run_out(boxes: Boxes) -> None:
    """So docs/mining.md says of sorting with -inf in the place of positives."""
    losses, positives = boxes
    order = losses.masked_fill(positives, -math.inf).argsort(dim=1, descending=True, stable=True)
    negatives = order.argsort(dim=1) < 3 * positives.sum(1, keepdim=True)
    twice = negatives & positives
    assert torch.equal(twice.any(1), 4 * positives.sum(1) > losses.shape[1])
    total = losses[positives].sum() + losses[negatives].sum()
    assert (total - losses[twice].sum()).item() == pytest.approx(ssd(boxes)[0].item(), abs=1e-12)


@given(boxes=detections(), k=st.integers(1, 20))
def test_ohem_of_regions(boxes: Boxes, k: int) -> None:
    """The k regions of each image with the largest losses (Shrivastava et al. 2016), after suppression by a mask."""
    losses, suppressed = boxes
    pairs = zip(losses, suppressed, strict=True)
    kept = [row[~gone].sort(descending=True, stable=True).values[:k] for row, gone in pairs]
    found = ordered_mean(losses, k, unit="pixel", within="sample", mask=~suppressed)
    together = torch.cat(kept)
    same(found, together.sum() / max(1, len(together)), losses)


# -- tokens -----------------------------------------------------------------------------------------------------------


@given(
    s=st.integers(1, 4), t=st.integers(1, 12), words=st.integers(2, 6), seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
)  # fmt: skip
def test_trl(s: int, t: int, words: int, seed: int, share: float) -> None:
    """top_entropy_quantile of TRL's GRPOTrainer: the tokens whose entropy is at least the quantile 1 - share.

    The quantile interpolates between neighbours, so that of m tokens 1 + floor(share (m - 1)) are kept. The loss is
    summed over them and divided by all tokens of the completions.
    """
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(s, t, words, generator=g, dtype=torch.float64)
    losses = torch.randn(s, t, generator=g, dtype=torch.float64).requires_grad_()  # those of a policy may be negative
    mask = torch.rand(s, t, generator=g) < 0.7
    assume(bool(mask.any()))
    logs = logits.log_softmax(-1)
    entropies = -(logs.exp() * logs).sum(-1)
    kept = mask & (entropies >= entropies[mask].quantile(1 - share))
    m = int(mask.sum())
    q = 1 + math.floor(share * (m - 1))
    assert int(kept.sum()) == q
    given_scores = scores.entropy(logits.transpose(1, 2))
    found = ordered_mean(losses, q, unit="token", mask=mask, scores=given_scores)
    same(found * q / m, losses[kept].sum() / m, losses)
    (gradient,) = torch.autograd.grad(found, losses)
    assert torch.equal(gradient != 0, kept)


def test_trl_keeps_all_tied_tokens_and_we_keep_q() -> None:
    losses = torch.arange(6.0, requires_grad=True)
    entropies = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    assert int((entropies >= entropies.quantile(0.75)).sum()) == 4
    (gradient,) = torch.autograd.grad(ordered_mean(losses, 2, scores=entropies), losses)
    assert gradient.nonzero().flatten().tolist() == [0, 1]  # ties go to the lower index


# -- their place in the theory ----------------------------------------------------------------------------------------

EIGHT = np.random.default_rng(0).exponential(size=8)


def mini_batches(s: int, of: int = 8) -> list[list[int]]:
    return [list(rows) for rows in itertools.combinations(range(of), s)]


@pytest.mark.parametrize(("s", "q"), [(4, 1), (4, 3), (5, 2), (6, 6)])
def test_ordered_by_a_score_each_loss_has_the_weight_of_its_rank_by_the_score(s: int, q: int) -> None:
    losses, by = torch.from_numpy(EIGHT), torch.from_numpy(np.random.default_rng(1).normal(size=8))
    mean = np.mean([ordered_mean(losses[rows], q, scores=by[rows]).item() for rows in mini_batches(s)])
    assert mean == pytest.approx(theory.sample_weights(by, s, q) @ EIGHT / q, rel=1e-12)


@pytest.mark.parametrize("value", [0.2, 0.8, 1.5])
def test_what_is_above_a_value_is_the_gradient_of_the_mean_excess_over_it(value: float) -> None:
    """Of Rockafellar and Uryasev's c + E(loss - c)+ / alpha at c = value, with alpha the share that is above."""
    losses = torch.from_numpy(EIGHT).requires_grad_()
    above = int(np.sum(value < EIGHT))
    (found,) = torch.autograd.grad(ordered_mean(losses, Above(value)), losses)
    (expected,) = torch.autograd.grad((losses - value).clamp(min=0).mean(), losses)
    torch.testing.assert_close(found * above / 8, expected)
    alpha = above / 8
    rockafellar = value + np.maximum(EIGHT - value, 0).mean() / alpha
    assert ordered_mean(losses, Above(value)).item() == pytest.approx(rockafellar)
    assert rockafellar == pytest.approx(theory.spectral_risk(EIGHT, theory.cvar_spectrum(8, alpha)))


@pytest.mark.parametrize(("a", "s", "q"), [(1, 4, 1), (2, 5, 2), (3, 6, 3)])
def test_with_some_always_kept_the_risk_is_a_mixture_of_two_means(a: int, s: int, q: int) -> None:
    """Where each batch has a of the marked samples and s - a of the others."""
    losses, marked = torch.from_numpy(EIGHT), torch.arange(8) < 3
    stratified = [rows for rows in mini_batches(s) if int(marked[rows].sum()) == a]
    mean = np.mean([ordered_mean(losses[rows], q, always_keep=marked[rows]).item() for rows in stratified])
    risk = (a * EIGHT[:3].mean() + q * theory.ordered_risk(EIGHT[3:], s - a, q)) / (a + q)
    assert mean == pytest.approx(risk, rel=1e-12)


@given(boxes=detections(), seed=st.integers(0, 100))
def test_counts_within_samples_are_a_weighted_mean_of_average_top_k_losses(boxes: Boxes, seed: int) -> None:
    s, m = boxes.losses.shape
    counts = torch.from_numpy(np.random.default_rng(seed).integers(0, m + 1, s))
    assume(int(counts.sum()) > 0)
    risks = [
        theory.spectral_risk(row, theory.average_top_k_spectrum(m, k)) if k else 0.0
        for row, k in zip(boxes.losses, counts.tolist(), strict=True)
    ]
    found = ordered_mean(boxes.losses, counts, unit="pixel", within="sample")
    assert found.item() == pytest.approx(np.average(risks, weights=counts.numpy()))
