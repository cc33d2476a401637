"""Longer stories over ranks: each returns what its rank saw, as plain values for JSON."""

import copy
import math
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from ordered_sgd import (
    Above,
    AccuracyRule,
    FixedQ,
    LossMassRule,
    OrderedLoss,
    OrderedStep,
    explain_backward,
    ordered_linear_cross_entropy,
    ordered_mean,
    selective_backward,
)
from ordered_sgd.engines import Memory
from ordered_sgd.errors import ArgumentError, NonFiniteLossError
from ordered_sgd.ranks import _ROOM, join
from tests.contracts.engine_checks import Listed, quiet
from tests.distributed.parts import CE, ddp, gradient_of, network, part, relative_error

WRAP: dict[str, Callable[[nn.Module], nn.Module]] = {"ddp": ddp, "fsdp": fully_shard}
RULES = {
    "accuracy": AccuracyRule(thresholds=(0.2, 0.4), divisors=(2, 4)),
    "loss mass": LossMassRule(0.8),
}


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)


def batch(number: int, s: int = 24) -> tuple[Tensor, Tensor]:
    """In float64: two ways of adding up must not part over many steps."""
    g = Generator().manual_seed(number)
    return torch.randn(s, 6, generator=g, dtype=torch.float64), torch.randint(0, 4, (s,), generator=g)


def layout(number: int, ranks: int, s: int = 24) -> list[int]:
    """Other sizes in every step, now and then none."""
    cuts = torch.randint(0, s + 1, (ranks - 1,), generator=Generator().manual_seed(number)).sort().values.tolist()
    return [b - a for a, b in zip([0, *cuts], [*cuts, s], strict=True)]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()]


def train(step: OrderedStep, numbers: range, cut: Callable[..., Any] = lambda number, x, y: (x, y)) -> list[Any]:
    """The q of each step; an epoch has ten."""
    path = []
    for number in numbers:
        path.append(step(*cut(number, *batch(number))).q)
        if number % 10 == 9:
            step.end_epoch()
    return path


def own_part(group: Any = None) -> Callable[..., Any]:
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    return lambda number, x, y: part(layout(number, ranks), rank, x, y)


def in_parts(number: int, x: Tensor, y: Tensor) -> Any:
    x, y = own_part()(number, x, y)
    half = len(x) // 2
    return ([(x[:half], y[:half]), (x[half:], y[half:])],)


def plain(value: Any) -> Any:
    """A state as lists and numbers."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, Tensor):
        return value.tolist() if value.dtype != torch.uint8 else hash(tuple(value.tolist()))  # a generator is long
    return value


def fifty_steps(wrapper: str, engine: str, rule: str, parts: bool) -> dict[str, Any]:
    alone = network().double()
    reference = OrderedStep(alone, CE, sgd(alone), q=RULES[rule])
    expected = train(reference, range(50))
    model = WRAP[wrapper](network().double())
    step = OrderedStep(model, CE, sgd(model), q=RULES[rule], engine=engine, group=dist.group.WORLD)
    path = train(step, range(50), in_parts if parts else own_part())
    return {
        "error": relative_error(weights(model), weights(alone)),
        "same path": path == expected,
        "path": path,
        "state": {**plain(step.state_dict()["policy"]), "steps": step.steps},
    }


def another_number_of_ranks() -> dict[str, Any]:
    """Twenty steps, the second ten of them on one rank less, from a checkpoint."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    alone = network().double()
    expected = train(OrderedStep(alone, CE, sgd(alone), q=RULES["accuracy"]), range(25))
    model = ddp(network().double())
    optimizer = sgd(model)
    step = OrderedStep(model, CE, optimizer, q=RULES["accuracy"], group=dist.group.WORLD)
    path = train(step, range(15), own_part())
    saved = copy.deepcopy([model.module.state_dict(), optimizer.state_dict(), step.state_dict()])
    fewer = dist.new_group(list(range(ranks - 1)))
    if rank == ranks - 1:
        return {"error": 0.0, "same path": True}
    model = network().double()
    model.load_state_dict(saved[0])
    model = ddp(model, process_group=fewer)
    optimizer = sgd(model)
    optimizer.load_state_dict(saved[1])
    step = OrderedStep(model, CE, optimizer, q=RULES["accuracy"], group=fewer)
    step.load_state_dict(saved[2])
    path += train(step, range(15, 25), own_part(fewer))
    return {"error": relative_error(weights(model), weights(alone)), "same path": path == expected}


