"""Runs of a model's compiled call, compared with the model itself for every new graph."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ordered_sgd.agreement import agree
from ordered_sgd.errors import first_line
from ordered_sgd.rewind import Buffers, RandomState, Saved, device_of, random_state, restore_random_state
from ordered_sgd.selective.compiler import SelectiveBackend
from ordered_sgd.selective.explain import NotCompiledError
from ordered_sgd.watch import Writes

Outputs = TypeVar("Outputs")

# nodes of autograd: compiled graphs, parameters, and views that AOTAutograd makes of a graph's results
_COMPILED = re.compile(
    r"(CompiledFunction|.*AccumulateGrad|(\w*View|Alias|T|Transpose|Permute|Slice|Select|Split|Squeeze|Unsqueeze|Expand|"
    r"AsStrided|Detach)(WithSizes)?Backward)"
)


STEADY_AFTER = 8  # calls without a new graph


class CheckedRuns:
    """Runs of a compiled function of a model, whose outputs are compared with those of the model for every new graph.

    Parameters
    ----------
    model
        What is run; the generators are as after a single run.
    buffers
        Of the model and what else is run: they, too, are as after a single run.
    function
        Calls the model with a batch.
    backend
        Compiles the function.
    """

    def __init__(
        self, model: nn.Module, buffers: Buffers, function: Callable[[Any], Any], backend: SelectiveBackend
    ) -> None:
        self.backend, self._buffers = backend, buffers
        self._function, self._tied, self._resized = function, False, False
        self._compiled = torch.compile(_with_code_of_its_own(function), backend=backend)
        # LSTM on the CPU cannot be traced; with it in the model torch's default, a graph break, is right
        recurrent = {type(module) for module in model.modules() if isinstance(module, nn.RNNBase)}
        changed = {"allow_rnn": True} if recurrent and nn.LSTM not in recurrent else {}
        changed["skip_nnmodule_hook_guards"] = False  # hooks may be added later
        changed["allow_unspec_int_on_nn_module"] = True  # a counter of calls is not worth a graph for every value
        self._config = torch._dynamo.config.patch(changed)
        self._steady = 0  # calls since the last new graph

    def compiled(self, batch: Any) -> Any:
        """What the function returns, by compiled code."""
        return self._compiled(batch)

    def __call__(
        self, run: Callable[[], Outputs], reference: Callable[[], Any], batch: Any
    ) -> tuple[Outputs, Callable[[], None]]:
        """What `run`, which calls `compiled` with the batch, returns, and a function that undoes the run.

        Raises `NotCompiledError`, with everything as before, where it cannot be compiled or differs from `reference`,
        the same without torch.compile.
        """
        undo = partial(self._rewind, random_state(device_of(self._buffers.model)), self._buffers.save())
        first = self.backend.graphs == 0 and not _saves_elsewhere()
        expected = self._expected(reference, undo) if first else None
        mark_batch(batch)
        graphs, forwards = self.backend.graphs, self.backend.forwards
        self._steady += 1
        outputs = self._attempt(run, reference, undo)
        if self.backend.forwards == forwards:  # what was run is the model itself: past the limit of recompiles, say
            return outputs, undo
        if self.backend.graphs == graphs or _saves_elsewhere():
            return outputs, undo
        self._steady = 0
        if self.backend.untied and not self._tied:
            self._tied = True
            self._compiled = torch.compile(_with_code_of_its_own(partial(_tied, self._function)), backend=self.backend)
            undo()
            return self(run, reference, batch)
        if self.backend.fixed and not self._resized:
            self._resized = True
            undo()
            self._run_smaller(batch)
            undo()
            outputs = self._attempt(run, reference, undo)
        self.backend.report.eager = not _traced(outputs, batch)
        if expected is None:  # a later graph, which nobody could foresee
            undo()
            expected = self._expected(reference, undo)
            outputs = self._attempt(run, reference, undo)
        if not _agree(outputs, expected):
            undo()
            raise NotCompiledError("the compiled model gives other outputs")
        return outputs, undo

    def _attempt(self, run: Callable[[], Outputs], reference: Callable[[], Any], undo: Callable[[], None]) -> Outputs:
        """What `run` returns, or `NotCompiledError` with everything as before if the model itself does not fail."""
        self.backend.begin()
        try:
            with self._settings():
                return run()
        except Exception as error:
            if _saves_elsewhere():
                raise
            undo()
            if not _from_compiler(error):
                self._expected(reference, undo)  # raises what the model itself raises
            cause = getattr(error, "inner_exception", None) or error  # the backend's own, if that is where it failed
            raise NotCompiledError(f"the model could not be compiled ({first_line(cause)})") from error

    def _run_smaller(self, batch: Any) -> None:
        """Run all samples but one: a size that has changed once gets a symbol in every graph."""
        s = next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), 0)
        if s < 3:  # sizes of 0 and 1 never have a symbol
            return

        def part(leaf: Any) -> Any:
            has_batch = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == s
            return leaf[:-1] if has_batch else leaf

        smaller = tree_map(part, batch)
        mark_batch(smaller)
        self.backend.begin()
        with suppress(Exception), self._settings():  # whatever a model raises of a batch size that it does not expect
            self.compiled(smaller)

    def _expected(self, reference: Callable[[], Any], undo: Callable[[], None]) -> Any:
        """The outputs of the model itself; everything is as before."""
        writes = Writes(self._buffers.model)
        with torch.no_grad(), writes:
            expected = reference()
        written = writes.undone()
        undo()
        if written is not None:
            raise NotCompiledError(f"a pass changes the parameter {written!r}")
        return expected

    @contextmanager
    def _settings(self) -> Iterator[None]:
        # torch prints pages about graph breaks, which are ours to explain; a change of level is slow, so only at first
        quiet = self._steady <= STEADY_AFTER and not os.environ.get("TORCH_LOGS")
        logger = logging.getLogger("torch._dynamo")
        level = logger.level
        if quiet:
            logger.setLevel(logging.ERROR)
        try:
            with self._config:
                yield
        finally:
            if quiet:
                logger.setLevel(level)

    def _rewind(self, random: RandomState, saved: Saved) -> None:
        restore_random_state(random, device_of(self._buffers.model))
        self._buffers.load(saved)


def _with_code_of_its_own(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function with a new code object: torch.compile counts recompiles per code object, over all models."""

    def run(batch: Any) -> Any:
        return function(batch)

    run.__code__ = run.__code__.replace()
    return run


