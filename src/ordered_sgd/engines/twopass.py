"""Score all s samples without a graph, then forward and backward on the q chosen: less memory, and no compile.

The second pass sees only the chosen samples, so its result is the one-liner's only if samples do not influence each
other and the two passes draw the same random numbers. Both are looked after: random numbers of the first pass (dropout
masks) are kept and their chosen rows used again; on the first batch the gradient of a part is compared with the dense
one, and in every step the losses of the second pass with the scores.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ordered_sgd.agreement import agree, dtype_around, largest_difference, rounding
from ordered_sgd.engines import Ahead, Computed, Kept, Losses, Right, Score, Scored, Stateless
from ordered_sgd.engines.dense import Dense
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.errors import ArgumentError, check_choice, first_line, message, warn
from ordered_sgd.rewind import Buffers, Saved, device_of, random_state, restore_random_state
from ordered_sgd.selection import select_rows

log = logging.getLogger("ordered_sgd")


class TwoPassEngine(Stateless):
    """The gradient of the ordered loss by a scoring pass and a pass over the chosen samples.

    Parameters
    ----------
    scoring
        ``"train"`` scores the model as it is; ``"eval"`` switches dropout and batch statistics off for the scoring.
    score_dtype
        Score under autocast to this dtype; None: as the model is.
    replay
        Use the random numbers of the scoring pass again in the second one.
    batchnorm
        ``"subset"`` lets BatchNorm in training through: running statistics from the scoring pass over the whole batch,
        the statistics of the chosen samples in the second pass. That is not the one-liner's gradient.
    name
        Of the engine that warnings speak of.
    """

    def __init__(
        self,
        model: nn.Module,
        score: Score,
        parallel: OneProcess | None = None,
        *,
        scoring: str = "train",
        score_dtype: torch.dtype | None = None,
        replay: bool = True,
        batchnorm: str | None = None,
        name: str = "twopass",
    ) -> None:
        check_choice("OrderedStep", "scoring", scoring, ("train", "eval"))
        check_choice("OrderedStep", "batchnorm", batchnorm, (None, "subset"), 'Pass batchnorm="subset".')
        self.model, self.score, self.name = model, score, name
        self.dense = Dense(model, score, parallel)
        self.parallel = self.dense.parallel
        self._buffers = Buffers(model)
        self.why: str | None = None
        self._scoring, self._score_dtype, self._replay = scoring, score_dtype, replay
        self._subset = batchnorm is not None
        self._compares = scoring == "train" and score_dtype is None and replay and batchnorm is None
        if not self._compares:
            log.info("engine twopass does not compare its second pass with its scores: scoring, dtype or batchnorm")
        self._random = True  # until a scoring pass has drawn nothing
        self._coupled = self._dense_everywhere = self._checked = False

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch without a graph, and what it takes to run some samples again."""
        if not (ahead.keeps_all or self._checked):
            self._check(batch)
            self._agree_with_other_ranks()
        if ahead.keeps_all or self._dense_everywhere:
            return self.dense.forward(batch, ahead)
        device, drawn = device_of(self.model), _Drawn()
        random, saved = random_state(device), self._buffers.save()
        losses, right = self._scored(batch, drawn, saved, device)
        return TwoPassScored(losses, right, self, batch, drawn, random, saved)

    def again(self, first: "TwoPassScored", run: Tensor) -> tuple[Tensor, str]:
        """The losses of some samples with a graph, by a second pass, and the engine that this is."""
        s = len(first.losses)
        if not (self._coupled or (self._subset and run.shape[0] == 1)):  # one sample has no statistics of its own
            self._buffers.load(first.saved)
            with first.drawn.again(run, s) if first.drawn.values else nullcontext():
                kept: Tensor = self.parallel.through(self.score, take(first.batch, run, s)).losses
            differs = self._compares and not agree(kept, first.losses.index_select(0, run))
            if not self._on_some_rank(differs):
                return kept, "twopass"
            where = _first_difference(self.model, self.score, first.batch, run, s)
            self._give_up(where if differs else "a batch of another rank")
        restore_random_state(first.random, device_of(self.model))
        self._buffers.load(first.saved)
        return self.parallel.through(self.score, first.batch).losses.index_select(0, run), "dense"

    def samples_are_apart(self, batch: Any) -> bool:
        """Whether samples can be run without the others in their batch, as far as it shows; `why` says why not.

        Looked at once: a batch that is not finite does not tell, and the next one is looked at.
        """
        if not self._checked:
            self._check(batch)
        return self._checked and not self._coupled

    def _on_some_rank(self, differs: bool) -> bool:
        """Whether the second pass gave other losses than the first: here, or on a rank whose passes ours must meet."""
        return self.parallel.any(differs)[0] if self._compares and self.parallel.in_step else differs

    def _agree_with_other_ranks(self) -> None:
        """Run dense on all ranks if one of them must, and look again on all if one of them could not tell."""
        coupled, unsure = self.parallel.any(self._coupled, not self._checked)
        if coupled and not self._coupled:
            self.why = "samples influence each other on another rank"
        self._coupled = self._dense_everywhere = coupled
        self._checked = not unsure

    def _scored(self, batch: Any, drawn: "_Drawn", saved: Saved, device: torch.device) -> Losses:
        """The losses without a graph; what is drawn on the way is kept in `drawn` if it is to be used again."""
        # a rank without samples draws nothing, and must not score less often than the others
        watching, state = self._replay and (self._random or self.parallel.in_step), torch.get_rng_state()
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self._scoring == "eval":
                stack.enter_context(_evaluating(self.model))
            if self._score_dtype is not None:
                stack.enter_context(torch.autocast(device.type, dtype=self._score_dtype))
            if watching:
                stack.enter_context(drawn)
            scored = self.score(batch)
        torch.clear_autocast_cache()  # it holds weights that were cast without a graph
        if watching:
            self._random = bool(drawn.values)
        elif self._replay and not torch.equal(state, torch.get_rng_state()):
            # randomness appeared that the first steps did not have: watch from now on, and score again
            self._random = True
            torch.set_rng_state(state)
            self._buffers.load(saved)
            return self._scored(batch, drawn, saved, device)
        return scored

    def _check(self, batch: Any) -> None:
        """Give up if the gradient of some samples, computed from them alone, is not the one-liner's."""
        self._checked = True
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.training]
        if norms and (not self._subset or self.parallel.shares_statistics()):
            self._give_up(f"{type(norms[0]).__name__} in training")
            return
        if not self._compares:
            return
        device = device_of(self.model)
        random, saved = random_state(device), self._buffers.save()
        try:
            for weights in (_without_zeros(self.parallel.weights()), nullcontext()):
                with weights:
                    own, tolerance, rows, s = self._largest_error(batch, random, saved, device)
                error = self.parallel.worst(own)
                restore_random_state(random, device)
                self._buffers.load(saved)
                if error is not None:
                    break
            self._checked = error is not None  # a batch that is not finite tells nothing: look at the next one
            if error is not None and error > tolerance:
                self._give_up(_first_difference(self.model, self.score, batch, rows, s))
        except (RuntimeError, IndexError, ValueError) as reason:
            if self.parallel.in_step:  # the other ranks are in the middle of a pass
                raise
            self._coupled = True
            self.why = f"the chosen samples cannot be run by themselves ({first_line(reason)})"
            log.info("engine %s runs the whole batch: %s", self.name, self.why)
        finally:
            restore_random_state(random, device)
            self._buffers.load(saved)

    def _largest_error(
        self, batch: Any, random: list[Tensor], saved: Saved, device: torch.device
    ) -> tuple[float | None, float, Tensor, int]:
        """Distance of the gradient of every other sample from the dense one, for random weights, and its tolerance."""
        drawn = _Drawn()
        with drawn:
            losses = self.score(batch).losses
        s = losses.shape[0]
        rows = torch.arange(0, s, 2, device=losses.device)
        weights = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)).to(losses) + 0.5
        dense = self.parallel.gradient(losses.index_select(0, rows), weights)
        restore_random_state(random, device)
        self._buffers.load(saved)
        with drawn.again(rows, s):
            kept = self.score(take(batch, rows, s)).losses
        found = self.parallel.gradient(kept, weights)
        return largest_difference(found, dense), rounding(dtype_around(losses)), rows, s

    def _give_up(self, where: str) -> None:
        self._coupled = True
        # a rank that gives up alone still scores first, as the others do: their messages must meet
        self._dense_everywhere = self.parallel.in_step or not self.parallel.over_ranks
        self.why = f"samples influence each other in {where}"
        log.info("engine %s runs the whole batch: %s", self.name, self.why)
        instead = ', or batchnorm="subset" for BatchNorm' if self.name == "twopass" else ""
        remedy = f'Use engine="dense" to silence this{instead}.'
        text = message("OrderedStep", "samples", f"not influence each other for engine {self.name}", self.why, remedy)
        warn(text)