def not_finite(wrapper: str, engine: str, parts: bool) -> dict[str, Any]:
    """A NaN on the last rank, raised by all, then skipped by all."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    alone = network().double()
    reference = OrderedStep(alone, CE, sgd(alone), q=5)
    model = WRAP[wrapper](network().double())
    optimizer = sgd(model)
    found: dict[str, Any] = {"messages": [], "q": []}
    step = None
    for nonfinite in ("raise", "skip"):
        before = None if step is None else step.state_dict()
        step = OrderedStep(model, CE, optimizer, q=5, engine=engine, nonfinite=nonfinite, group=dist.group.WORLD)
        if before is not None:
            step.load_state_dict(before)
        for number in range(4):
            x, y = batch(number)
            if number == 2:
                x[-1, 0] = math.nan
            else:
                reference(x, y)
            x, y = part([24 // ranks] * ranks, rank, x, y)
            given = ([(x[:3], y[:3]), (x[3:], y[3:])],) if parts and number != 3 else (x, y)
            try:
                found["q"].append(step(*given).q)
            except NonFiniteLossError as error:
                found["messages"].append(str(error))
    return {**found, "error": relative_error(weights(model), weights(alone))}


def collectives() -> dict[str, Any]:
    """How often losses are sent around in each step, and gradients averaged, by engine."""
    sent, averaged = [], []
    original = dist.all_gather

    def counting(*args: Any, **kwargs: Any) -> Any:
        sent[-1] += 1
        return original(*args, **kwargs)

    def comm_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        averaged[-1] += 1
        return allreduce_hook(state, bucket)

    scatter = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    scattering = getattr(dist, scatter)

    def counting_too(*args: Any, **kwargs: Any) -> Any:
        averaged[-1] += 1
        return scattering(*args, **kwargs)

    found = {}
    for name in ("dense", "twopass", "micro-batches", "sharded twopass"):
        group = dist.new_group()  # that nobody has sent anything in
        if name == "sharded twopass":
            model = fully_shard(network())
        else:
            model = ddp(network(), process_group=group)
            model.register_comm_hook(group, comm_hook)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        engine = {"micro-batches": "dense", "sharded twopass": "twopass"}.get(name, name)
        step = OrderedStep(model, CE, frozen, q=5, engine=engine, group=group)
        sent, averaged = [], []
        dist.all_gather = counting
        setattr(dist, scatter, counting_too)
        try:
            for number, s in enumerate((8, 8, 8, 4, 12, 12)):
                sent.append(0)
                averaged.append(0)
                x, y = batch(number, s)
                half = s // 2
                x = x.float()
                step([(x[:half], y[:half]), (x[half:], y[half:])]) if name == "micro-batches" else step(x, y)
        finally:
            dist.all_gather = original
            setattr(dist, scatter, scattering)
        found[name] = [sent, averaged]
    return found


class Coupled(nn.Module):
    """Subtracts the mean of the batch once it is told to."""

    on = False

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.on else x


def a_rank_that_finds_a_coupling(wrapper: str, engine: str) -> dict[str, Any]:
    """In the fourth step the last rank's model couples its samples: nobody waits, and the gradient is the dense one."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    errors, engines, models, couplings, steps = [], [], [], [], []
    for kind in (engine, "dense"):
        torch.manual_seed(1)
        middle = nn.Linear(16, 16)
        if wrapper == "ddp":  # spectral_norm has buffers, which DDP broadcasts in each forward
            middle = nn.utils.parametrizations.spectral_norm(middle)
        inner = nn.Sequential(nn.Linear(6, 16), Coupled(), middle, nn.Tanh(), nn.Linear(16, 4))
        model = WRAP[wrapper](inner)
        frozen = torch.optim.SGD(model.parameters(), lr=0.0)
        models.append(model)
        couplings.append(inner[1])
        steps.append(OrderedStep(model, CE, frozen, q=5, engine=kind, group=dist.group.WORLD))
    for number in range(7):
        for coupling in couplings:
            coupling.on = rank == ranks - 1 and number >= 3
        x, y = batch(number)
        x, y = part([24 // ranks] * ranks, rank, x.float(), y)
        with quiet():
            records = [step(x, y) for step in steps]
        engines.append(records[0].engine)
        errors.append(relative_error(*map(gradient_of, models)))
    return {"errors": errors, "engines": engines, "why": steps[0].why, "all": wrapper == "fsdp"}


def same_masks(wrapper: str, engine: str, parts: bool) -> dict[str, Any]:
    """Dropout draws on each rank what it draws there with the dense engine."""
    errors = []
    models, steps = [], []
    for kind in (engine, "dense"):
        torch.manual_seed(1)
        model = WRAP[wrapper](nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 4)))
        models.append(model)
        steps.append(OrderedStep(model, CE, torch.optim.SGD(model.parameters(), 0.0), q=5, engine=kind,
                                 group=dist.group.WORLD))  # fmt: skip
    for number in range(4):
        x, y = own_part()(number, *batch(number))
        for step, split in zip(steps, (parts, False), strict=True):
            torch.manual_seed(dist.get_rank())
            step(*(([(x.float(), y), (x.float()[:0], y[:0])],) if split else (x.float(), y)))
        errors.append(relative_error(*map(gradient_of, models)))
    return {"error": max(errors)}


