"""An `OrderedBatchSampler` in a trainer of Transformers or TRL: its loader, and its file in a checkpoint."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._ordered_rule import run_by
from ordered_sgd.integrations._sampled import Sampled
from ordered_sgd.sampler import OrderedBatchSampler

_WORKERS = ("num_workers", "worker_init_fn", "multiprocessing_context", "prefetch_factor", "persistent_workers")
_KEPT = (*_WORKERS, "collate_fn", "pin_memory", "timeout", "generator", "in_order")  # of the loader of the trainer


class SkippedFirst(Sampler[list[int]]):
    """The batches of a sampler, which goes on in the middle of an epoch, after empty ones for Trainer to skip.

    Parameters
    ----------
    sampler
        Yields the rest of the epoch after a checkpoint was loaded.
    """

    def __init__(self, sampler: OrderedBatchSampler) -> None:
        self.sampler, self.skipped = sampler, 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        skipped, self.skipped = self.skipped, 0
        yield from repeat([], skipped)
        yield from self.sampler


class SampledTraining(Sampled):
    """The batches of an `OrderedBatchSampler` on their way through a trainer of Transformers or TRL.

    The loader does not pass through `Accelerator.prepare`, which would divide batches among ranks that are each rank's
    own already. The trainer itself moves them to the device.

    Parameters
    ----------
    sampler, trainer
        The batch sampler, and the trainer whose loader has it in place of its own.
    loader
        The loader that the trainer has made.
    """

    def __init__(self, sampler: OrderedBatchSampler, trainer: Any, loader: Any) -> None:
        where, args = type(trainer).__name__, trainer.args
        _check_loader(loader, where)
        self._trainer, self._batches = trainer, SkippedFirst(sampler)
        kept = {name: getattr(loader, name) for name in _KEPT}
        made = DataLoader(loader.dataset, batch_sampler=self._batches, **kept)
        super().__init__(sampler, made, trainer.ordered.loss_fn, where, args.gradient_accumulation_steps)
        # since the last log: samples that were loaded, and that were drawn; updates, and the sum of their mean losses
        self._sums: list[Any] = [0, 0, 0, 0.0]

    def leave(self, *, last: bool = False) -> None:
        """The update is over: the sampler remembers its losses, and they are counted for the log."""
        super().leave(last=last)
        drawn, group, mean = self.update, self.loss_fn.group, self.loss_fn.mean_loss
        share = 1.0 if group is None else group.size() * drawn.s / drawn.together  # of this rank in the mean over ranks
        counts = drawn.loaded.shape[0], drawn.s, 1, 0.0 if mean is None else share * mean
        self._sums = [before + count for before, count in zip(self._sums, counts, strict=True)]

    def since_log(self) -> dict[str, float]:
        """The share of the samples drawn that were loaded, and the plain mean, to be averaged over ranks."""
        (loaded, drawn, updates, mean), self._sums = self._sums, [0, 0, 0, 0.0]
        return {"ordered/loaded": loaded / max(1, drawn), "ordered/mean_loss": float(mean) / max(1, updates)}

    def save(self, folder: str) -> None:
        """Write the state of this rank into a checkpoint."""
        path = self._file(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(self.sampler.state_dict(), path)

    def load(self, folder: str) -> None:
        """Take up the state of this rank from a checkpoint; Trainer skips the batches that were trained on."""
        path = self._file(folder)
        if not path.exists():
            rule, remedy = f"hold {path.name}", "Resume a training with the same batch sampler, on equally many ranks."
            raise ArgumentError(message(self._where, "the checkpoint", rule, f"{folder} without it", remedy))
        self.sampler.load_state_dict(torch.load(path, weights_only=True))
        self._batches.skipped = 0 if self.sampler.over else self.sampler.trained
        parts = self._trainer.args.gradient_accumulation_steps
        skipped = self._trainer.state.global_step % -(-len(self._batches) // parts) * parts
        if skipped != self._batches.skipped:
            rule, got = f"be that after {skipped} batches of the epoch", f"that after {self._batches.skipped}"
            remedy = "Resume with the settings that the training was started with."
            raise ArgumentError(message(self._where, "the state of the batch sampler", rule, got, remedy))

    def _file(self, folder: str) -> Path:
        return Path(folder) / f"ordered_sampler_{self._trainer.args.process_index}.pt"


def check_arguments(sampler: OrderedBatchSampler, trainer: Any) -> None:
    """Raise unless the arguments of a trainer leave the batches to the sampler, and each process has its own."""
    args, size = trainer.args, sampler.batch_size
    several = args.world_size > 1
    runner = "parallelism_config" if getattr(trainer.accelerator, "parallelism_config", None) is not None else run_by()
    for fault, name, rule, got, remedy in (
        (
            args.per_device_train_batch_size != size,
            "per_device_train_batch_size",
            f"be {size}, that of the batch sampler",
            args.per_device_train_batch_size,
            "Pass the same to both.",
        ),
        (
            args.dataloader_drop_last and not sampler.drop_last,
            "dataloader_drop_last",
            "be that of the batch sampler",
            True,
            "Pass drop_last=True to the batch sampler.",
        ),
        (
            args.train_sampling_strategy != "random",
            "train_sampling_strategy",
            "be 'random' with a batch sampler",
            repr(args.train_sampling_strategy),
            "Leave it out: the batch sampler draws.",
        ),
        (
            args.ignore_data_skip,
            "ignore_data_skip",
            "be false with a batch sampler",
            True,
            "Leave it out: no batch is loaded in order to be skipped.",
        ),
        (
            args.auto_find_batch_size,
            "auto_find_batch_size",
            "be false with a batch sampler",
            True,
            "Build the batch sampler with a batch size that fits.",
        ),
        (
            runner is not None,
            "training with a batch sampler",
            "be on one process, or on several with DistributedDataParallel",
            runner,
            "Leave the batch sampler out.",
        ),
        (
            several and trainer.ordered.loss_fn.group is None,
            "the group of the loss",
            "be given with a batch sampler on several processes",
            None,
            "Pass group=torch.distributed.group.WORLD to the OrderedLossFunc.",
        ),
    ):
        if fault:
            raise ArgumentError(message(type(trainer).__name__, name, rule, got, remedy))


def _check_loader(loader: Any, where: str) -> None:
    if isinstance(loader.dataset, IterableDataset):
        remedy = "Losses are remembered by position, which a stream of samples does not have."
        got = type(loader.dataset).__name__
        raise ArgumentError(message(where, "train_dataset", "be map-style with a batch sampler", got, remedy))
