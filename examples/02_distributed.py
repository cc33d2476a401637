"""Ordered SGD on several ranks: the q largest losses of the whole batch, wherever they are.

Every rank takes its part of each batch of scikit-learn's handwritten digits, the last and smaller one included, of
which a rank may get nothing. The step keeps the q largest over all ranks, so that q, the losses and the test error
that are printed are the same for any number of ranks, up to rounding. The rule sees the accuracy of all ranks. After
each epoch the state is saved; a run that was stopped goes on from there, also with another number of ranks.

Run: torchrun --nproc-per-node 2 examples/02_distributed.py [--shard] [--checkpoint run.pt]
On GPUs the same command runs one rank on each, over NCCL; without, it runs on the CPU over gloo.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from ordered_sgd import AccuracyRule, OrderedStep, batches

S = 64  # samples in a batch, over all ranks
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)  # states that do not depend on the number of ranks


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1,797 images of 8 x 8 pixels: half to train and half to test."""
    x, y = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(y))
    images, labels = torch.from_numpy(x[shuffled]).float() / 16, torch.from_numpy(y[shuffled])
    half = len(y) // 2
    return images[:half], labels[:half], images[half:], labels[half:]


def build(shard: bool, device: torch.device) -> nn.Module:
    """A small network, spread over the ranks by parameters or copied to each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    if not shard:
        return nn.parallel.DistributedDataParallel(model)
    fully_shard(model)
    return model


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: OrderedStep) -> None:
    """The whole state in one file, written by rank 0; all ranks take part in gathering it."""
    weights, momenta = get_state_dict(model, optimizer, options=WHOLE)
    if dist.get_rank() == 0:
        beside = path.with_suffix(".new")
        torch.save({"model": weights, "optimizer": momenta, "step": step.state_dict()}, beside)
        os.replace(beside, path)  # whoever stops us now leaves the old file or the new one


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: OrderedStep) -> None:
    """Take up the state of a file, on as many ranks as there are now."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=WHOLE
    )
    step.load_state_dict(state["step"])


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    """Epoch after epoch, from the checkpoint if there is one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y, x_test, y_test = (t.to(device) for t in load())
    model = build(arguments.shard, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = OrderedStep(
        model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=AccuracyRule(), group=dist.group.WORLD
    )
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        resume(arguments.checkpoint, model, optimizer, step)
    while step.epoch < arguments.epochs:
        rng = np.random.default_rng(step.epoch)  # the same order on every rank, and after a restart
        for batch in batches.epoch_batches(len(y), S, rng):
            mine = torch.from_numpy(batch[rank::ranks]).to(device)
            record = step(x[mine], y[mine])
        q = step.q
        step.end_epoch()
        with torch.no_grad():
            wrong = (model(x_test).argmax(1) != y_test).double().mean().item()  # every rank: FSDP gathers its weights
        if rank == 0:
            losses = f"last batch: ordered {record.ordered_loss:.4f}, mean {record.mean_loss:.4f}"
            print(f"epoch {step.epoch}: q {q}, {losses}; test error {100 * wrong:.2f} %", flush=True)
        if arguments.checkpoint is not None:
            save(arguments.checkpoint, model, optimizer, step)


def main() -> None:
    """Join the other ranks, train, leave."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--shard", action="store_true", help="fully_shard instead of DistributedDataParallel")
    parser.add_argument("--checkpoint", type=Path, help="a file that all ranks can read")
    parser.add_argument("--timeout", type=float, default=60, help="seconds after which a silent rank is given up")
    arguments = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 2 examples/02_distributed.py")
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # one for each process of this machine
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=arguments.timeout))
    try:
        train(arguments, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
