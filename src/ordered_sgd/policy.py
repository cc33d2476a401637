"""What is kept of a batch at this point of a training: the state behind line 4 of Algorithm 1."""

import hashlib
from typing import Any, Literal

import torch
from torch import Tensor

from ordered_sgd.adaptive import AdaptiveQ
from ordered_sgd.amounts import Above, kept_count, trimmed
from ordered_sgd.errors import ArgumentError, check_choice, check_state, message
from ordered_sgd.rules import FixedQ, Rule, warn_of_one
from ordered_sgd.selection import random_rows, top_rows
from ordered_sgd.shared_settings import Settings, shown_setting
from ordered_sgd.traps import ForgottenEpochs, warn_of_small_q
from ordered_sgd.units import plain_trim

Selection = Literal["top", "random"]
_STATE = ("q", "s", "epoch", "began", "last", "sums", "generator")


class Policy:
    """How many samples are kept and which: q, fixed or by a rule, trimming by epoch, the largest losses or random ones.

    Parameters
    ----------
    q, selection, generator, trim, trim_epochs
        As of `ordered_sgd.OrderedLoss`.
    where
        The name that messages start with.
    of_samples
        Whether whole samples are ordered: then a small q in the first epoch is warned of.
    above
        Whether q may be a threshold, so that only the losses tell how many are kept.
    """

    def __init__(
        self,
        q: float | Above | Rule,
        *,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        trim: float = 0,
        trim_epochs: int = 5,
        where: str,
        of_samples: bool = True,
        above: bool = False,
    ) -> None:
        if isinstance(q, Above) and not above:
            remedy = "Pass a count such as q=16, or a share such as q=0.25."
            raise ArgumentError(message(where, "q", "be known before the losses", repr(q), remedy))
        self.adaptive = AdaptiveQ(q, where)
        check_choice(where, "selection", selection, ("top", "random"))
        self.selection = selection
        self.generator = generator or torch.Generator().manual_seed(0)
        self.trim, self.trim_epochs = plain_trim(trim), trim_epochs
        self.where = where
        self._of_samples = of_samples
        self._warned = False  # of a doubtful q
        self._epochs = self._watched_epochs()

    def _watched_epochs(self) -> ForgottenEpochs | None:
        """What notices that `end_epoch` is never called; None where nothing moves by epoch."""
        rule = self.adaptive.rule
        if rule is not None and not isinstance(rule, FixedQ):
            return ForgottenEpochs(self.where, f"{shown_setting(rule)} to move q")
        return ForgottenEpochs(self.where, "trim to grow") if self.trim and self.trim_epochs else None

    @property
    def moves(self) -> bool:
        """Whether what is kept depends on what came before: what a checkpoint must carry."""
        return self.adaptive.rule is not None or self.selection == "random" or (self.trim and self.trim_epochs) > 0

    def settings(self) -> Settings:
        """What ranks that keep samples together must have in common now."""
        found: dict[str, object] = {"q": self.adaptive.shown(), "trim": self.trim_now, "selection": self.selection}
        if self.selection == "random":
            state = self.generator.get_state().numpy().tobytes()
            found["generator"] = hashlib.blake2b(state, digest_size=4).hexdigest()
        return found

    def choose(self, losses: Tensor, q: int | None = None, *, s: int | None = None) -> Tensor:
        """Positions of the samples to keep: line 4 of Algorithm 1, or the random control. A threshold reads the losses.

        With `s` the losses are some of a batch of s, and as many are kept as of the whole batch.
        """
        s = losses.shape[0] if s is None else s
        r = self.trimmed_of(s)
        if isinstance(self.adaptive.fixed, Above):
            q = kept_count(self.adaptive.fixed, losses, r, self.where)
        else:
            q = self.q_for(s) if q is None else min(q, s - r)
        if self.selection == "random":
            rows = random_rows(s, q, self.generator)
            if losses.device.type == "cuda" and rows.device.type == "cpu":
                rows = rows.pin_memory()  # from ordinary memory the copy would wait for the device
            return rows.to(losses.device, non_blocking=True)
        return top_rows(losses, q, r)

    def draw(self, values: Tensor) -> Tensor:
        """Random numbers in the place of losses: the largest of them are a random choice."""
        return torch.rand(values.shape, generator=self.generator).to(values.device)

    def see(self, s: int, batch: int | None = None) -> None:
        """A training batch came, of which s count; how many it holds in all tells where an epoch ends (None: s)."""
        larger = s > self.adaptive.s and self.adaptive.epoch == 0
        if larger and not self._warned:
            self._warned = self._warn_of_q(s)
        if self._epochs is not None and not torch.compiler.is_compiling():  # a counter would compile in every step
            self._epochs.saw(s if batch is None else batch)
        self.adaptive.see(s)

    def evaluated(self) -> None:
        """A batch was evaluated: a sign that epochs pass."""
        if self._epochs is not None and not torch.compiler.is_compiling():
            self._epochs.evaluated()

    def observe(self, losses: Tensor, *given: Tensor | None, scores: Tensor | None = None) -> None:
        """Show a training batch to the rule; see `AdaptiveQ.observe`."""
        self.adaptive.observe(losses, *given, scores=scores, trim=self.trim_now)

    @property
    def counts_ahead(self) -> bool:
        """Whether how many are kept is known before the losses."""
        return not isinstance(self.adaptive.fixed, Above)

    def _warn_of_q(self, s: int) -> bool:
        """Whether there was something to warn of in the q for a batch of s."""
        fixed = self.adaptive.fixed
        if isinstance(fixed, int | float) and warn_of_one(fixed, s, self.where):
            return True
        ordered = self.selection == "top" and self._of_samples and self.counts_ahead
        return ordered and warn_of_small_q(self.where, self.adaptive.q_for(s), s)

    def q_for(self, s: int) -> int:
        """How many samples of a batch of s are kept now; asking changes nothing."""
        return min(self.adaptive.q_for(s), s - self.trimmed_of(s))

    def trimmed_of(self, s: int) -> int:
        """How many of the largest losses of a batch of s are dropped now."""
        return trimmed(self.trim_now, s) if self.trim else 0

    @property
    def trim_now(self) -> float:
        """What is trimmed in this epoch."""
        if not self.trim or self.epoch >= self.trim_epochs:
            return self.trim
        now = self.trim * self.epoch / self.trim_epochs
        return now if isinstance(self.trim, float) else int(now)

    @property
    def keeps_all(self) -> bool:
        """Whether the largest batch so far would be kept whole, or none has come yet."""
        return self.adaptive.s == 0 or self.q_for(self.adaptive.s) >= self.adaptive.s

    @property
    def q(self) -> int | None:
        """The present q for a full batch; None before the first one."""
        return self.adaptive.q

    @property
    def epoch(self) -> int:
        """Epochs ended so far."""
        return self.adaptive.epoch

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch; see `OrderedLoss.end_epoch`."""
        if self._epochs is not None:
            self._epochs.end()
        return self.adaptive.end_epoch(accuracy)

    def state_dict(self) -> dict[str, Any]:
        """The q, s, the epoch, what was observed, and the generator of the random control."""
        return {**self.adaptive.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        remedy = f"Pass what state_dict of an {self.where} returned."
        check_state(f"{self.where}.load_state_dict", "the state of q", state, _STATE, remedy)
        self.adaptive.load_state_dict(state)
        if self._epochs is not None and self.epoch:
            self._epochs.end()
        self.generator.set_state(state["generator"].cpu())
