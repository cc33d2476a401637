"""A training with the engine that remembers, to be killed: ``python -m tests.engines.remembering CHECKPOINT``.

It prints the number of every step that it has made, saves a checkpoint every few steps, and at the end prints a digest
of the weights, of what is remembered and of all that was kept.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from ordered_sgd.engines import Memory
from tests.step_parts import CE, sgd

N, S, EPOCHS = 205, 20, 9
SAVED = 5  # steps between checkpoints


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def batches() -> list[Tensor]:
    """The samples of every step of the training."""
    generator = torch.Generator().manual_seed(0)
    return [index for _ in range(EPOCHS) for index in torch.randperm(N, generator=generator).split(S)]


def train(checkpoint: Path) -> str:
    """The digest of a whole training, or of the rest of one that a checkpoint was left of."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(N, 6, generator=generator)
    y = (x @ torch.randn(6, 4, generator=generator)).argmax(1)
    model = network()
    optimizer = sgd(model)
    step = OrderedStep(model, CE, optimizer, q=5, engine=Memory(recall=0.7, batchnorm="scored"))
    kept: list[list[int]] = []
    scored = 0
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": step}
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        kept = state["kept"]
    for number, index in enumerate(batches()):
        if number < len(kept):
            continue
        record = step(x[index], y[index], index=index)
        kept.append(record.rows.tolist())
        scored += record.scored is not None
        if len(kept) % SAVED == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**state, "random": torch.get_rng_state(), "kept": kept}, checkpoint.with_suffix(".new"))
            os.replace(checkpoint.with_suffix(".new"), checkpoint)
        print(len(kept), flush=True)
    losses = step.state_dict()["engine"]["losses"]
    assert scored  # else this tests nothing
    assert step.recall is not None
    tensors = [*model.state_dict().values(), losses, torch.tensor(step.recall, dtype=torch.float64)]
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors))
    digest.update(repr(kept).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(train(Path(sys.argv[1])))