@dataclass(frozen=True)
class TwoPassScored:
    """Losses without a graph, and what a second pass over some samples needs."""

    losses: Tensor
    right: Right
    engine: TwoPassEngine
    batch: Any
    drawn: "_Drawn"
    random: list[Tensor]
    saved: Saved
    positions: None = None

    def backward(self, kept: Kept) -> Computed:
        """Run the kept samples again, with a graph."""
        rows, buffers = kept.rows, self.engine._buffers
        changed = buffers.save()
        # a rank without a kept sample takes part with its first one, and without a gradient
        run = rows if rows.shape[0] or not self.losses.shape[0] else torch.zeros_like(self.losses[:1]).long()
        again, engine = self.engine.again(self, run)
        kept.pull(again, None if rows.shape[0] else rows)
        buffers.load(changed)  # after the backward, which may have saved them
        return Computed(self.losses, rows, self.right, engine)

    def abandon(self) -> Computed:
        """Nothing has to be undone."""
        return Computed(self.losses, None, self.right, "twopass")


# Operators that only draw. Others that may draw, such as attention with dropout, compute from samples as well: they are
# not replayed, and the comparison tells if that matters.
_DRAWS = re.compile(
    r"aten\.(native_dropout|bernoulli|rand|randn|randint|normal|uniform|exponential|geometric|cauchy|log_normal|random)"
    r"(_like)?_?(\.|$)"
)


