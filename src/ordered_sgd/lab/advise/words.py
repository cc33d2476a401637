"""The advice in words: the verdict, the figures behind it, and the lines to write."""

from collections.abc import Iterator, Sequence

from ordered_sgd.lab.advise.candidate import Candidate
from ordered_sgd.lab.advise.forecast import PAPER, QUARTER, WORTH, Expected
from ordered_sgd.lab.advise.steps import ROWS, StepCosts, StepTime, levels, quarter_of
from ordered_sgd.lab.advise.warmup import WarmUp
from ordered_sgd.lab.bench.subjects import MEMORY, SELECTIVE, SGD

NAMES = {
    SELECTIVE: "selective_backward",
    "dense": "the whole backward pass",
    "twopass": "two passes",
    MEMORY: "remembered losses (approximate)",
    ROWS: "rows with BatchNorm approximated",
    SGD: "plain SGD",
}
RATE = (
    "The largest losses act like a larger step. Keep the learning rate of plain SGD or take a third of it: in the "
    "ablation (RESULTS.md) the best rate of ordered SGD was never above that of plain SGD."
)
BATCHNORM = """from ordered_sgd import OrderedStep
from ordered_sgd.engines import Rows

# approximate: BatchNorm's backward pass runs over the kept samples only
step = OrderedStep(model, criterion, optimizer, q=0.25, engine=Rows(batchnorm="full-batch"))
step(x, y)  # in place of forward, backward and update"""
_TINY = 1e-3  # seconds of a plain step
_LOADING, _RECALL = 0.4, 0.6  # share of a step from which loading is worth a line; what memory needs to be of use


def verdict(
    candidate: Candidate,
    costs: StepCosts,
    warm: WarmUp,
    expected: Sequence[Expected],
    best: Expected | None,
    *,
    worth: bool,
    epochs: int,
) -> str:
    """The answer, in a sentence or two."""
    plain, rule = expected[0], next((way for way in expected if way.way == PAPER), None)
    if best is None:
        return "Not worth it: no engine computed the gradient of this model exactly."
    spent = f"{best.ratio:.2f} of plain SGD's time ({duration(best.seconds)} instead of {duration(plain.seconds)})"
    if not worth:
        said = f"Not worth it: {epochs} epochs would take {spent}. {_reason(candidate, costs, warm, best, plain)}"
        small = next((way for way in expected if way.way == QUARTER and way.ratio <= WORTH), None)
        if small is not None:
            said += f" {QUARTER} from the first epoch on would take {small.ratio:.2f}, but can cost accuracy."
        return said
    if best.way == PAPER:
        return f"Worth it: with the paper's rule, {epochs} epochs should take {spent}. The gradients are exact."
    said = f"Worth it with a fixed q: with half of each batch kept, {epochs} epochs should take {spent}. "
    said += "The gradients are exact."
    if rule is None:
        return said + " The paper's rule needs a training accuracy, which cannot be counted here."
    return said + f" The paper's rule would take {rule.ratio:.2f}: it waits for training accuracy to reach 80 %."


def _reason(candidate: Candidate, costs: StepCosts, warm: WarmUp, best: Expected, whole: Expected) -> str:
    """Why nothing is saved."""
    half = levels(candidate.s)[1]
    step, plain = costs.at(SELECTIVE, half), costs.at(SGD, candidate.s)
    if candidate.coupled:
        quarter = costs.at(ROWS, quarter_of(candidate.s))
        said = "BatchNorm in training couples the samples of a batch, so each of them needs its backward pass."
        if quarter.ratio is None:
            return said
        return f"{said} An approximation, asked for by name, takes {quarter.ratio:.2f} of a plain step at q = s/4."
    if plain.seconds is not None and plain.seconds < _TINY:
        return (
            f"A step takes {1e6 * plain.seconds:.0f} µs, and choosing costs more than the backward pass that it saves."
        )
    if warm.loading > _LOADING * warm.seconds:
        share = warm.loading / (warm.loading + warm.seconds)
        return (
            f"Loading takes {share:.0%} of the time, and a backward pass saved does not shorten it. "
            "OrderedBatchSampler loads only samples that were hard (approximate)."
        )
    if step.why and best.engine in (SELECTIVE, "dense"):
        return f"selective_backward runs the whole backward pass: {step.why.rstrip('.')}."
    if costs.compile_seconds > 0.1 * whole.seconds and step.ratio is not None and step.ratio < 1:
        return f"Compiling takes {costs.compile_seconds:.1f} s once, which so short a training does not make up for."
    if best.way == PAPER and step.ratio is not None and step.ratio < 1:
        return "Most epochs would keep the whole batch."
    return "The backward pass that is saved costs little here."


