"""Run by torchrun on two ranks: each trainer with a batch sampler; what was trained on, and the weights."""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler, with_index

N, S, EPOCHS, BATCHES = 257, 16, 3, 9  # rank 0 has 129 samples, one more than eight full batches; rank 1 has 128
RULES = {"share": 0.25, "count": 9, "accuracy": AccuracyRule((0.4, 0.6), (2, 4)), "mass": LossMassRule(0.6)}


def data(masked: bool = False) -> TensorDataset:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(N, 6, generator=g)
    y = (x[:, :4] + torch.randn(N, 4, generator=g)).argmax(1)
    return TensorDataset(x, y.masked_fill(torch.arange(N) % 7 == 0, -100) if masked else y, torch.arange(N))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Same:
    """The batches of a sampler that yields whole ones, for a trainer that knows nothing of it."""

    def __init__(self) -> None:
        self.sampler = OrderedBatchSampler(N, S, q=1.0)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Any:
        for index in self.sampler:
            self.sampler.update(index, torch.zeros(len(index)))
            yield index


def by_lightning(folder: Path, sampler: Any, q: Any, *, masked: bool = False, **options: Any) -> Any:
    """The model, its callback, and what every batch held."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from ordered_sgd.integrations.lightning import OrderedCallback
    from tests.integrations.lightning_parts import Net, fit

    class Watched(Net):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            seen.append(batch[2].tolist())
            return super().training_step(batch, index)

    seen: list[list[int]] = []
    model, callback = Watched(nn.CrossEntropyLoss()), OrderedCallback(q=q, selective=False)
    every = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
    loader: Any = DataLoader(with_index(data(masked)), batch_sampler=sampler)
    if not isinstance(sampler, OrderedBatchSampler):
        loader = DataLoader(data(masked), batch_sampler=sampler)
        options["use_distributed_sampler"] = False
    on_two: dict[str, Any] = {"strategy": "ddp", "devices": 2, "default_root_dir": folder}
    trainer = fit(model, callback, every, train=loader, epochs=EPOCHS, **on_two, **options)
    return flat(model), callback.loss_fn, seen, {n: float(v) for n, v in trainer.callback_metrics.items()}


def all_candidates(train: Any, folder: Path, early: list[OrderedBatchSampler]) -> dict[str, bool]:
    """Whether loading everything is the plain ordered trainer bit for bit."""
    found = {}
    for name, q in RULES.items():
        for masked in (False, True):
            where = folder / f"{name} {masked}"
            weights, loss_fn, _, logged = train(where / "sampler", early.pop(0), q, masked=masked)
            expected, plain, _, others = train(where / "plain", Same(), q, masked=masked)
            same = {key: abs(logged[key] - others[key]) < 1e-5 for key in ("ordered/loss", "ordered/mean_loss")}
            found[where.name] = (
                torch.equal(weights, expected) and loss_fn.q == plain.q and (masked or all(same.values()))
            )
    return found


def some_candidates(train: Any, folder: Path) -> dict[str, Any]:
    """Each rank trains on its own samples, has the weights of the other, and resumes with the same bits."""
    weights, _, seen, logged = train(folder / "whole", OrderedBatchSampler(N, S, q=0.25), 0.25)
    other = weights.clone()
    dist.broadcast(other, 0)
    found: dict[str, Any] = {"equal": torch.equal(weights, other), "logged": logged}
    own = {index % 2 for batch in seen for index in batch}
    found["own"] = own == {dist.get_rank()} and len(seen) == EPOCHS * BATCHES
    found["fewer"] = min(map(len, seen)) < S and max(map(len, seen)) == S
    for step in (4, BATCHES, BATCHES + 5):
        start = folder / "whole" / f"step={step}.ckpt"
        again, _, rest, _ = train(folder / "whole", OrderedBatchSampler(N, S, q=0.25), 0.25, ckpt_path=start)
        found[f"resumed {step}"] = torch.equal(again, weights) and rest == seen[step:]
    return found


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*exists and is not empty.*")
    torch.set_num_threads(1)
    # before there is a process group, as in a script that Lightning starts
    early = [OrderedBatchSampler(N, S, q=q, candidates=1.0) for q in RULES.values() for _ in range(2)]
    trainers = {"lightning": by_lightning}
    results: dict[str, Any] = {}
    for name, train in trainers.items():
        results[name] = {**all_candidates(train, folder / name, early), **some_candidates(train, folder / name)}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, results)
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
