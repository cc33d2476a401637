"""A nanoGPT-style loop with gradient accumulation: the q largest losses of the whole accumulated batch.

A list of micro-batches is one mini-batch for `OrderedStep`: it keeps the q sequences with the largest losses of all of
them, where a loss of its own for each micro-batch would keep some of each. The loop, its warm-up, cosine decay and
clipping stay as they are. A plain copy of the model takes its steps in turn, on the same batches, so that the times can
be compared. Data: the docstrings of scikit-learn, byte by byte; nothing is downloaded.

Run: python examples/11_nanogpt_accumulation.py [--q 0.25] [--steps 60]
"""

import argparse
import copy
import itertools
import math
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import OrderedStep
from ordered_sgd.lab.bench.workloads import CausalTransformer
from ordered_sgd.lab.data.prose import prose

MICRO_BATCHES, S, LENGTH = 4, 8, 64  # micro-batches of a step; sequences in each; bytes of a sequence
RATE, CLIP = 2e-3, 1.0

MicroBatches = list[tuple[Tensor, Tensor]]


def text(pieces: list[str]) -> Tensor:
    """All of them as one tensor of bytes."""
    return torch.from_numpy(np.frombuffer("\n\n".join(pieces).encode(), dtype=np.uint8).astype(np.int64))


def batches(data: Tensor, generator: torch.Generator) -> Iterator[MicroBatches]:
    """Micro-batches of sequences from random places, with the byte after each of theirs."""
    within = torch.arange(LENGTH + 1)
    while True:
        starts = torch.randint(len(data) - LENGTH, (MICRO_BATCHES, S, 1), generator=generator)
        yield [(part[:, :-1], part[:, 1:]) for part in data[starts + within]]


def per_sequence(logits: Tensor, y: Tensor) -> Tensor:
    """The mean loss of each sequence, shape (s,)."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as in nanoGPT."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Warm-up over a tenth of the steps, then a cosine down to a tenth of the rate."""
    warm = max(1, steps // 10)
    decay = 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm)))
    for group in optimizer.param_groups:
        group["lr"] = RATE * min((step + 1) / warm, 0.1 + 0.9 * decay)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, parts: MicroBatches) -> None:
    """Accumulation as nanoGPT has it."""
    for x, y in parts:
        loss = per_sequence(model(x), y).mean() / len(parts)
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def validation_loss(model: nn.Module, parts: list[MicroBatches]) -> float:
    """The mean loss per byte, in nats."""
    return statistics.fmean(per_sequence(model(x), y).mean().item() for x, y in itertools.chain(*parts))


def main() -> None:
    """Train both copies, and print what each step took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--q", type=float, default=0.25, help="share of the sequences of a step that is kept")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    docstrings = prose(["scikit-learn"])
    train = batches(text(docstrings.train), torch.Generator().manual_seed(0))
    held_out = list(itertools.islice(batches(text(docstrings.validation), torch.Generator().manual_seed(1)), 8))

    plain = CausalTransformer(layers=2, width=128, length=LENGTH)
    ordered = copy.deepcopy(plain)
    optimizers = {"plain": new_optimizer(plain), "ordered": new_optimizer(ordered)}
    step = OrderedStep(ordered, per_sequence, optimizers["ordered"], q=arguments.q, max_grad_norm=CLIP)
    seconds: dict[str, list[float]] = {"plain": [], "ordered": []}
    for number, parts in zip(range(arguments.steps), train, strict=False):
        for name, optimizer in optimizers.items():
            set_rate(optimizer, number, arguments.steps)
            start = time.process_time()
            if name == "plain":
                plain_step(plain, optimizer, parts)
            else:
                record = step(parts)  # the one new line of the loop
            seconds[name].append(time.process_time() - start)
        if (number + 1) % max(1, arguments.steps // 3) == 0:
            kept = f"kept {record.q} of {record.count}: {record.ordered_loss:.3f}, all {record.mean_loss:.3f}"
            print(f"step {number + 1}: loss of the ordered copy, {kept}")

    for name, model in {"plain": plain, "ordered": ordered}.items():
        took = 1000 * statistics.median(seconds[name])
        print(f"{name}: validation loss {validation_loss(model, held_out):.3f}, median step {took:.0f} ms")
    ratio = statistics.median(seconds["ordered"]) / statistics.median(seconds["plain"])
    print(f"an ordered step took {ratio:.2f} times as long as plain accumulation")


if __name__ == "__main__":
    main()
