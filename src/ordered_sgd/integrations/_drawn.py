"""The ordered loss of a batch of which only some samples were loaded: as many are kept as of the whole batch."""

import torch
from torch import Tensor

from ordered_sgd.draws import DrawnBatch
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.kept_units import hidden_faults, mean_of_units
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.policy import Policy
from ordered_sgd.ranks import join, mean_over_ranks
from ordered_sgd.selection import top_rows
from ordered_sgd.units import Units


def check_orders_samples(loss_fn: OrderedLoss, where: str) -> None:
    """Raise unless whole samples are ordered, which are what a batch sampler leaves out."""
    if loss_fn.unit != "sample":
        remedy = 'Pass unit="sample", or use a plain batch sampler.'
        raise ArgumentError(message(where, "unit", "be 'sample' with a batch sampler", repr(loss_fn.unit), remedy))


def check_by_losses(units: Units, policy: Policy, where: str) -> None:
    """Raise unless the largest losses are kept, a known number of them, as a batch sampler loads them."""
    if units.scores is not None or units.always is not None or not policy.counts_ahead:
        given = {"a score": units.scores, "always_keep": units.always, "q=Above(...)": not policy.counts_ahead or None}
        got = ", ".join(name for name, value in given.items() if value is not None)
        remedy = "Leave it out, or use a plain batch sampler."
        raise ArgumentError(message(where, "what is kept", "be the q largest losses with a batch sampler", got, remedy))


def check_loaded(values: Tensor, drawn: DrawnBatch, where: str) -> None:
    """Raise unless there is a loss for every sample that was loaded."""
    if values.shape[0] != drawn.loaded.shape[0]:
        rule, got = "be called with all samples of the batch at once", f"{values.shape[0]} of {drawn.loaded.shape[0]}"
        remedy = "The batch sampler remembers a loss for each; to train on other samples, update it in a loop of yours."
        raise ArgumentError(message(where, "criterion", rule, got, remedy))


def plain_mean(values: Tensor, units: Tensor | None, drawn: DrawnBatch) -> Tensor:
    """The mean loss of the whole batch, estimated from what was loaded; of valid samples alone."""
    if units is None:
        return drawn.mean(values)
    return drawn.mean(torch.where(units, values, 0)) / (drawn.total(units.float()) / drawn.s).clamp(min=1e-9)


def ordered_mean_of_drawn(
    loss_fn: OrderedLoss,
    policy: Policy,
    drawn: DrawnBatch,
    values: Tensor,
    units: Tensor | None,
    correct: Tensor | None,
    counted: Tensor | None,
    *,
    whole: bool,
) -> Tensor:
    """The ordered loss of losses (m,) of a batch of s, of which some may not be valid; the rule sees estimates.

    Parameters
    ----------
    loss_fn, policy
        How samples are kept.
    drawn
        What was drawn, of which m were loaded.
    values, units
        The losses, and which are valid (None: all).
    correct, counted
        Estimates of the right answers in the whole batch, and of how many answers there are.
    whole
        Whether everything that was drawn is kept.
    """
    if loss_fn.group is not None:
        top = _over_ranks(loss_fn, policy, drawn, values, units, correct, whole=whole)
        share = loss_fn.group.size() * drawn.s / drawn.together  # of this rank in the mean over ranks
    else:
        if torch.is_grad_enabled():
            there = None if units is None else drawn.spread(units, torch.ones(drawn.s, dtype=torch.bool))
            _expect_answers(loss_fn, correct)
            policy.see(drawn.s)
            policy.observe(drawn.losses(values.detach()), correct, counted, there)
        q, trim = drawn.kept
        if policy.selection == "random":  # as many were loaded as are kept
            q, trim = values.shape[0], 0
        top, share = mean_of_units(Units(values, units), q, trim=trim, where=policy.where), 1.0
    if not loss_fn.mix:
        return top
    return (1 - loss_fn.mix) * top + loss_fn.mix * share * plain_mean(values, units, drawn)


def _over_ranks(
    loss_fn: OrderedLoss,
    policy: Policy,
    drawn: DrawnBatch,
    values: Tensor,
    units: Tensor | None,
    correct: Tensor | None,
    *,
    whole: bool,
) -> Tensor:
    """The mean of the largest losses that all ranks have loaded, as many as are kept of all that they have drawn."""
    assert loss_fn.group is not None
    group, where = loss_fn.group, policy.where
    settings = {**policy.settings(), "mix": loss_fn.mix, "cap": loss_fn.cap, "samples drawn": drawn.together}
    mine = values if units is None else torch.where(units, values, -torch.inf)
    joined = join(mine, None if correct is None else correct.round(), group, where, settings=settings)
    absent = int((joined.losses == -torch.inf).sum())
    there, total = joined.losses.shape[0] - absent, drawn.together - absent
    if torch.is_grad_enabled() and there:
        _expect_answers(loss_fn, joined.correct)
        policy.see(total)
        counted = None if joined.correct is None else torch.full_like(joined.correct, total)
        losses = joined.losses
        if policy.adaptive.rule is not None and policy.adaptive.rule.needs == "loss_share":
            losses = join(drawn.losses(mine.detach()), None, group, where, settings=settings).losses
        policy.observe(losses, joined.correct, counted, losses > -torch.inf)
    q, trim = (total, 0) if whole or policy.selection == "random" else (policy.q_for(total), policy.trimmed_of(total))
    trim = min(trim, max(0, there - 1))
    faults = hidden_faults(Units(joined.losses), 1, trim)
    return mean_over_ranks(mine, top_rows(joined.losses, min(q, there - trim), trim), joined, faults=faults)


def _expect_answers(loss_fn: OrderedLoss, correct: Tensor | None) -> None:
    """Raise in the first batch if the rule lives on right answers and none can be counted."""
    if loss_fn.counting:
        loss_fn._policy.adaptive.expect_answers(correct is not None, loss_fn._without_answers)
