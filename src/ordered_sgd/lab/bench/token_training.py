"""Language models trained on their hardest tokens, on random tokens and on all of them: what is lost, what is saved.

Runs of one seed see the same tokens in the same order and start from the same weights, and each way of training is
tried at the same learning rates. Processor time is that of training steps, on one thread; validation is not counted.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.errors import require
from ordered_sgd.head import ordered_linear_cross_entropy, token_losses
from ordered_sgd.lab.bench.timing import threads_of_torch
from ordered_sgd.lab.bench.workloads import CausalTransformer
from ordered_sgd.lab.data.prose import Prose
from ordered_sgd.selection import random_rows

PLAIN = "plain"
END = "<end>"  # between two docstrings
WARMUP = 0.1  # share of the steps over which the rate rises, before it falls as a cosine to a tenth
Loss = Callable[[Tensor, nn.Linear, Tensor, torch.Generator], Tensor]  # of hidden states, the head and targets


@dataclass(frozen=True)
class TokenRun:
    """One training: which tokens are kept, at which rate, from which seed."""

    kept: str
    q: float
    rate: float
    seed: int

    @property
    def loss(self) -> Loss:
        """The training loss of a batch."""
        if self.kept == PLAIN:
            return lambda hidden, head, target, _: F.cross_entropy(head(hidden), target)
        if self.kept == "random":
            return lambda *args: _random(self.q, *args)
        return lambda hidden, head, target, _: ordered_linear_cross_entropy(
            hidden, head.weight, target, self.q, linear_bias=head.bias
        )


@dataclass(frozen=True)
class Size:
    """The model and how long it trains; what two runs must share to be compared."""

    vocabulary: int = 8_192
    layers: int = 4
    width: int = 128
    s: int = 8
    length: int = 64
    steps: int = 600
    points: int = 6


@dataclass(frozen=True)
class Corpus:
    """Token numbers of the three parts of a text."""

    train: Tensor
    validation: Tensor
    test: Tensor


def encode(text: Prose, vocabulary: int) -> Corpus:
    """The text in tokens of a byte-pair encoding that is learned from its training part."""
    tokenizers = require("tokenizers", extra="huggingface", where="osgd bench")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(text.train, trainer)
    end = tokenizer.token_to_id(END)

    def numbers(part: Sequence[str]) -> Tensor:
        found = [np.array([*one.ids, end], dtype=np.int64) for one in tokenizer.encode_batch(list(part))]
        return torch.from_numpy(np.concatenate(found))

    return Corpus(numbers(text.train), numbers(text.validation), numbers(text.test))


def train(run: TokenRun, corpus: Corpus, size: Size) -> dict[str, Any]:
    """The record of a run: validation loss over tokens and processor seconds, and the test loss at the end."""
    torch.manual_seed(run.seed)
    model = CausalTransformer(layers=size.layers, width=size.width, vocabulary=size.vocabulary, length=size.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.rate, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, size.steps))
    generator = torch.Generator().manual_seed(run.seed)
    batches = sample(corpus.train, size, torch.Generator().manual_seed(run.seed))
    points, seconds = [], 0.0
    with threads_of_torch(1):
        for step in range(1, size.steps + 1):
            x, y = next(batches)
            began = time.process_time()
            hidden = model.hidden(x)
            loss = run.loss(hidden.flatten(0, 1), model.head, y.flatten(), generator)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            seconds += time.process_time() - began
            if step % (size.steps // size.points) == 0:
                tokens = step * size.s * size.length
                points.append({"tokens": tokens, "seconds": seconds, "loss": mean_loss(model, corpus.validation, size)})
        return {**asdict(run), "points": points, "test": mean_loss(model, corpus.test, size)}


def sample(tokens: Tensor, size: Size, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of pieces of text from random places, and the token after each of theirs."""
    within = torch.arange(size.length + 1)
    while True:
        first = torch.randint(len(tokens) - size.length, (size.s, 1), generator=generator)
        pieces = tokens[first + within]
        yield pieces[:, :-1], pieces[:, 1:]


@torch.no_grad()
def mean_loss(model: CausalTransformer, tokens: Tensor, size: Size, most: int = 2**14) -> float:
    """The mean loss per token over the first tokens of a text, in nats."""
    pieces = tokens[: min(most, len(tokens) - 1) // size.length * size.length + 1]
    x, y = pieces[:-1].view(-1, size.length), pieces[1:].view(-1, size.length)
    weight, bias = model.head.weight, model.head.bias
    parts = zip(x.split(32), y.split(32), strict=True)
    losses = [token_losses(model.hidden(some), weight, after, linear_bias=bias) for some, after in parts]
    return float(torch.cat(losses).double().mean())


def next_run(
    records: Sequence[Mapping[str, Any]], qs: Sequence[float], rates: Sequence[float], seeds: int
) -> TokenRun | None:
    """What to train after these records, or None.

    Seed 0 tries every way of training at every rate; the other seeds follow at the rate that was best for the way.
    """
    ways = [(PLAIN, 1.0), *((kept, q) for kept in ("ordered", "random") for q in qs)]
    known = {(r["kept"], r["q"], r["rate"], r["seed"]): r["points"][-1]["loss"] for r in records}
    for wanted in ((*way, rate, 0) for way in ways for rate in rates):
        if wanted not in known:
            return TokenRun(*wanted)
    best = {way: min(rates, key=lambda rate: known[*way, rate, 0]) for way in ways}
    for wanted in ((*way, best[way], seed) for seed in range(1, seeds) for way in ways):
        if wanted not in known:
            return TokenRun(*wanted)
    return None


def _random(q: float, hidden: Tensor, head: nn.Linear, target: Tensor, generator: torch.Generator) -> Tensor:
    """The mean loss of random tokens: the others are not even scored."""
    rows = random_rows(len(target), math.floor(q * len(target)), generator)
    return F.cross_entropy(head(hidden[rows]), target[rows])


def _rate(step: int, steps: int) -> float:
    """The learning rate of a step as a share of the largest."""
    rise = max(1, int(WARMUP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
