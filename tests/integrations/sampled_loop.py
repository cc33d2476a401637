"""The loop of docs/samplers.md, and batches in the order in which a sampler draws: what trainers are compared with."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import OrderedBatchSampler, OrderedLoss, ordered_mean, with_index
from tests.integrations.trainers import network, sgd

N, S, CE = 250, 16, nn.CrossEntropyLoss(reduction="none")  # 16 batches, the last of 10


def data() -> TensorDataset:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(N, 6, generator=g)
    return TensorDataset(x, (x[:, :4] + torch.randn(N, 4, generator=g)).argmax(1))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(sampler: OrderedBatchSampler, epochs: int) -> tuple[Tensor, list[float]]:
    """The weights of the documented loop, and the recall after each epoch."""
    model, recalls = network(), []
    optimizer = sgd(model)
    for _ in range(epochs):
        for x, y, index in DataLoader(with_index(data()), batch_sampler=sampler):
            losses = CE(model(x), y)
            optimizer.zero_grad()
            ordered_mean(losses, sampler.drawn(index).kept.q).backward()
            optimizer.step()
            sampler.update(index, losses)
        recalls.append(sampler.recall.mean if sampler.recall else float("nan"))
    return flat(model), recalls


def by_update(sampler: OrderedBatchSampler, epochs: int, parts: int, q: Any) -> tuple[Tensor, list[float]]:
    """The same where the samples of several batches are ordered together."""
    model, recalls, policy = network(), [], OrderedLoss(CE, q=q)._policy
    sampler.follow(policy, accumulated=parts)
    optimizer = sgd(model)
    for _ in range(epochs):
        loader = iter(DataLoader(with_index(data()), batch_sampler=sampler))
        while update := list(itertools.islice(loader, parts)):
            outputs = [model(x) for x, _, _ in update]
            losses = [CE(found, y) for found, (_, y, _) in zip(outputs, update, strict=True)]
            batches = [sampler.drawn(index) for _, _, index in update]
            s = sum(drawn.s for drawn in batches)
            right = [found.argmax(1) == y for found, (_, y, _) in zip(outputs, update, strict=True)]
            correct = sum(drawn.correct(found) for drawn, found in zip(batches, right, strict=True))
            policy.see(s)
            guessed = [drawn.losses(found.detach()) for drawn, found in zip(batches, losses, strict=True)]
            policy.observe(torch.cat(guessed), correct, torch.tensor(s), None)
            optimizer.zero_grad()
            ordered_mean(torch.cat(losses), policy.q_for(s)).backward()
            optimizer.step()
            for (_, _, index), found in zip(update, losses, strict=True):
                sampler.update(index, found)
        policy.end_epoch()
        recalls.append(sampler.recall.mean if sampler.recall else float("nan"))
    return flat(model), recalls


class Given:
    """Whole batches in the same order, for a trainer that knows nothing of the sampler."""

    def __init__(self) -> None:
        self.sampler = OrderedBatchSampler(N, S, q=1.0)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        for index in self.sampler:
            self.sampler.update(index, torch.zeros(len(index)))
            yield index