def _draws(func: Any) -> bool:
    return _DRAWS.match(str(func)) is not None


class _Drawn(TorchDispatchMode):
    """Keeps what random operators return; `again` gives the chosen rows of it in the same order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func):
            # an in-place draw returns its own argument, which may be changed later
            self.values.append(tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, result))
        return result

    def again(self, rows: Tensor, s: int) -> "_Again":
        return _Again(self.values, rows, s)


class _Again(TorchDispatchMode):
    def __init__(self, values: list[Any], rows: Tensor, s: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values, self.rows, self.s = iter(values), rows, s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
            return func(*args, **kwargs)
        recorded = next(self.values, None)
        if recorded is None:
            return func(*args, **kwargs)
        asked = _asked(args)
        chosen = tree_map(lambda t: _rows_of(t, self.rows, self.s, asked), recorded)
        name = str(func)
        if name.startswith("aten.native_dropout"):
            source, p = args[0], args[1]
            mask = chosen[1]
            return source * mask * (1 / (1 - p) if p < 1 else 0.0), mask
        if func._schema.is_mutable:  # bernoulli_ and its like fill their first argument
            return args[0].copy_(chosen)
        return chosen


def _asked(args: Any) -> Any:
    """The shape that a random operator is to fill: that of its first tensor, or its first list of sizes."""
    sizes = (
        tuple(a.shape) if isinstance(a, Tensor) else tuple(a) for a in args if isinstance(a, Tensor | list | tuple)
    )
    return next(sizes, None)


def _rows_of(value: Any, rows: Tensor, s: int, asked: Any) -> Any:
    """The chosen rows of a drawn tensor whose first dimension is the batch, alone or as the outer factor.

    One that is asked for in its own shape, as a mask of weights is, does not have the batch in it.
    """
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] % s or tuple(value.shape) == asked:
        return value
    if value.shape[0] == s:
        return value.index_select(0, rows)
    return value.unflatten(0, (s, -1)).index_select(0, rows).flatten(0, 1)


def take(batch: Any, rows: Tensor, s: int) -> Any:
    """The chosen samples of a batch: of every tensor whose first dimension is the batch."""

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == s:
            return select_rows(leaf, 0, rows)
        return leaf

    taken = tree_map(part, batch)
    if not any(a is not b for a, b in zip(tree_leaves(taken), tree_leaves(batch), strict=True)):
        remedy = 'Use engine="dense", or put the batch first.'
        rule = f"have the batch of {s} as their first dimension"
        raise ArgumentError(message("OrderedStep", "inputs", rule, "none that has", remedy))
    return taken


@contextmanager
def _without_zeros(weights: list[Tensor]) -> Iterator[None]:
    """Zero entries of the parameters are replaced inside: a scale that is still zero would hide a coupling."""
    generator = torch.Generator().manual_seed(1)
    kept = [(p, p.clone()) for p in weights if p.is_floating_point() and bool((p == 0).any())]
    try:
        with torch.no_grad():
            for p, _ in kept:
                p.masked_scatter_(p == 0, torch.rand(p.shape, generator=generator).to(p) + 0.5)
        yield
    finally:
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _first_difference(model: nn.Module, score: Score, batch: Any, rows: Tensor, s: int) -> str:
    """The first module whose output for the chosen samples depends on the others, by name and kind."""
    names = {module: name for name, module in model.named_modules()}
    outputs: list[list[tuple[nn.Module, Tensor]]] = []
    state = torch.get_rng_state()
    for part in (batch, take(batch, rows, s)):
        seen: list[tuple[nn.Module, Tensor]] = []

        def keep(module: nn.Module, inputs: Any, output: Any, seen: Any = seen) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                seen.append((module, output.detach()))

        hooks = [module.register_forward_hook(keep) for module in names]
        try:
            with torch.no_grad(), _evaluating_dropout(model):
                score(part)
        finally:
            for hook in hooks:
                hook.remove()
        outputs.append(seen)
    torch.set_rng_state(state)
    for (module, whole), (other, part) in zip(*outputs, strict=False):
        comparable = module is other and whole.dim() > 0 and whole.shape[0] == s and part.shape[0] == rows.shape[0]
        comparable = comparable and whole.shape[1:] == part.shape[1:]
        if comparable and not torch.allclose(whole.index_select(0, rows), part, rtol=1e-3, atol=1e-4):
            return f"{type(module).__name__} {names[module]!r}"
    return "the model or the criterion"


@contextmanager
def _evaluating_dropout(model: nn.Module) -> Iterator[None]:
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for module in dropouts:
        module.training = False
    try:
        yield
    finally:
        for module in dropouts:
            module.training = True
