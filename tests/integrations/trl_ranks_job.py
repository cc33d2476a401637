"""An SFTTrainer over the ranks of torchrun, whose weights the first rank saves; batches are shared among the ranks."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ordered_sgd.integrations.trl import OrderedSFTTrainer
from tests.integrations import trl_parts

BATCH = 8  # of all ranks together


def main(folder: Path, unit: str, ranks: int) -> None:
    torch.set_num_threads(1)
    settings = {"per_device_train_batch_size": BATCH // ranks, "gradient_accumulation_steps": 1}
    settings |= {"ddp_backend": "gloo"} if ranks > 1 else {}
    trainer = trl_parts.fit(OrderedSFTTrainer, "Llama", folder, settings=settings, q=0.25, unit=unit)
    assert (trainer.ordered.loss_fn.group is not None) == (ranks > 1)
    if ranks == 1 or dist.get_rank() == 0:
        torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), folder / f"weights-{ranks}.pt")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
