"""Run by torchrun on two ranks: each trainer on its parts of the batches, and how far it is from one process."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ordered_sgd import AccuracyRule, OrderedLoss, explain_backward, selective_backward
from ordered_sgd.integrations.huggingface import OrderedTrainer
from ordered_sgd.integrations.lightning import OrderedCallback
from tests.integrations import huggingface_parts, lightning_modules, lightning_parts
from tests.integrations.trainers import S, Task, batches, network, outcome, plain_loop, sgd

RULE = AccuracyRule(thresholds=(0.4, 0.6), divisors=(2, 4))


def difference(model: nn.Module, expected: torch.Tensor) -> float:
    found = torch.cat([p.detach().flatten() for p in model.parameters()])
    return float((found - expected).abs().max())


def by_lightning(folder: Path, by_self: bool = False, selective: bool = False) -> dict[str, Any]:
    expected = plain_loop(Task({"q": RULE}, folder, epochs=3))
    model = lightning_modules.BySelf() if by_self else lightning_parts.Net(nn.CrossEntropyLoss())
    callback = OrderedCallback(q=RULE, selective=selective)
    data = batches().dataset
    rank = int(os.environ["RANK"])
    # rank r gets the samples r, r + 2, ...: batches of S / 2 on two ranks are those of S in one process
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)
    on_two: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    lightning_parts.fit(model, callback, train=DataLoader(data, S // 2, sampler=sampler), epochs=3, **on_two)
    ran = "only kept samples" if selective else "whole batches: selective=False"
    same = S // 2 > callback.loss_fn.q == expected.q and callback.backward_ran == ran
    return {"error": difference(model, expected.weights), "same": same}


def by_lightning_itself(folder: Path) -> dict[str, Any]:
    """training_step calls the LightningModule, which DistributedDataParallel calls for the whole of training_step."""
    return by_lightning(folder, by_self=True, selective=True)


def by_huggingface(folder: Path, task: str = "token") -> dict[str, Any]:
    model, alone = huggingface_parts.model_for(task), huggingface_parts.model_for(task)
    rows, first = huggingface_parts.rows_for(task, n=32), int(task == "causal")  # which labels are predicted
    loss_fn, optimizer = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=0.5, unit="token"), sgd(alone)
    for _ in range(3):
        for start in range(0, 32, 16):  # two micro-batches of eight, four on each rank
            optimizer.zero_grad()
            labels = torch.stack([row["labels"] for row in rows[start : start + 16]])[:, first:]
            for i in (0, 8):
                part = rows[start + i : start + i + 8]
                inputs = {name: torch.stack([row[name] for row in part]) for name in ("input_ids", "attention_mask")}
                target = labels[i : i + 8].flatten()
                logits = alone(**inputs).logits
                loss = loss_fn(logits[:, : logits.shape[1] - first].flatten(0, 1), target)
                (loss * (target != -100).sum() / (labels != -100).sum()).backward()
            optimizer.step()
        loss_fn.end_epoch()
    expected = outcome(alone, loss_fn)
    options: dict[str, Any] = {"batch": 4, "parts": 2, "epochs": 3, "settings": {"ddp_backend": "gloo"}}
    trainer = huggingface_parts.fit(model, rows, folder, kind=OrderedTrainer, q=0.5, **options)
    same = trainer.ordered.loss_fn.group is not None and trainer.loss_from.startswith("head" if first else "logits")
    return {"error": difference(model, expected.weights), "same": same}


def by_head(folder: Path) -> dict[str, Any]:
    """A language model, whose output layer runs outside the forward pass that DistributedDataParallel sees."""
    return by_huggingface(folder, "causal")


def by_samples(folder: Path, parts: int = 1) -> dict[str, Any]:
    """Whole samples, whose backward pass is selective, or that are ordered over several micro-batches."""
    model, alone = huggingface_parts.model_for("sequence"), huggingface_parts.model_for("sequence")
    rows, plain, ordered = huggingface_parts.rows_for("sequence", n=32), [], []
    loss_fn, optimizer = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=0.25), sgd(alone)
    for start in [*range(0, 32, 8 * parts)] * 2:
        update = rows[start : start + 8 * parts]
        inputs = {name: torch.stack([row[name] for row in update]) for name in update[0]}
        labels = inputs.pop("labels")
        logits = alone(**inputs).logits
        plain.append(nn.functional.cross_entropy(logits, labels).item())
        optimizer.zero_grad()
        loss = loss_fn(logits, labels)
        loss.backward()
        optimizer.step()
        ordered.append(loss.item())
    settings = {"ddp_backend": "gloo", "logging_strategy": "epoch"}
    options: dict[str, Any] = {"batch": 4, "parts": parts, "settings": settings, "selective": parts == 1}
    trainer = huggingface_parts.fit(model, rows, folder, kind=OrderedTrainer, q=0.25, **options)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = [(entry["loss"], entry["ordered/mean_loss"], entry["ordered/q"]) for entry in logged]
    half = len(plain) // 2
    expected = [
        (sum(ordered[i : i + half]) / half, sum(plain[i : i + half]) / half, 2 * parts)
        for i in range(0, 2 * half, half)
    ]
    same = torch.allclose(torch.tensor(found), torch.tensor(expected), rtol=1e-4)
    computed = logged[0]["ordered/computed"] < 1 and trainer.backward_ran == "only kept samples"
    over = trainer.ordered_over == ("whole updates" if parts > 1 else None)
    return {"error": difference(model, outcome(alone, loss_fn).weights), "same": same and computed and over}


def by_updates(folder: Path) -> dict[str, Any]:
    return by_samples(folder, parts=4)


def by_accelerate(folder: Path, selective: bool = False) -> dict[str, Any]:
    expected = plain_loop(Task({"q": RULE}, folder, epochs=3))
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    model, loss_fn = network(), OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=RULE, group=dist.group.WORLD)
    model = selective_backward(model) if selective else model
    wrapped, optimizer, loader = accelerator.prepare(model, sgd(model), batches())
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(loss_fn(wrapped(x), y))
            optimizer.step()
        loss_fn.end_epoch()
    same = S // 2 > loss_fn.q == expected.q and (explain_backward(wrapped).skipping > 0) == selective
    return {"error": difference(model, expected.weights), "same": same}


def by_accelerate_selective(folder: Path) -> dict[str, Any]:
    return by_accelerate(folder, selective=True)


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    torch.set_num_threads(1)
    trainers = {"lightning": by_lightning, "huggingface": by_huggingface, "head": by_head, "accelerate": by_accelerate}
    trainers |= {"samples": by_samples, "updates": by_updates}
    trainers |= {"lightning itself": by_lightning_itself, "accelerate selective": by_accelerate_selective}
    results = {name: train(folder / name) for name, train in trainers.items()}
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, results)
    if dist.get_rank() == 0:
        (folder / "results.json").write_text(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