def speeds(costs: StepCosts, expected: Sequence[Expected], s: int) -> Iterator[str]:
    """The times of steps and of whole trainings, a sentence for each engine and way."""
    qs = levels(s)[1:]
    for name in dict.fromkeys(step.engine for step in costs.steps if step.engine not in (SGD, "dense")):
        steps = [costs.at(name, q) for q in qs]
        if steps[0].ratio is None:
            yield f"A step with {NAMES[name]} failed: {steps[0].why}."
            continue
        ratios, at = ", ".join(f"{step.ratio:.2f}" for step in steps), ", ".join(map(str, qs))
        yield f"A step with {NAMES[name]} at q = {at} takes {ratios} of a plain step's time{_exactness(steps)}."
    for way in expected[1:]:
        path = f" q by epoch: {path_of(way.qs)}." if way.way == PAPER else ""
        yield f"Expected with {way.way}: {way.ratio:.2f} of plain SGD's time, by {NAMES[way.engine]}.{path}"


def findings(candidate: Candidate, costs: StepCosts, warm: WarmUp, *, workers: bool) -> Iterator[str]:
    """What else was found, a sentence or two each."""
    quarter = quarter_of(candidate.s)
    s, trained = candidate.s, f"After {warm.steps:,} steps ({warm.epochs:.1f} epochs)"
    accuracy = "" if warm.accuracy is None else f" training accuracy is {warm.accuracy:.1%} and"
    largest = f"{quarter} of {s} losses"
    yield f"{trained},{accuracy} the largest {largest} carry {warm.carried[quarter]:.0%} of a batch's loss."
    if warm.apart > 0:
        found = warm.remembered[quarter]
        said = f"Losses remembered for {warm.apart:,} steps find {found:.0%} of the largest {largest} (by chance "
        said += f"{quarter / s:.0%})"
        useful = found >= _RECALL and found > 1.5 * quarter / s
        yield said + (": a memory or a batch sampler has something to go by." if useful else ": too few to rely on.")
    if costs.head_share is not None:
        yield (
            f"The output layer and its loss take {costs.head_share:.0%} of a plain step: "
            "ordered_linear_cross_entropy computes them for kept tokens only."
        )
    if {SGD, "twopass"} <= costs.saved_bytes.keys():
        one, two = (costs.saved_bytes[name] / 2**20 for name in (SGD, "twopass"))
        yield f"Activations saved for the backward pass: {one:.1f} MiB, in two passes at q = s/4 {two:.1f} MiB."
    if warm.loading > 0.05 * warm.seconds:
        how = "in worker processes, " if workers else ""
        yield f"Loading a batch takes {warm.loading * 1e3:.1f} ms, {how}a plain step {warm.seconds * 1e3:.1f} ms."
    if warm.suspects:
        yield (
            f"Warning: the losses of {warm.suspects:,} of {warm.looked_at:,} samples stand far above those of their "
            "class. Look for wrong labels before training on the largest losses (SelectionTracker)."
        )
    if costs.compile_seconds > 1:
        yield f"selective_backward compiles once, which took {costs.compile_seconds:.0f} s."
    yield RATE


def _exactness(steps: Sequence[StepTime]) -> str:
    why = next((f" ({step.why.rstrip('.')})" for step in steps if step.why), "")
    errors = [step.error for step in steps if step.error is not None]
    if all(step.exact for step in steps):
        return f"; gradients differ by {max(errors):.0e} from whole backward passes{why}"
    apart = f" (relative difference {max(errors):.2g})" if errors and max(errors) > 0 else ""
    return f"; not the same gradient{apart}{why}"


def path_of(qs: Sequence[int]) -> str:
    """The q of every epoch, equal ones together.

    >>> path_of([64, 64, 32])
    '64 (1-2), 32 (3)'
    """
    parts, first = [], 1
    for at, q in enumerate(qs, 1):
        if at == len(qs) or qs[at] != q:
            parts.append(f"{q} ({first}-{at})" if at > first else f"{q} ({at})")
            first = at + 1
    return ", ".join(parts)


def code_for(best: Expected | None, *, coupled: bool) -> str:
    """The lines to write for what is recommended; else for the approximation under BatchNorm, or none."""
    if best is None:
        return BATCHNORM if coupled else ""
    q = "AccuracyRule()" if best.way == PAPER else "0.5"
    names = ["AccuracyRule"] * (best.way == PAPER)
    after = "  # after each epoch: {}.end_epoch()" if best.way == PAPER else ""
    if best.engine == SELECTIVE:
        names += ["OrderedLoss", "selective_backward"]
        lines = ["model = selective_backward(model)", f"criterion = OrderedLoss(criterion, q={q})"]
        lines[1] += after.format("criterion")
        lines.insert(0, '# criterion: built with reduction="none"')
    else:
        names += ["OrderedStep"]
        lines = [
            f'step = OrderedStep(model, criterion, optimizer, q={q}, engine="{best.engine}")' + after.format("step"),
            "step(x, y)  # in place of forward, backward and update",
        ]
    return "\n".join([f"from ordered_sgd import {', '.join(names)}", "", *lines])


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.0213), duration(3.21), duration(250), duration(9000)
    ('0.021 s', '3.2 s', '4.2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
