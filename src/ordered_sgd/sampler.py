"""`OrderedBatchSampler`: load only the samples of a batch that were hard when they were last seen.

Nothing is computed in order to choose: of every s samples drawn, those with the largest remembered losses are loaded,
with a few others at random, and the losses of these are remembered again. What is missed is measured: some batches, at
moments that do not depend on the data, are loaded whole.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from ordered_sgd.draws import Cut, DrawnBatch, Order
from ordered_sgd.engines.phases import Recall
from ordered_sgd.engines.remembered import PROBES
from ordered_sgd.errors import ArgumentError, check_state, message
from ordered_sgd.loading import Amounts, Loading
from ordered_sgd.nonfinite import OnItsWay, sent
from ordered_sgd.policy import Policy, Selection
from ordered_sgd.rules import Rule
from ordered_sgd.sampler_checks import check_cut, check_options, check_rank, check_samples, check_update, no_such_batch

_WHERE = "OrderedBatchSampler"
_STATE = ("cut", "epoch", "number", "begun", "pending", "late", "losses", "candidates", "policy")


class OrderedBatchSampler(Sampler[list[int]]):
    """Batches of the samples whose loss was large when they were last seen, for the ``batch_sampler`` of a DataLoader.

    Of every `batch_size` samples drawn it yields the q with the largest remembered losses, a sample that was never seen
    counting as infinitely hard, and a few others at random. Call ``update(index, losses)`` after each step.

    Parameters
    ----------
    dataset : Dataset or int
        The map-style data set, or how many samples it has.
    batch_size : int
        s, the samples drawn for a batch, of which some are yielded.
    q : float or Rule
        How many of them to keep: a count, a share in (0, 1], or a rule that moves q at each `end_epoch`.
    selection : {"top", "random"}, default="top"
        ``"random"`` yields q samples at random instead, the control of every comparison.
    recall : float or None, default=None
        Yield as many candidates as are needed to hold this share of the q largest losses of the batch, instead of q;
        train on ``ordered_mean(losses, sampler.q)``.
    candidates : float or None, default=None
        Yield this many instead, a count or a share of the batch, but never fewer than q.
    others : float, default=4
        How many others are yielded at random, a count or a share of the batch, so that what has become hard is noticed.
    epochs : int or None, default=None
        How many epochs the training has; needed for `whole_last` alone.
    whole_last : float, default=0.0
        Share of the epochs, at the end, in which whole batches are yielded; InfoBatch uses 1/8.
    drop_last : bool, default=False
        Leave out the smaller batch at the end of an epoch.
    seed : int, default=0
        Of the order and of all random choices; the same on every rank.
    rank : int or None, default=None
        Which process this is; when None, what torch.distributed says at the beginning of an epoch. Each rank draws from
        its own samples and remembers these.
    ranks : int or None, default=None
        How many processes there are; when None, as torch.distributed says.

    Examples
    --------
    >>> sampler = OrderedBatchSampler(6400, 64, q=0.25)
    >>> losses = torch.rand(6400)
    >>> for index in sampler:  # a DataLoader loads these samples
    ...     sampler.update(index, losses[index])
    >>> len(sampler), round(sampler.loaded, 2), sampler.recall.audits
    (100, 0.38, 10)
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        *,
        q: float | Rule,
        selection: Selection = "top",
        recall: float | None = None,
        candidates: float | None = None,
        others: float = PROBES,
        epochs: int | None = None,
        whole_last: float = 0.0,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        ranks: int | None = None,
    ) -> None:
        check_options(batch_size, recall, candidates, others, epochs, whole_last, seed)
        check_rank(rank, ranks)
        self.batch_size, self.drop_last = batch_size, drop_last
        self._dataset, self._seed, self._rank, self._ranks = dataset, seed, rank, ranks
        whole_from = None if epochs is None or not whole_last else epochs - round(epochs * whole_last)
        amounts = Amounts(recall, candidates, others, whole_from)
        self._loading = Loading(Policy(q, selection=selection, where=_WHERE), amounts, _WHERE)
        self._cut = self._cut_now()
        self._epoch, self._number, self._begun = 0, 0, False  # begun: a batch of the epoch was trained on
        self._loaded = self._continues = False  # whether a checkpoint was loaded, and its epoch goes on
        self._counts = (0, 0)  # samples that were yielded in this epoch, and that were drawn
        self._pending: deque[DrawnBatch] = deque()  # drawn, and not yet updated
        self._iteration = 0
        self._late: list[OnItsWay | None] = []  # index, losses and answers on their way from an accelerator
        self._order = Order(self._cut, 0)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._cut_now().batches

    def __iter__(self) -> Iterator[list[int]]:
        """The next epoch's batches; the rest of the present one after `load_state_dict`."""
        # A DataLoader with workers asks for two iterators and uses the second: nothing begins before the first batch.
        self._begin()
        self._iteration += 1
        iteration = self._iteration
        yield from [drawn.loaded.tolist() for drawn in self._waiting()]  # drawn before a checkpoint
        while self._iteration == iteration and self._number < self._cut.batches:
            drawn = self._loading.draw(self._order, self._number)
            self._number += 1
            self._pending.append(drawn)
            self._counts = self._counts[0] + drawn.loaded.shape[0], self._counts[1] + drawn.s
            yield drawn.loaded.tolist()

    def update(self, index: Any, losses: Tensor, right: Tensor | None = None) -> None:
        """Remember the losses of a batch that was yielded.

        Parameters
        ----------
        index
            The positions of its samples in the data set, as the loader gave them.
        losses
            One loss per sample, shape (s,). On an accelerator nothing waits: they are taken with the next call.
        right
            Which answers are right, for a rule that needs the accuracy: their number in the whole batch is estimated.
        """
        numbers = check_update(index, losses, right)
        self._take_late()
        self._late = [sent(numbers), sent(losses.detach()), None if right is None else sent(right.detach())]
        if losses.is_cpu:
            self._take_late()

    def drawn(self, index: Any) -> DrawnBatch:
        """The batch that some yielded samples belong to: of which s they were drawn, and how many are to be kept.

        From an accelerator `index` is not read: the oldest batch is meant that has not been updated.
        """
        numbers = index if isinstance(index, Tensor) else torch.as_tensor(index)
        for drawn in self._waiting():
            if not numbers.is_cpu or torch.equal(drawn.loaded, numbers):
                return drawn
        raise no_such_batch(numbers, self._cut.n, "drawn")

    def next_drawn(self, last: DrawnBatch | None) -> DrawnBatch:
        """The batch that a loader gives after another one, or its first one: for a trainer that sees no positions."""
        waiting = self._waiting()
        places = [place for place, drawn in enumerate(waiting) if drawn is last]
        rest = waiting[places[0] + 1 :] if places else waiting
        if not rest:
            remedy = "Use one sampler for one loader, and iterate over it once at a time."
            raise ArgumentError(message(_WHERE, "a batch of the loader", "be one that was drawn", "another", remedy))
        return rest[0]

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next, counted from 0; without it they are counted here.

        After `load_state_dict` the epoch of the checkpoint goes on, even if nothing is left of it, and any other one
        starts at its beginning.
        """
        self._continues = self._loaded and epoch == self._epoch
        if not self._continues:
            self._epoch, self._begun = epoch, False

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch, by the rule; see `ordered_sgd.OrderedLoss.end_epoch`.

        Batches that are left of the present epoch are not yielded any more. The q of a loss that is followed moves by
        itself.
        """
        self._take_late()
        self._number = self._cut.batches
        self._pending.clear()
        return self._loading.policy.end_epoch(accuracy) if self._loading.own else self.q

    def joined(self, batches: Sequence[DrawnBatch]) -> DrawnBatch:
        """The batches of an update as one, whose samples are ordered together."""
        if len(batches) == 1:
            return batches[0]
        return DrawnBatch.joined(batches, self._loading.kept(sum(drawn.s for drawn in batches), self._epoch))

    def draw_from(self, dataset: Sized | int) -> None:
        """Draw from this data set, or from so many samples, from the next epoch on; what is remembered stays."""
        check_samples(dataset, self.ranks)
        self._dataset = dataset

    def follow(self, policy: Policy, ranks: int = 1, accumulated: int = 1) -> None:
        """Keep as many samples as an ordered loss does, whose rule sees the batches.

        It orders together those of so many ranks, and so many of an epoch one after the other.
        """
        self._loading.follow(policy, ranks, accumulated)

    @property
    def q(self) -> int:
        """How many losses of a full batch are to be kept now."""
        return self._loading.kept(min(self.batch_size, max(1, self._cut.slots)), self._epoch).q

    @property
    def ranks(self) -> int:
        """How many ranks share the data set."""
        return check_rank(self._rank, self._ranks)[1]

    @property
    def samples(self) -> int:
        """How many samples the data set has."""
        return check_samples(self._dataset, self.ranks)

    @property
    def trained(self) -> int:
        """How many batches of the present epoch were trained on."""
        return self._number - len(self._waiting()) if self._begun else 0

    @property
    def epoch(self) -> int:
        """The present epoch, counted from 0."""
        return self._epoch

    @property
    def whole(self) -> bool:
        """Whether the present epoch is one of the last, in which whole batches are yielded and kept."""
        return self._loading.whole(self._epoch)

    @property
    def over(self) -> bool:
        """Whether all batches of the present epoch were trained on, or it was ended."""
        return self._begun and self._number == self._cut.batches and not self._waiting()

    @property
    def recall(self) -> Recall | None:
        """Share of the q largest losses that were among those yielded, with its 95 % interval; None before an audit."""
        return self._loading.candidates.recall

    @property
    def loaded(self) -> float:
        """The share of the samples drawn in this epoch that were yielded."""
        return self._counts[0] / max(1, self._counts[1])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, also in the middle of an epoch: batches that were not updated come again."""
        return {
            "cut": vars(self._cut).copy(),
            "epoch": self._epoch,
            "number": self._number,
            "begun": self._begun,
            "counts": list(self._counts),
            "pending": [drawn.state_dict() for drawn in self._pending],
            "late": [None if part is None else part.read().clone() for part in self._late],
            **self._loading.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; the next iteration yields the rest of the epoch."""
        where, remedy = f"{_WHERE}.load_state_dict", "Pass what state_dict of an OrderedBatchSampler returned."
        check_state(where, "the state", state, _STATE, remedy)
        cut = Cut(**state["cut"])
        rank, ranks = check_rank(self._rank, self._ranks)
        if (cut.rank, cut.ranks) != (rank, ranks):
            got = f"that of rank {cut.rank} of {cut.ranks} on rank {rank} of {ranks}"
            remedy = "Every rank remembers its own samples: save and load one state per rank, on equally many ranks."
            raise ArgumentError(message(where, "the state", "be that of the same rank", got, remedy))
        self._cut, self._epoch, self._number, self._begun = cut, state["epoch"], state["number"], state["begun"]
        self._counts = tuple(state["counts"])
        self._order = Order(cut, self._epoch)
        self._pending = deque(DrawnBatch.from_state(drawn) for drawn in state["pending"])
        self._late = [None if part is None else OnItsWay(part) for part in state["late"]]
        self._loading.resize(cut)
        self._loading.load_state_dict(state)
        self._loaded = self._begun
        self._continues = self._begun and not self.over
        self._iteration += 1  # an iteration that was under way ends

    def _begin(self) -> None:
        """Go on in the epoch of a checkpoint, or begin one: the next if any batch of the last was used."""
        cut = self._cut_now()
        if self._continues:
            check_cut(cut, self._cut)
        else:
            self._take_late()
            self._epoch += self._begun
            self._loading.resize(cut)
            self._cut = cut
            self._restart()
        self._continues = self._loaded = False

    def _restart(self) -> None:
        """Stand at the beginning of the present epoch."""
        self._order = Order(self._cut, self._epoch)
        self._number, self._counts, self._begun = 0, (0, 0), False
        self._pending.clear()

    def _cut_now(self) -> Cut:
        """The cut for the data set as it is now, and for the ranks that there are by now."""
        rank, ranks = check_rank(self._rank, self._ranks)
        n = check_samples(self._dataset, ranks)
        return Cut(n, self.batch_size, rank, ranks, self.drop_last, self._seed)

    def _take_late(self) -> None:
        """Take the losses that were on their way from an accelerator."""
        if self._late:
            index, losses, right = (None if part is None else part.read() for part in self._late)
            self._late = []
            assert index is not None
            assert losses is not None
            self._take(index, losses, right)

    def _waiting(self) -> list[DrawnBatch]:
        """Batches that were drawn and not yet updated."""
        late = self._late[0] if self._late else None
        return list(self._pending)[0 if late is None else self._place(late.read()) + 1 :]

    def _place(self, index: Tensor) -> int:
        """Which of the batches that are not learnt from has these samples."""
        for place, drawn in enumerate(self._pending):
            if torch.equal(drawn.loaded, index):
                return place
        raise no_such_batch(index, self._cut.n, "update")

    def _take(self, index: Tensor, losses: Tensor, right: Tensor | None) -> None:
        """Remember the losses of a batch, and learn from one that was loaded whole; batches before it were skipped."""
        for _ in range(self._place(index)):
            self._pending.popleft()
        drawn, self._begun = self._pending.popleft(), True
        self._loading.learn(drawn, drawn.loaded // self._cut.ranks, losses, right)