def _tied(function: Callable[[Any], Any], batch: Any) -> Any:
    """What the function returns, traced with the knowledge that inputs of equal batch size have one batch."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    for tensor in tensors[1:]:
        if tensor.shape[0] == tensors[0].shape[0]:  # comparing is enough: torch.compile adds a guard for the answer
            continue
    return function(batch)


def _traced(outputs: Any, batch: Any) -> bool:
    """Whether all that leads from the batch to the outputs was computed by compiled graphs, but for views of them."""
    inputs = {leaf.grad_fn for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)}
    waiting = {leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)} - inputs - {None}
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if not _COMPILED.match(node.name()):
            return False
        before = {function for function, _ in node.next_functions} - seen - inputs - {None}
        seen |= before
        waiting |= before
    return True


def _saves_elsewhere() -> bool:
    """Whether hooks take what is saved, as those of checkpointing, which count it: nothing may be run twice."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _agree(outputs: Any, expected: Any) -> bool:
    pairs = zip(tree_leaves(outputs), tree_leaves(expected), strict=True)
    floats = [(a, b) for a, b in pairs if isinstance(a, Tensor) and a.is_floating_point()]
    return all(a.shape == b.shape and agree(a, b) for a, b in floats)


def mark_batch(batch: Any) -> None:
    """Tell torch.compile that the first dimension of the batch's tensors varies, and no other."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    sizes = [tensor.shape[0] for tensor in tensors]
    for tensor, size in zip(tensors, sizes, strict=True):
        if size == sizes[0] and size > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _from_compiler(error: Exception) -> bool:
    """Whether torch's compiler raised it, and not the model."""
    return type(error).__module__.startswith(("torch._dynamo", "torch.fx", "torch._functorch", "torch._subclasses"))
