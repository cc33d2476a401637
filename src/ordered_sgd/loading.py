"""Which samples of a drawn batch are loaded: those with the largest remembered losses, and a few others at random.

What `ordered_sgd.OrderedBatchSampler` knows of the samples. Where it stands in an epoch is another matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ordered_sgd.draws import Cut, DrawnBatch, Order
from ordered_sgd.engines.phases import KeptRanks
from ordered_sgd.engines.recall import Candidates
from ordered_sgd.engines.remembered import Part, RememberedLosses, pick
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.policy import Policy
from ordered_sgd.rules import resolve_q
from ordered_sgd.selection import random_rows, top_rows
from ordered_sgd.shared_settings import shown_setting


@dataclass(frozen=True)
class Amounts:
    """How much is loaded besides the samples that are expected to be kept; as of `ordered_sgd.OrderedBatchSampler`."""

    recall: float | None
    candidates: float | None
    others: float
    whole_from: int | None  # the first of the last epochs, in which whole batches are loaded and kept


class Loading:
    """Which samples of a drawn batch are loaded, and what is learnt from their losses.

    Parameters
    ----------
    policy
        How many samples are kept.
    amounts
        How many others are loaded.
    where
        Whom an error message speaks of.
    """

    def __init__(self, policy: Policy, amounts: Amounts, where: str) -> None:
        self.policy, self.amounts, self.where = policy, amounts, where
        self.own = True  # whether the policy sees nothing but what it is shown here
        self.ranks, self.accumulated = 1, 1  # the policy counts over batches of so many ranks, and of an update
        self.memory = RememberedLosses()
        self.candidates = Candidates(1.0 if amounts.recall is None else amounts.recall)

    def follow(self, policy: Policy, ranks: int, accumulated: int) -> None:
        """Keep as many samples as an ordered loss does, which counts over so many ranks and batches of an update."""
        (mine, shown), (its, needed) = _given(self.policy), _given(policy)
        if mine != its:
            rule, remedy = f"be those of {policy.where}, {needed}", "Give both the same; candidates= loads more."
            raise ArgumentError(message(self.where, "q and selection", rule, shown, remedy))
        self.policy, self.own, self.ranks, self.accumulated = policy, False, ranks, accumulated

    def resize(self, cut: Cut) -> None:
        """Make room for the samples of a rank; those that are no longer there are forgotten."""
        self.memory.resize(cut.slots)
        self.candidates.rest_on(cut.audits)

    def whole(self, epoch: int) -> bool:
        """Whether an epoch is one of the last, in which whole batches are loaded and kept."""
        return self.amounts.whole_from is not None and epoch >= self.amounts.whole_from

    def kept(self, s: int, epoch: int, batches: int = 1) -> KeptRanks:
        """Which of the ordered losses of a batch of s are to be kept.

        Where so many batches of each rank are ordered together, this is one batch's share, rounded up.
        """
        if self.whole(epoch):
            return KeptRanks(s)
        over = self.ranks * batches
        of_all = self.policy.q_for(s * over), self.policy.trimmed_of(s * over)
        q, trim = (-(-count // over) for count in of_all)
        return KeptRanks(q, min(trim, s - q))

    def draw(self, order: Order, number: int) -> DrawnBatch:
        """One batch of an epoch."""
        cut, epoch = order.cut, order.epoch
        slots = torch.from_numpy(order.slots(number))
        index, s = slots * cut.ranks + cut.rank, slots.shape[0]
        together = min(self.accumulated, cut.batches - number // self.accumulated * self.accumulated)
        remembered, kept = self.memory.of(slots), self.kept(s, epoch, together)
        generator = cut.generator(epoch, number)
        part, positions = None, None
        if self.policy.selection == "random" and kept.q < s:
            positions = random_rows(s, kept.q, generator)
        if self.policy.selection == "top":
            part = self._part(remembered, kept, generator)
            whole = part is None or cut.audited(epoch, number)
            positions = None if whole or part is None else part.scored
        return DrawnBatch(number, index, remembered, kept, part, positions, cut.together(number))

    def _part(self, remembered: Tensor, kept: KeptRanks, generator: torch.Generator) -> Part | None:
        """The candidates and some others; None where they are the whole batch."""
        s, c = remembered.shape[0], kept.last
        if self.amounts.candidates is not None:
            c = max(c, resolve_q(self.amounts.candidates, s, self.where))
        elif self.amounts.recall is not None:
            c = self.candidates.of(s, kept)
        others = resolve_q(self.amounts.others, s, self.where)
        return None if c + others >= s else pick(remembered, c, others, generator)

    def learn(self, drawn: DrawnBatch, slots: Tensor, losses: Tensor, right: Tensor | None) -> None:
        """Remember the losses of a batch, and learn from one that was loaded whole."""
        if drawn.positions is None:
            self._audit(drawn, losses)
        self.memory.take(slots, losses)
        if self.own:
            self.policy.see(drawn.s)
            if self.policy.adaptive.rule is not None:
                self.policy.observe(drawn.losses(losses), None if right is None else drawn.correct(right))

    def _audit(self, drawn: DrawnBatch, losses: Tensor) -> None:
        """What a batch that was loaded whole tells of what would have been missed."""
        kept = drawn.kept
        if drawn.part is not None:
            rows = top_rows(losses, kept.q, kept.trim)
            self.candidates.audit(int(torch.isin(rows, drawn.part.scored).sum()), kept.q)
        if self.amounts.recall is not None and kept.last < drawn.s and bool(drawn.remembered.isfinite().all()):
            self.candidates.look(drawn.remembered, losses, kept)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, the number of candidates, and the policy unless it is that of a loss."""
        policy = self.policy.state_dict() if self.own else None
        return {**self.memory.state_dict(), "candidates": self.candidates.state_dict(), "policy": policy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.memory.load_state_dict(state)
        self.candidates.load_state_dict(state["candidates"])
        if state["policy"] is not None and self.own:
            self.policy.load_state_dict(state["policy"])


def _given(policy: Policy) -> tuple[object, str]:
    """The q or rule that was given with the selection, to be compared and to be shown."""
    level = policy.adaptive.fixed if policy.adaptive.rule is None else policy.adaptive.rule
    return (type(level), level, policy.selection), f"{shown_setting(level)} and {policy.selection!r}"
