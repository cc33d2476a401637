"""Run by torchrun on every rank: a plain DistributedDataParallel loop over an `OrderedBatchSampler`; JSON on rank 0."""

import itertools
import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import OrderedBatchSampler, ordered_mean, with_index

N, S, EPOCHS, STOP = 257, 32, 4, 12  # rank 0 has 129 samples, one more than four full batches; rank 1 has 128


class Training:
    """The loop of the documentation, which can be stopped after any step."""

    def __init__(self, sampler: OrderedBatchSampler | None = None) -> None:
        torch.manual_seed(0)
        x = torch.randn(N, 6)
        self.data = with_index(TensorDataset(x, (x[:, 0] > 0).long()))
        self.model = DistributedDataParallel(nn.Linear(6, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.sampler = OrderedBatchSampler(self.data, S, q=0.25) if sampler is None else sampler

    def steps(self) -> Any:
        for _ in range(EPOCHS):
            for x, y, index in DataLoader(self.data, batch_sampler=self.sampler):
                losses = nn.functional.cross_entropy(self.model(x), y, reduction="none")
                self.optimizer.zero_grad()
                ordered_mean(losses, self.sampler.q).backward()
                self.optimizer.step()
                self.sampler.update(index, losses)
                yield index.tolist()

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def main() -> None:
    early = OrderedBatchSampler(N, S, q=0.25)  # as by a trainer that starts the ranks later
    assert len(early) == -(-N // S)
    dist.init_process_group("gloo")
    whole, first, second = Training(early), Training(), Training()
    batches = list(whole.steps())
    before = list(itertools.islice(first.steps(), STOP))
    second.model.load_state_dict(first.model.state_dict())
    second.sampler.load_state_dict(first.sampler.state_dict())
    after = list(itertools.islice(second.steps(), len(batches) - STOP))
    found: dict[str, Any] = {
        "batches": batches,
        "resumed": before + after == batches and torch.equal(second.weights(), whole.weights()),
        "weights": whole.weights().tolist(),
        "remembered": whole.sampler.state_dict()["losses"].isfinite().sum().item(),
    }
    everywhere: list[Any] = [None, None]
    dist.all_gather_object(everywhere, found)
    if dist.get_rank() == 0:
        print(json.dumps(everywhere))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
