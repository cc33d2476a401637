"""skorch: a NeuralNetClassifier that trains on its q largest losses."""

import copy
import inspect
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ordered_sgd.amounts import Above
from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.integrations._sampled import Sampled
from ordered_sgd.integrations._selective import SelectiveModules
from ordered_sgd.integrations._watched import WatchedLoss, unreduced
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.rules import Rule
from ordered_sgd.sampler import OrderedBatchSampler

if require("skorch", extra="skorch", where="ordered_sgd.integrations.skorch"):
    from skorch import NeuralNetClassifier
    from skorch.callbacks import PassthroughScoring
    from skorch.utils import to_tensor


class OrderedNeuralNetClassifier(NeuralNetClassifier):
    """A `NeuralNetClassifier` whose training loss is the mean of the q largest losses of each batch.

    ``train_loss`` in the history is that ordered loss; beside it stand ``train_mean_loss``, the plain mean, and ``q``,
    for a full batch. ``valid_loss`` is the plain mean. With a rule q moves at the end of each epoch, and goes on from
    there in `partial_fit`; `fit` starts anew. The ordered loss is ``ordered_``; ``save_params(f_ordered=...)`` saves
    its state.

    Pass an `ordered_sgd.OrderedBatchSampler` as ``iterator_train__batch_sampler``. Each `fit` trains with a fresh copy,
    ``sampler_``, which draws from the training set that `train_split` leaves and is updated after each step. The
    history then has ``loaded`` and ``recall`` as well, and ``save_params(f_sampler=...)`` saves the sampler's state.

    The backward pass of ``module_`` computes kept samples only; see `ordered_sgd.selective_backward`. ``computed`` in
    the history is the share of samples that were computed, and ``backward_ran_`` says why if it is 1.

    Parameters
    ----------
    module : nn.Module
        As for `NeuralNetClassifier`, and so are `*args` and `**kwargs`. The criterion averages over the batch or
        returns one loss per sample.
    q : float or Above or Rule
        A count, a share of each batch in (0, 1], `Above` a value, or a rule that moves q; see
        `ordered_sgd.OrderedLoss`. Its other options carry the prefix ``ordered__``, as in ``ordered__trim=0.1``.
    selective : bool, default=True
        Whether the backward pass skips samples that are not kept. The first step then compiles, which takes seconds.

    Examples
    --------
    >>> net = OrderedNeuralNetClassifier(nn.Linear, q=0.5, module__in_features=2, module__out_features=2)
    >>> net.get_params()["q"]
    0.5
    """

    _sampled: Sampled | None = None
    prefixes_: ClassVar[list[str]] = [*NeuralNetClassifier.prefixes_, "ordered"]  # skorch adds to a copy of it

    def __init__(self, module: Any, *args: Any, q: float | Above | Rule, selective: bool = True, **kwargs: Any) -> None:
        _check_prefixes(kwargs, type(self).__name__)
        super().__init__(module, *args, **kwargs)
        self.q = q
        self.selective = selective

    @property
    def backward_ran_(self) -> str | None:
        """``"only kept samples"``, or ``"whole batches: "`` and the reason; None before a backward pass told."""
        return self.backward_.ran if "backward_" in vars(self) else None

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        passed_on = PassthroughScoring(name="train_mean_loss", on_train=True)
        *others, log = super()._default_callbacks
        return [*others, ("train_mean_loss", passed_on), log]

    def initialize_virtual_params(self) -> None:
        """Make the options of the ordered loss parameters that `set_params` sets, and no more: training will look."""
        super().initialize_virtual_params()
        self._register_virtual_param("ordered__*")

    def initialize(self) -> Any:
        """Make all parts, with a copy of the batch sampler; see `NeuralNetClassifier`."""
        super().initialize()
        given = self.get_params_for("iterator_train").get("batch_sampler")
        self.sampler_ = copy.deepcopy(given) if isinstance(given, OrderedBatchSampler) else None
        return self

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """The loader of a data set, with the batch sampler in training; see `NeuralNetClassifier`."""
        if training:
            self._sampled = None
        if not training or self.sampler_ is None:
            return super().get_iterator(dataset, training=training)
        self.sampler_.draw_from(len(dataset))
        options = {**self.get_params_for("iterator_train"), "batch_sampler": self.sampler_}
        loader = self.iterator_train(dataset, **options)
        self._sampled = Sampled(self.sampler_, loader, self.ordered_, type(self).__name__)
        return loader

    def initialize_module(self) -> Any:
        """Make the module, which is selective when training begins."""
        super().initialize_module()
        self._new_backward()
        return self

    def _new_backward(self) -> None:
        if "backward_" in vars(self):
            self.backward_.restore()
        self.backward_: SelectiveModules = SelectiveModules(self.selective)
        self.selective_as_ = self.selective

    def initialize_criterion(self) -> Any:
        """Make the criterion, and the ordered loss beside it."""
        super().initialize_criterion()
        self._order()
        return self

    def _order(self) -> None:
        where = type(self).__name__
        criterion = unreduced(self.criterion_, where)
        # Past skorch's own register: with a second criterion there, it would no longer tell what turns outputs into
        # probabilities. Weights are shared with `criterion_`, which is the one that is moved to the device.
        object.__setattr__(self, "ordered_", WatchedLoss(criterion, _where=where, **self._ordered_options()))
        self.ordered_as_ = (type(self.q), self._ordered_options())  # 1 is not 1.0

    def _ordered_options(self) -> dict[str, Any]:
        return {**self.get_params_for("ordered"), "q": self.q}

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Order anew if `set_params` has changed q or an option since; make a module selective that is not yet."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        if self.ordered_as_ != (type(self.q), self._ordered_options()):
            self._order()
        if vars(self).get("selective_as_") is not self.selective:  # nor does a pickle have it
            self._new_backward()
        self.backward_.add(self.module_)  # once for all calls of `partial_fit`: it would compile again

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        """One step on a batch, of which a batch sampler remembers the losses; see `NeuralNetClassifier`."""
        if self._sampled is None:
            return super().train_step(batch, **fit_params)
        step = super().train_step(self._sampled.arrive(batch), **fit_params)
        self._sampled.leave()
        return step

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Tensor:
        """The ordered loss in training, else the plain mean."""
        if not training:
            return super().get_loss(y_pred, y_true, X=X, training=training).mean()  # type: ignore[no-any-return]
        if isinstance(self.criterion_, nn.NLLLoss):  # as NeuralNetClassifier does: the module returns probabilities
            y_pred = torch.log(y_pred + torch.finfo(y_pred.dtype).eps)
        loss: Tensor = self.ordered_(y_pred, to_tensor(y_true, device=self.device))
        return loss

    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any) -> None:
        """Put the plain mean into the history."""
        super().on_batch_end(net, batch=batch, training=training, **kwargs)
        if training:
            self.history.record_batch("train_mean_loss", self.ordered_.mean_loss.item())
            if self._sampled is not None:  # a batch counts by the samples that were drawn, however many were loaded
                self.history.record_batch("train_batch_size", self.ordered_.samples)

    def on_epoch_end(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Put q and the share of samples that were computed into the history, and move q."""
        super().on_epoch_end(net, dataset_train=dataset_train, dataset_valid=dataset_valid, **kwargs)
        self.history.record("q", self.ordered_.q)
        self.history.record("computed", self.backward_.share())
        if self._sampled is not None:
            recall = self._sampled.recall()
            self.history.record("loaded", self._sampled.sampler.loaded)
            self.history.record("recall", math.nan if recall is None else recall)
        self.ordered_.end_epoch()

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the module is selective again when training begins."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("backward_", "selective_as_", "_sampled")}


def _check_prefixes(given: dict[str, Any], where: str) -> None:
    """Raise if an option of the ordered loss lacks its prefix: ``score`` would hide a method of the estimator."""
    for name in inspect.signature(OrderedLoss).parameters.keys() - {"criterion"}:
        if name in given:
            remedy = f"Write ordered__{name}=, as module__ and criterion__ in skorch."
            raise ArgumentError(message(where, name, "carry the prefix ordered__", f"{name}=", remedy))
