"""An `OrderedBatchSampler` in a trainer: which batch has come, and the losses that the sampler remembers."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd.draws import DrawnBatch
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.indexed import IndexedDataset
from ordered_sgd.integrations._drawn import check_orders_samples
from ordered_sgd.integrations._watched import WatchedLoss
from ordered_sgd.sampler import OrderedBatchSampler


def sampler_of(loader: Any) -> OrderedBatchSampler | None:
    """The batch sampler of a loader, if it is one of ours."""
    found = getattr(loader, "batch_sampler", None)
    return found if isinstance(found, OrderedBatchSampler) else None


class Sampled:
    """The batches of an `OrderedBatchSampler` on their way through a trainer.

    A loader gives batches in the order in which they were drawn, so no batch needs to carry positions; those that
    `ordered_sgd.with_index` has added are taken out.

    Parameters
    ----------
    sampler, loader
        The batch sampler, and the loader that has it.
    loss_fn
        Keeps as many samples as are to be kept of the whole batch, and remembers their losses until `leave`.
    where
        Whom an error message speaks of.
    accumulated
        How many batches of an update are ordered together.
    """

    def __init__(
        self, sampler: OrderedBatchSampler, loader: Any, loss_fn: WatchedLoss, where: str, accumulated: int = 1
    ) -> None:
        check_orders_samples(loss_fn, where)
        if not getattr(loader, "in_order", True):
            remedy = "Leave it out: batches are told apart by their order."
            raise ArgumentError(message(where, "in_order", "be true with a batch sampler", False, remedy))
        ranks = 1 if loss_fn.group is None else loss_fn.group.size()
        if loss_fn.group is not None and sampler.ranks != ranks:
            remedy = "Leave rank= and ranks= out: torch.distributed tells them."
            raise ArgumentError(message(where, "ranks of the batch sampler", f"be {ranks}", sampler.ranks, remedy))
        if isinstance(loader.dataset, Sized) and len(loader.dataset) != sampler.samples:
            rule, remedy = f"be {len(loader.dataset)}, those of the training set", "Build it for that data set."
            raise ArgumentError(message(where, "samples of the batch sampler", rule, sampler.samples, remedy))
        sampler.follow(loss_fn.policy, ranks, accumulated)
        self.sampler, self.loader, self.loss_fn, self._where = sampler, loader, loss_fn, where
        self._dataset = loader.dataset if isinstance(loader.dataset, IndexedDataset) else None
        self._update: list[DrawnBatch] = []  # the batches that are trained on together

    def arrive(self, batch: Any) -> Any:
        """The batch that the loader gave, as the data set gives it without positions; the loss is told of it."""
        (batch,) = self.take([batch])
        self.expect()
        return batch

    def take(self, batches: Sequence[Any]) -> list[Any]:
        """The batches of an update that the loader gave, as the data set gives them without positions."""
        last, self._update = self._update[-1] if self._update else None, []
        for _ in batches:
            last = self.sampler.next_drawn(last)
            self._update.append(last)
        return [self._alone(batch, drawn) for batch, drawn in zip(batches, self._update, strict=True)]

    def _alone(self, batch: Any, drawn: DrawnBatch) -> Any:
        """A batch without the positions that `with_index` has added."""
        rest, index = (batch, None) if self._dataset is None else self._dataset.taken_out(batch)
        return rest if isinstance(index, Tensor) and index.is_cpu and torch.equal(index, drawn.loaded) else batch

    @property
    def update(self) -> DrawnBatch:
        """The batches that are trained on together, as one."""
        return self.sampler.joined(self._update)

    def expect(self, place: int | None = None) -> None:
        """Tell the loss that the whole update comes next, or the batch at this place of it."""
        self.loss_fn.expect(self.update if place is None else self._update[place], whole=self.sampler.whole)

    def leave(self, *, last: bool = False) -> None:
        """The update is over: the sampler remembers its losses, the mean of them if there were several calls.

        `last` ends the epoch, of which more batches may have been drawn.
        """
        losses = self.loss_fn.seen()
        if losses:
            mean = losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)
            sizes = [drawn.loaded.shape[0] for drawn in self._update]
            for drawn, part in zip(self._update, mean.split(sizes), strict=True):
                self.sampler.update(drawn.loaded, part)
        if last:
            self.sampler.end_epoch()

    def numbers(self) -> dict[str, Any]:
        """What a trainer logs of the update that is over."""
        (correct, counted), drawn = self.loss_fn.answers, self.update
        found: dict[str, Any] = {"loaded": drawn.loaded.shape[0] / drawn.s}
        if correct is not None and counted is not None:
            found["accuracy"] = correct / counted
        return found

    def recall(self) -> float | None:
        """The recall of all ranks together; None where none has measured it."""
        recall, group = self.sampler.recall, self.loss_fn.group
        if group is None:
            return None if recall is None else recall.mean
        mine = None if recall is None else (recall.mean, recall.audits)
        everywhere: list[Any] = [None] * group.size()
        dist.all_gather_object(everywhere, mine, group=group)
        found = [pair for pair in everywhere if pair is not None]
        return sum(mean * audits for mean, audits in found) / sum(audits for _, audits in found) if found else None

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, on the first one, which writes the checkpoint; every rank calls this."""
        self.leave()
        state, group = self.sampler.state_dict(), self.loss_fn.group
        if group is None:
            return {"ranks": [state]}
        everywhere: list[Any] = [None] * group.size()
        dist.gather_object(state, everywhere if group.rank() == 0 else None, group=group, group_dst=0)
        return {"ranks": everywhere}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up this rank's state."""
        group, ranks = self.loss_fn.group, len(state["ranks"])
        rank, expected = (0, 1) if group is None else (group.rank(), group.size())
        if ranks != expected:
            remedy = "Every rank remembers its own samples: resume on equally many ranks."
            got = f"that of {ranks} ranks on {expected}"
            raise ArgumentError(message("OrderedBatchSampler", "the state", "be that of as many ranks", got, remedy))
        self.sampler.load_state_dict(state["ranks"][rank])
        self._update = []
