"""Ordered SGD in a loop of Hugging Face Accelerate: the loss is exchanged, and one line saves time.

`OrderedLoss` takes the place of the criterion. The group that it is given is None in a process of its own and all
ranks under a launcher, so that the q largest are those of the whole batch. `register_for_checkpointing` puts q, and
what the rule has seen, into the checkpoints of Accelerate. `selective_backward` makes the model skip the backward pass
of samples that are not kept. This network is so small that it saves no time here; a larger one needs no other line.
Data: scikit-learn's handwritten digits, 1,438 to train and 359 to test.

Run: python examples/04_accelerate.py [--checkpoint folder]
On several processes: torchrun --nproc-per-node 2 examples/04_accelerate.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, OrderedLoss, explain_backward, selective_backward
from ordered_sgd.lab import data

S = 64  # samples in a batch, over all processes


def digits(split: data.dataset.Split) -> TensorDataset:
    """Images of 8 x 8 pixels, flat, with values from 0 to 1."""
    part = data.load("digits", split)
    return TensorDataset(torch.from_numpy(part.x).flatten(1) / 255, torch.from_numpy(part.y))


def main() -> None:
    """Train, and print what was measured after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--checkpoint", type=Path, help="a folder: the run goes on from what it finds there")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shared = DataLoaderConfiguration(split_batches=True)  # each process takes its part of a batch of S
    without_gpus = torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # one for each process
    accelerator = Accelerator(cpu=without_gpus, dataloader_config=shared)

    model = selective_backward(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    batches = DataLoader(digits("train"), batch_size=S, shuffle=True)
    loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=AccuracyRule(), group=dist.group.WORLD)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    accelerator.register_for_checkpointing(loss_fn)
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        accelerator.load_state(str(arguments.checkpoint))

    x_test, y_test = (tensor.to(accelerator.device) for tensor in digits("test").tensors)
    while loss_fn.epoch < arguments.epochs:
        for x, y in batches:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        q = loss_fn.q
        loss_fn.end_epoch()
        with torch.no_grad():
            wrong = (model(x_test).argmax(1) != y_test).double().mean().item()
        accelerator.print(f"epoch {loss_fn.epoch}: q {q}, test error {100 * wrong:.2f} %")
        if arguments.checkpoint is not None:
            accelerator.save_state(str(arguments.checkpoint))
    accelerator.print(explain_backward(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
