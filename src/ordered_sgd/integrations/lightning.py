"""Lightning: a callback that orders the criterion of a LightningModule as it is."""

import inspect
import operator
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ordered_sgd.amounts import Above
from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.integrations._outermost import CallInside, OutermostCalls, reaches
from ordered_sgd.integrations._sampled import Sampled, sampler_of
from ordered_sgd.integrations._selective import SelectiveModules
from ordered_sgd.integrations._watched import WatchedLoss, unreduced, world
from ordered_sgd.rules import Rule
from ordered_sgd.selective import explain_backward

if require("lightning", extra="lightning", where="ordered_sgd.integrations.lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.trainer.states import RunningStage
    from lightning.pytorch.utilities.rank_zero import rank_zero_info

_WHERE = "OrderedCallback"
_INLINE = (
    "If training_step calls F.cross_entropy, write self.criterion = nn.CrossEntropyLoss() in __init__ and call "
    'self.criterion, or do without the callback: ordered_mean(F.cross_entropy(..., reduction="none"), q).'
)


class OrderedCallback(Callback):
    """Puts an ordered loss in the place of a module's criterion while it is fitted, and moves q at the end of epochs.

    In training mode the module's criterion returns the mean of its q largest losses; in validation and test it is what
    it was. With gradient accumulation each batch that comes is ordered by itself; with DDP or FSDP the q largest are
    those of all ranks. ``ordered/q``, ``ordered/loss``, ``ordered/mean_loss`` and ``ordered/computed`` are logged per
    epoch, and the checkpoint carries q and what the rule has seen.

    An `ordered_sgd.OrderedBatchSampler` in the train loader is updated after each step, and the checkpoint holds its
    state. ``ordered/loaded`` and ``ordered/recall`` are then logged as well.

    The modules that `training_step` calls compute the backward pass of kept samples only; see
    `ordered_sgd.selective_backward`. Where that cannot be exact, the whole batch runs, and `backward_ran` says why.

    Parameters
    ----------
    q : float or Above or Rule
        A count, a share of each batch in (0, 1], `Above` a value, or a rule that moves q; see
        `ordered_sgd.OrderedLoss`.
    criterion : str, default="criterion"
        Name of the attribute that holds the criterion, a module or function that averages over the batch or returns one
        loss per sample; dots lead into submodules.
    accuracy : str or None, default=None
        Name of a metric that `training_step` logs with ``on_epoch=True``, training accuracy in [0, 1], for a rule that
        needs it; without it right answers are counted.
    selective : bool, default=True
        Whether backward passes skip samples that are not kept. The first step then compiles, which takes seconds.
    **options
        What else `ordered_sgd.OrderedLoss` takes, such as ``unit="pixel"`` or ``score=ordered_sgd.scores.entropy``.

    Examples
    --------
    >>> OrderedCallback(q=0.5, criterion="loss_fn").state_key
    "OrderedCallback{'criterion': 'loss_fn'}"
    """

    def __init__(
        self,
        *,
        q: float | Above | Rule,
        criterion: str = "criterion",
        accuracy: str | None = None,
        selective: bool = True,
        **options: Any,
    ) -> None:
        self.criterion = criterion
        self.accuracy = accuracy
        self.selective = selective
        self._options = {"q": q, **options, "_where": _WHERE}
        self.loss_fn = WatchedLoss(_no_criterion, **self._options)  # refuses wrong arguments now
        self._modules = SelectiveModules(selective)
        self._told: str | None = None  # what the trainer's log said last
        self._resumed = False
        self._undo: ExitStack | None = None
        self._sampled: Sampled | None = None

    @property
    def backward_ran(self) -> str | None:
        """``"only kept samples"``, or ``"whole batches: "`` and the reason; None before a backward pass told."""
        return self._modules.ran

    @property
    def state_key(self) -> str:
        """One state for each criterion."""
        return str(self._generate_state_key(criterion=self.criterion))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap the criterion, and look for the modules that training calls; the state from a checkpoint stays."""
        path, _, name = self.criterion.rpartition(".")
        try:
            owner = operator.attrgetter(path)(pl_module) if path else pl_module
            original = getattr(owner, name)
        except AttributeError as error:
            got = f"{self.criterion!r}, which {type(pl_module).__name__} does not have"
            remedy = f'Keep the criterion in an attribute, and pass its name, such as criterion="loss_fn". {_INLINE}'
            raise ArgumentError(message(_WHERE, "criterion", "name an attribute", got, remedy)) from error
        state = self.loss_fn.policy.state_dict()
        self.loss_fn = WatchedLoss(unreduced(original, _WHERE), group=_group(trainer), **self._options)
        self.loss_fn.policy.load_state_dict(state)
        self.loss_fn.counting = self.accuracy is None

        def ordered_in_training(*args: Any, **kwargs: Any) -> Tensor:
            criterion = self.loss_fn if pl_module.training else original
            return criterion(*args, **kwargs)  # type: ignore[no-any-return]

        self._undo = ExitStack()
        self._swap(owner, name, ordered_in_training)
        self._modules, self._told = SelectiveModules(self.selective), None
        first = _first(trainer)
        if first is not self:
            self._modules = first._modules
            return
        self._find_sampler(trainer)
        if self.selective:
            self._find_modules(trainer, pl_module, owner, name)

    def _swap(self, owner: Any, name: str, new: Any) -> None:
        """Give an object another attribute until the fit ends.

        An instance's own attributes come before its submodules: nothing is registered, and the names of the parameters
        in the module's checkpoint stay what they were.
        """
        assert self._undo is not None
        attributes = vars(owner)
        if name in attributes:
            self._undo.callback(attributes.update, {name: attributes[name]})
        else:
            self._undo.callback(attributes.pop, name, None)
        attributes[name] = new

    def _find_sampler(self, trainer: Trainer) -> None:
        """Look for an `OrderedBatchSampler` when the train loader comes: its batches are told to the loss."""
        self._sampled = None
        connector, plugin = trainer._data_connector, trainer.precision_plugin
        prepare, convert = connector._prepare_dataloader, plugin.convert_input

        def found(loader: Any, shuffle: bool, mode: RunningStage) -> Any:
            sampler = sampler_of(loader) if mode == RunningStage.TRAINING else None
            if sampler is None:
                return prepare(loader, shuffle=shuffle, mode=mode)
            before, sampled = self._sampled, Sampled(sampler, loader, self.loss_fn, _WHERE)
            if before is not None and before.sampler is not sampler:  # made anew by `train_dataloader`
                sampler.load_state_dict(before.sampler.state_dict())
            # Lightning saves and loads the state of a loader that has one; each rank draws from its own samples
            loader.state_dict, loader.load_state_dict = sampled.state_dict, load
            self._sampled = sampled
            return loader

        def load(state: dict[str, Any]) -> None:
            assert self._sampled is not None
            self._sampled.load_state_dict(state)
            if self._sampled.sampler.over:  # before the next epoch is drawn, which needs its q
                self._end_missed_epoch()

        def arrived(batch: Any) -> Any:
            if self._sampled is not None and trainer.training:
                batch = self._sampled.arrive(batch)
            return convert(batch)

        self._swap(connector, "_prepare_dataloader", found)
        self._swap(plugin, "convert_input", arrived)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse loaders and criteria beside those of a batch sampler."""
        if self._sampled is None:
            return
        callbacks = sum(isinstance(callback, OrderedCallback) for callback in trainer.callbacks)
        alone = trainer.train_dataloader is self._sampled.loader
        iterates = "dataloader_iter" in inspect.signature(pl_module.training_step).parameters
        for fault, name, rule, got in (
            (not alone, "the loader with a batch sampler", "be the only one, and passed by itself", "several"),
            (callbacks > 1, "OrderedCallback", "be the only one with a batch sampler", f"{callbacks} of them"),
            (iterates, "training_step", "take a batch with a batch sampler", "dataloader_iter"),
        ):
            if fault:
                remedy = "Change that, or leave the batch sampler out."
                raise ArgumentError(message(_WHERE, name, rule, got, remedy))

    def _find_modules(self, trainer: Trainer, pl_module: LightningModule, owner: Any, name: str) -> None:
        """Make the backward of each module selective that `training_step` calls, just before its first call."""
        assert self._undo is not None
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            self._modules.leave(f"the strategy is {type(trainer.strategy).__name__}")
            return
        if pl_module._compiler_ctx is not None:
            self._modules.leave("the LightningModule is compiled")
            return

        def found(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            if any(part is owner for part in module.modules()) and reaches(owner, name, module, args, kwargs):
                return False  # compiled, the criterion might run twice
            if any(isinstance(part, nn.SyncBatchNorm) for part in module.modules()):
                self._modules.leave("SyncBatchNorm couples the samples of all ranks")
                return True
            self._modules.add(module)
            if module is pl_module and explain_backward(module).plain is None:
                CallInside(calls, module)
            return True

        calls = OutermostCalls(pl_module, found)
        self._swap(pl_module, "training_step", calls.of(pl_module.training_step))
        self._undo.callback(self._modules.restore)
        self._undo.callback(calls.restore)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Move q if the checkpoint was written with the last batch of an epoch, which Lightning then does not end."""
        if self._resumed and batch_idx == 0:
            self._end_missed_epoch()
        self._resumed = False

    def _end_missed_epoch(self) -> None:
        if self.loss_fn.policy.adaptive.began and self.accuracy is None:
            self.loss_fn.end_epoch()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log q and both means; after the first batch, refuse a criterion that training does not call."""
        loss_fn = self.loss_fn
        if loss_fn.ordered_loss is None or loss_fn.mean_loss is None:
            got = f"no call of {self.criterion!r} in the first batch"
            remedy = f"Name the attribute that training_step calls. {_INLINE}"
            raise ArgumentError(message(_WHERE, "criterion", "be called in training_step", got, remedy))
        values: dict[str, Any] = {
            "q": float(loss_fn.q or 0),
            "loss": loss_fn.ordered_loss,
            "mean_loss": loss_fn.mean_loss,
        }
        if self._sampled is not None:
            self._sampled.leave(last=trainer.is_last_batch)
            values |= self._sampled.numbers()
        if _first(trainer) is self:
            values["computed"] = self._modules.share()
            self._tell()
        named = {f"ordered/{name}": value for name, value in values.items()}
        together = {"sync_dist": loss_fn.group is not None, "batch_size": max(1, loss_fn.samples)}
        pl_module.log_dict(named, on_step=False, on_epoch=True, **together)

    def _tell(self) -> None:
        if self.selective and self.backward_ran not in (None, self._told):
            self._told = self.backward_ran
            rank_zero_info(f"{_WHERE}: backward passes compute {self._told}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move q."""
        metrics = trainer.callback_metrics
        if self.accuracy is not None and self.accuracy not in metrics:
            got, remedy = f"{self.accuracy!r} and {sorted(metrics)}", "Log it in training_step with on_epoch=True."
            raise ArgumentError(message(_WHERE, "accuracy", "name a metric of the epoch", got, remedy))
        if self.loss_fn.policy.adaptive.began:
            self.loss_fn.end_epoch(None if self.accuracy is None else float(metrics[self.accuracy]))
        recall = None if self._sampled is None else self._sampled.recall()
        if recall is not None:
            pl_module.log("ordered/recall", recall, sync_dist=self.loss_fn.group is not None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module its criterion and its own backward passes back."""
        if self._undo is not None:
            self._undo.close()
        self._undo = None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module its criterion and its own backward passes back."""
        self.teardown(trainer, pl_module, "fit")

    def state_dict(self) -> dict[str, Any]:
        """The q, and what the rule has seen."""
        return self.loss_fn.policy.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.loss_fn.policy.load_state_dict(state_dict)
        self._resumed = True


def _first(trainer: Trainer) -> OrderedCallback:
    """The callback that makes modules selective; there may be one for each criterion."""
    return next(callback for callback in trainer.callbacks if isinstance(callback, OrderedCallback))


def _no_criterion(*_: Any) -> Tensor:
    raise AssertionError("the criterion comes when the fit starts")


def _group(trainer: Trainer) -> "dist.ProcessGroup | None":
    """All ranks, if there are several over which the strategy averages gradients."""
    if trainer.world_size == 1:
        return None
    if not isinstance(trainer.strategy, DDPStrategy | FSDPStrategy):
        got, remedy = type(trainer.strategy).__name__, 'Use strategy="ddp".'
        raise ArgumentError(message(_WHERE, "the strategy", "be DDP or FSDP on several ranks", got, remedy))
    return world()