def wide_model(engine: str) -> dict[str, Any]:
    """More parameters than a bucket of DDP holds, and enough operations for auto to choose rows."""
    alone, model = network(2048), ddp(network(2048))
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), 0.0), q=5, engine=engine, group=dist.group.WORLD)
    errors, engines = [], []
    for number in range(4):
        x, y = (t[: 8 * dist.get_world_size()] for t in batch(number, 48))
        alone.zero_grad()
        ordered_mean(CE(alone(x.float()), y), 5).backward()
        x, y = part([8] * dist.get_world_size(), dist.get_rank(), x.float(), y)
        engines.append(step(x, y).engine)
        errors.append(relative_error(*map(gradient_of, (model, alone))))
    return {"error": max(errors), "engines": engines, "why": step.why}


def batch_norm(wrapper: str, engine: str) -> dict[str, Any]:
    """Couples the samples of a rank: dense, on all ranks."""
    torch.manual_seed(1)
    model = WRAP[wrapper](nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
    step = OrderedStep(model, CE, sgd(model), q=5, engine=engine, group=dist.group.WORLD)
    with quiet():
        records = [step(x.float(), y) for x, y in (batch(100 * dist.get_rank() + number) for number in range(3))]
    return {"engines": [record.engine for record in records], "why": step.why}


def random_control() -> dict[str, Any]:
    alone = network().double()
    reference = OrderedStep(alone, CE, sgd(alone), q=5, selection="random")
    train(reference, range(10))
    model = ddp(network().double())
    step = OrderedStep(model, CE, sgd(model), q=5, selection="random", group=dist.group.WORLD)
    train(step, range(10), own_part())
    return {"error": relative_error(weights(model), weights(alone))}


def loss_with_a_rule() -> dict[str, Any]:
    """OrderedLoss moves q by the accuracy of all ranks; eval mode and batches without gradients do not count."""
    alone = OrderedLoss(CE, q=RULES["accuracy"])
    ours = OrderedLoss(CE, q=RULES["accuracy"], group=dist.group.WORLD)
    model = network().double()
    same = True
    for number in range(8):
        x, y = batch(number)
        mine = own_part()(number, x, y)
        same &= bool(torch.isclose(alone(model(x), y), ours(model(mine[0]), mine[1])))
        with torch.no_grad():
            ours(model(mine[0]), mine[1])
        if dist.get_rank() == 0:  # no other rank takes part
            same &= bool(torch.isclose(ours.eval()(model(x), y), CE(model(x), y).mean()))
            ours.train()
        if number % 4 == 3:
            same &= alone.end_epoch() == ours.end_epoch()
    return {"same": same, "state": plain(ours.state_dict()), "q": ours.q}


def masked_units() -> list[float]:
    """Tokens of all ranks, with padding, a rank without a valid token, none at all, trim, mix, a rule: the errors."""
    world, rank, ranks, errors = dist.group.WORLD, dist.get_rank(), dist.get_world_size(), []
    options: dict[str, Any] = {"unit": "token", "trim": 0.1, "mix": 0.25}
    alone, ours = (OrderedLoss(lambda x: x, q=FixedQ(0.4), unit="token", group=group) for group in (None, world))
    for number, share in enumerate((0.7, 0.7, 0.3, 0.0)):
        generator = torch.Generator().manual_seed(number)
        losses = torch.rand(ranks, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(losses.shape, generator=generator) < share
        mask[0] &= number != 1  # the first rank has nothing valid in the second batch
        mine = losses[rank].detach().clone().requires_grad_()
        over_ranks = ordered_mean(mine, 0.4, mask=mask[rank], group=world, **options)
        pairs = [
            (ordered_mean(losses, 0.4, mask=mask, **options), over_ranks),
            (alone(losses, mask=mask), ours(mine, mask=mask[rank])),
        ]
        scores, always = torch.rand(losses.shape, generator=generator), losses.detach() < 0.1
        beside = [{"scores": scores}, {"always_keep": always}, {"scores": scores.double(), "always_keep": always}]
        for q, given in product((0.4, 2, Above(0.5, at_least=3)), [{}, *beside]):
            own = {name: value[rank] for name, value in given.items()}
            for more in ({}, options):
                expected = ordered_mean(losses, q, mask=mask, **{"unit": "token", **more}, **given)
                found = ordered_mean(mine, q, mask=mask[rank], group=world, **{"unit": "token", **more}, **own)
                pairs.append((expected, found))
            kinds = [OrderedLoss(lambda x: x, q=q, unit="token", group=group) for group in (None, world)]
            pairs.append((kinds[0](losses, mask=mask, **given), kinds[1](mine, mask=mask[rank], **own)))
        for expected, value in pairs:
            (whole,), (gradient,) = torch.autograd.grad(expected, losses), torch.autograd.grad(value, mine)
            errors += [abs(value.item() - expected.item()), float((gradient / ranks - whole[rank]).abs().max())]
    return errors


def ignored_targets(wrapper: str, engine: str, parts: bool) -> dict[str, Any]:
    """Some targets of a step are ignored, all of a rank, or all: as one process without those samples."""
    group, ranks = dist.group.WORLD, dist.get_world_size()
    alone, model = network().double(), WRAP[wrapper](network().double())
    reference = OrderedStep(alone, CE, sgd(alone), q=RULES["accuracy"], trim=1, trim_epochs=0)
    step = OrderedStep(
        model, CE, sgd(model), q=RULES["accuracy"], trim=1, trim_epochs=0, engine=engine, group=group
    )  # fmt: skip
    path, expected = [], []
    for number in range(10):
        x, y = batch(number)
        y = y.masked_fill(torch.rand(24, generator=Generator().manual_seed(number)) < 0.3, -100)
        sizes = layout(number, ranks)
        if number == 3:
            y[: sizes[0]] = -100
        y = torch.full_like(y, -100) if number == 6 else y
        records = [step(*(in_parts if parts else own_part())(number, x, y)), reference(x, y)]
        for record, taken in zip(records, (path, expected), strict=True):
            taken.append((record.q, record.count))
        if number % 2:
            step.end_epoch()
            reference.end_epoch()
    found, wanted = weights(model), weights(alone)
    return {"error": relative_error(found, wanted), "same path": path == expected, "path": path}


def ordered_by(wrapper: str, engine: str, parts: bool) -> dict[str, Any]:
    """Steps by a score, with a threshold for q, and with both."""
    paths: list[list[int]] = [[], []]
    errors = []
    for options in (
        {"q": 5, "score": lambda outputs, y: -outputs[:, 0]},
        {"q": Above(1.4, at_least=4)},
        {"q": Above(0.2, at_least=4), "score": lambda outputs, y: -outputs[:, 0].float(), "trim": 2, "trim_epochs": 0},
    ):
        alone, model = network().double(), WRAP[wrapper](network().double())
        reference = OrderedStep(alone, CE, sgd(alone), **options)
        step = OrderedStep(model, CE, sgd(model), engine=engine, group=dist.group.WORLD, **options)
        paths[0] += train(step, range(6), in_parts if parts else own_part())
        paths[1] += train(reference, range(6))
        errors.append(relative_error(weights(model), weights(alone)))
    return {"error": max(errors), "same path": paths[0] == paths[1], "path": paths[0]}


def tokens_of_a_head() -> list[float]:
    """The head's loss over ragged parts of a batch, a rank without a token among them: the errors."""
    world, ranks, errors = dist.group.WORLD, dist.get_world_size(), []
    for number, options in enumerate(({}, {"softcap": 3.0}, {"trim": 2, "mix": 0.25})):
        generator = torch.Generator().manual_seed(number)
        hidden = torch.randn(24, 6, generator=generator, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(40, 6, generator=generator, dtype=torch.float64, requires_grad=True)
        target = torch.randint(40, (24,), generator=generator)
        target[::5] = -100
        whole = ordered_linear_cross_entropy(hidden, weight, target, 0.3, **options)
        sizes = layout(number, ranks) if number else [24] + [0] * (ranks - 1)
        own_hidden, own_target = part(sizes, dist.get_rank(), hidden, target)
        mine = ordered_linear_cross_entropy(own_hidden, weight, own_target, 0.3, group=world, **options)
        expected, (found,) = torch.autograd.grad(whole, weight), torch.autograd.grad(mine, weight)
        dist.all_reduce(found)
        errors += [abs(mine.item() - whole.item()), float((found / ranks - expected[0]).abs().max())]
    return errors


def refusals() -> list[str]:
    """What is refused, by all ranks alike."""
    model = network()
    texts = []

    def attempt(what: Callable[[], Any]) -> None:
        try:
            what()
            texts.append("nothing")
        except ArgumentError as error:
            texts.append(str(error))

    world = dist.group.WORLD
    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    attempt(lambda: OrderedStep(model, CE, frozen, q=5, group=world))
    first = dist.new_group([0])
    wrapper = ddp(model)
    if dist.get_rank() == 0:
        attempt(lambda: OrderedStep(wrapper, CE, frozen, q=5, group=first))
    else:
        attempt(lambda: OrderedStep(wrapper, CE, frozen, q=5, group=first))
        texts[-1] = ""  # not a member: another message
    attempt(lambda: OrderedStep(wrapper, CE, frozen, q=5, group=world)(torch.zeros(0, 6), torch.zeros(0).long()))
    sharded = fully_shard(network())
    step = OrderedStep(sharded, CE, torch.optim.SGD(sharded.parameters(), lr=0.0), q=5, group=world)
    x, y = batch(0)
    attempt(lambda: step([(x.float(), y)] * (1 + dist.get_rank())))
    attempt(lambda: OrderedStep(wrapper, CE, frozen, q=5, engine="memory", group=world))
    return texts


def disagreements() -> list[str]:
    """What all ranks say where the last one was given something else; each story has a group of its own."""
    last, x, y = dist.get_rank() == dist.get_world_size() - 1, *batch(0)
    texts: list[str] = []

    def attempt(run: Callable[[Any], Any]) -> None:
        try:
            run(dist.new_group())
            texts.append("nothing")
        except ArgumentError as error:
            texts.append(str(error))

    def step_of(group: Any, **options: Any) -> OrderedStep:
        model = ddp(network().double(), process_group=group)
        return OrderedStep(model, CE, sgd(model), **{"q": 5, "group": group, **options})

    def differing(**theirs: Any) -> None:
        """A step whose settings differ, where the last rank has those given."""
        attempt(lambda group: step_of(group, **(theirs if last else {}))(x, y))

    differing(q=0.25)
    differing(q=RULES["accuracy"])
    differing(trim=2, trim_epochs=0)
    differing(selection="random")
    differing(cap=0.5)
    differing(engine="twopass")
    differing(engine="dense", nonfinite="skip", max_grad_norm=1.0)
    seeded = Generator().manual_seed(dist.get_rank())
    attempt(lambda group: step_of(group, selection="random", generator=seeded)(x, y))
    attempt(lambda group: step_of(group, forward=lambda model, x: model(x).float() if last else model(x))(x, y))
    attempt(lambda group: step_of(group)(*(([(x, y)],) if last else (x, y))))

    def resumed(group: Any, here: bool, **options: Any) -> None:
        saved = step_of(group)
        saved(x, y)
        step = step_of(dist.new_group(), **options)
        if here:
            step.load_state_dict(saved.state_dict())
        step(x, y)

    attempt(lambda group: resumed(group, here=True, engine="twopass" if last else "dense"))
    attempt(lambda group: resumed(group, here=last))

    def ended(group: Any) -> None:
        step = step_of(group, q=RULES["accuracy"])
        step(x, y)
        if last:
            step.end_epoch()
        step(x, y)

    attempt(ended)
    losses = CE(network().double()(x), y)
    attempt(lambda group: OrderedLoss(lambda x: x, q=5, mix=0.5 * last, group=group)(losses))
    attempt(lambda group: ordered_mean(losses, 5 + last, group=group))
    attempt(lambda group: ordered_mean(losses.bfloat16() if last else losses, 5, group=group))
    empty = torch.zeros(0, dtype=torch.float64 if last else torch.bfloat16)
    attempt(lambda group: ordered_mean(losses if last else empty, 5, group=group))  # no dtype of its own
    attempt(lambda group: ordered_mean(losses, 5, scores=losses if last else None, group=group))
    attempt(lambda group: ordered_mean(losses, Above(1.0 + last), group=group))
    return texts


class Recurrent(nn.Module):
    """The last state of an LSTM, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.LSTM(16, 128, batch_first=True), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layer(x)[0][:, -1])
        return scores


def recurrent_model() -> dict[str, Any]:
    """Engine auto on ranks of which each alone would choose another engine, by its batch's operations and its share."""
    sizes = [4, 30, 8][: dist.get_world_size()]
    alone, model = Recurrent(), ddp(Recurrent())
    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    step, engines, errors = OrderedStep(model, CE, frozen, q=5, group=dist.group.WORLD), [], []
    for number in range(4):
        g = Generator().manual_seed(number)
        x, y = torch.randn(sum(sizes), 16, 16, generator=g), torch.randint(0, 4, (sum(sizes),), generator=g)
        alone.zero_grad()
        ordered_mean(CE(alone(x), y), 5).backward()
        engines.append(step(*part(sizes, dist.get_rank(), x, y)).engine)
        errors.append(relative_error(gradient_of(model), gradient_of(alone)))
    return {"engines": engines, "error": max(errors)}


def room_is_learnt() -> list[int]:
    """How many losses are sent after batches of these sizes."""
    group, found = dist.new_group(), []
    for s in (4, 2, 6, 6, 0):
        mine = s if dist.get_rank() == 1 else 1
        join(torch.zeros(mine), None, group, "test", settings={})
        found.append(_ROOM[group])
    return found


def sharded_state() -> dict[str, Any]:
    """After training with fully_shard all ranks hold the same whole model."""
    model = fully_shard(network())
    step = OrderedStep(model, CE, sgd(model), q=5, max_grad_norm=0.5, group=dist.group.WORLD)
    for number in range(3):
        x, y = own_part()(number, *batch(number))
        step(x.float(), y)
    state = {name: getattr(t, "full_tensor", lambda t=t: t)() for name, t in get_model_state_dict(model).items()}
    return {name: t.double().sum().item() for name, t in state.items()}


def remembered_by_rank() -> dict[str, Any]:
    """The engine with a memory without a group: each rank keeps the largest of its own shard, and remembers those."""
    n, s, rank, ranks = 48, 12, dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(n * ranks, 6, generator=g), torch.randint(0, 4, (n * ranks,), generator=g)
    model, alone = ddp(network()), network()
    step = OrderedStep(model, CE, sgd(model), q=3, engine=Memory(candidates=4))
    optimizer = sgd(alone)
    scored, error = [], 0.0
    for number in range(12):
        own = torch.arange(rank, n * ranks, ranks)[torch.randperm(n, generator=Generator().manual_seed(number))[:s]]
        record = step(x[own], y[own], index=own)
        scored.append(s if record.scored is None else record.scored.shape[0])
        chosen: list[Any] = [None] * ranks
        dist.all_gather_object(chosen, own[record.rows])
        optimizer.zero_grad()
        rows = torch.cat(chosen)
        CE(alone(x[rows]), y[rows]).mean().backward()
        optimizer.step()
        error = max(error, relative_error(weights(model), weights(alone)))
    known = step.state_dict()["engine"]["losses"].isfinite().nonzero().squeeze(1)
    return {"error": error, "scored": scored, "own shard": bool((known % ranks == rank).all()), "known": len(known)}


class Shifted(nn.Module):
    """A buffer that DistributedDataParallel sends around before each pass through it, and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(6))
        self.network = network()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network(x + self.shift)
        return scores


def each_rank_by_itself(engine: Any) -> dict[str, Any]:
    """Without a group: ranks keep other numbers of samples, so that engines look at the model in other steps."""
    rank, ranks, s = dist.get_rank(), dist.get_world_size(), 12
    torch.manual_seed(0)
    alone = Shifted()
    model = ddp(copy.deepcopy(alone))
    step = OrderedStep(model, CE, sgd(model), q=Listed([s, s, 3, 3, 2, 2, 2][rank:]), engine=engine)
    optimizer, engines, error = sgd(alone), [], 0.0
    for number in range(6):
        x, y = (t.float() if t.is_floating_point() else t for t in batch(number, s * ranks))
        own = torch.arange(rank * s, rank * s + s)
        record = step(x[own], y[own])
        engines.append(record.engine)
        step.end_epoch()
        chosen: list[Any] = [None] * ranks
        dist.all_gather_object(chosen, own[record.rows])
        optimizer.zero_grad()
        torch.stack([CE(alone(x[rows]), y[rows]).mean() for rows in chosen]).mean().backward()
        optimizer.step()
        error = max(error, relative_error(weights(model), weights(alone)))
    return {"error": error, "engines": engines}


def selective_loop(when: str) -> dict[str, Any]:
    """`selective_backward` in a plain loop over ranks, for a model that is wrapped afterwards or before."""
    alone, model = network().double(), network().double()
    if when == "before":
        selective_backward(model)
    wrapped = ddp(model)
    if when == "after":
        selective_backward(model)
    ours, theirs, error = sgd(wrapped), sgd(alone), 0.0
    for number in range(6):
        x, y = batch(number)
        own_x, own_y = part([len(x) // dist.get_world_size()] * dist.get_world_size(), dist.get_rank(), x, y)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        ordered_mean(CE(wrapped(own_x), own_y), 5, group=dist.group.WORLD).backward()
        ordered_mean(CE(alone(x), y), 5).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
        error = max(error, relative_error(weights(wrapped), weights(alone)))
    report = explain_backward(model)
    return {"error": error, "skipping": report.skipping, "reasons": report.reasons}


class Residual(nn.Module):
    """A block as `fully_shard` is given them one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(6), nn.Linear(6, 24), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.narrow(torch.tanh(self.wide(self.norm(x))))
        return x + narrow


def selective_blocks(when: str) -> dict[str, Any]:
    """Blocks that are sharded and selective each: at least two samples on every rank, in other numbers in each step."""
    torch.manual_seed(0)
    alone = nn.Sequential(Residual(), Residual(), nn.Linear(6, 4)).double()
    model = copy.deepcopy(alone)
    for wrap in (selective_backward, fully_shard) if when == "before" else (fully_shard, selective_backward):
        for block in model[:2]:
            wrap(block)
    sharded = fully_shard(model)
    ours, theirs, error = sgd(sharded), sgd(alone), 0.0
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for number in range(5):
        x, y = batch(number)
        if number == 2:  # the largest losses are those of the last rank alone
            x[:-5] *= 1e-3
        spare = layout(number, ranks, 24 - 2 * ranks)
        own_x, own_y = part([2 + more for more in spare], rank, x, y)
        for optimizer in (ours, theirs):
            optimizer.zero_grad()
        with warnings.catch_warnings():  # torch.compile looks at gathered parameters, which are no leaves
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            ordered_mean(CE(sharded(own_x), own_y), 5, group=dist.group.WORLD).backward()
        ordered_mean(CE(alone(x), y), 5).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
        error = max(error, relative_error(weights(sharded), weights(alone)))
    reports = [explain_backward(block) for block in model[:2]]
    return {"error": error, "skipping": min(r.skipping for r in reports), "reasons": [str(r.reasons) for r in reports]}
