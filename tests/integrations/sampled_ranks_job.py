"""Run by torchrun on two ranks: each trainer with a batch sampler; what was trained on, and the weights."""

import functools
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
from tests.integrations.trainers import network

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


def by_huggingface(folder: Path, sampler: Any, q: Any, *, masked: bool = False, **options: Any) -> Any:
    """The same, with as many micro-batches to an update as `parts` says."""
    from ordered_sgd.integrations.huggingface import OrderedLossFunc, OrderedTrainer
    from tests.integrations.huggingface_parts import Logits, fit

    class Own(OrderedTrainer):
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            if isinstance(sampler, OrderedBatchSampler):
                return loader
            return DataLoader(loader.dataset, batch_sampler=sampler, collate_fn=loader.collate_fn)

        def get_batch_samples(self, *args: Any) -> Any:
            found, items = super().get_batch_samples(*args)
            seen.extend(batch.pop("index").tolist() for batch in found)
            return found, items

    seen: list[list[int]] = []
    loss = OrderedLossFunc("sequence", q=q, group=dist.group.WORLD)
    train = [dict(zip(("x", "labels", "index"), row, strict=True)) for row in data(masked)]
    settings = {"train_sampling_strategy": "random", "save_strategy": "steps", "save_steps": 1}
    settings |= {"logging_strategy": "steps", "logging_steps": BATCHES, "remove_unused_columns": False}
    if isinstance(sampler, OrderedBatchSampler):
        options["batch_sampler"] = sampler
    resume = str(options.pop("ckpt_path", "")).replace("step=", "checkpoint-").removesuffix(".ckpt")
    model, given = Logits(network()), {"kind": Own, "batch": S, "epochs": EPOCHS, "resume": resume}
    trainer = fit(model, train, folder, settings=settings, compute_loss_func=loss, **given, **options)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    numbers = {name: value for name, value in logged.items() if name.startswith("ordered/")}
    return flat(trainer.model), loss.loss_fn, seen, {**numbers, "ordered/loss": logged["loss"]}


def all_candidates(train: Any, folder: Path, early: list[OrderedBatchSampler]) -> dict[str, bool]:
    """Whether loading everything is the plain ordered trainer bit for bit."""
    found = {}
    for name, q in RULES.items():
        for masked in (False, True):
            where = folder / f"{name} {masked}"
            weights, loss_fn, _, logged = train(where / "sampler", early.pop(0), q, masked=masked)
            expected, plain, _, others = train(where / "plain", Same(), q, masked=masked)
            same = {key: abs(logged[key] - others[key]) < 1e-5 for key in ("ordered/loss", "ordered/mean_loss")}
            found[where.name] = torch.equal(weights, expected) and loss_fn.q == plain.q
            found[f"{where.name} log"] = masked or all(same.values())
    return found


def some_candidates(train: Any, folder: Path, parts: int) -> dict[str, Any]:
    """Each rank trains on its own samples, has the weights of the other, and resumes with the same bits."""
    weights, _, seen, logged = train(folder / "whole", OrderedBatchSampler(N, S, q=0.25), 0.25)
    other = weights.clone()
    dist.broadcast(other, 0)
    found: dict[str, Any] = {"equal": torch.equal(weights, other), "logged": logged}
    own = {index % 2 for batch in seen for index in batch}
    found["own"] = own == {dist.get_rank()} and len(seen) == EPOCHS * BATCHES
    found["fewer"] = min(map(len, seen)) < S and max(map(len, seen)) == S
    steps = -(-BATCHES // parts)
    for step in (4, steps, steps + 3):
        start = folder / "whole" / f"step={step}.ckpt"
        first = step // steps * BATCHES + step % steps * parts
        again, _, rest, _ = train(folder / "whole", OrderedBatchSampler(N, S, q=0.25), 0.25, ckpt_path=start)
        found[f"resumed {step}"] = torch.equal(again, weights) and rest == seen[first:]
    return found


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*exists and is not empty.*")
    warnings.filterwarnings("ignore", ".*q must be a quarter of the batch or more.*")
    torch.set_num_threads(1)
    # before there is a process group, as in a script that Lightning starts
    trainers: dict[str, tuple[Any, int]] = {"lightning": (by_lightning, 1), "huggingface": (by_huggingface, 1)}
    trainers["updates"] = functools.partial(by_huggingface, parts=2), 2
    early = [OrderedBatchSampler(N, S, q=q, candidates=1.0) for _ in trainers for q in RULES.values() for _ in range(2)]
    results: dict[str, Any] = {}
    for name, (train, parts) in trainers.items():
        found = all_candidates(train, folder / name, early)
        results[name] = {**found, **some_candidates(train, folder / name, parts)}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, results)
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
