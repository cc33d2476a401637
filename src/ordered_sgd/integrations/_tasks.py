"""What models of Transformers are trained on: which of their outputs is compared with which labels, and by what loss.

`TASKS` is the table. `task_of` finds a model's row by the name of its class and by its configuration. Needs nothing but
torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.criterion import ignore_index
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.integrations._head import Unprojected, logits_of

IGNORED = -100  # the label that Transformers ignores, whatever the loss
Inputs = dict[str, Any]


class Compared(NamedTuple):
    """What a criterion compares, which of its losses count (None: all), and how many labels `Trainer` counts."""

    logits: Any
    labels: Tensor
    valid: Tensor | None
    items: Tensor


@dataclass(frozen=True)
class Task:
    """How the losses of one kind of model are computed.

    Attributes
    ----------
    name
        What `OrderedLossFunc` calls the task.
    endings
        How the names of these models' classes end.
    unit
        What is ordered unless another unit is asked for.
    labels
        What the labels are, in words.
    compare
        From the outputs, the labels and the ignored label to what the criterion compares.
    criterion
        Makes the criterion: one loss per unit.
    head
        Whether the losses can be computed from the input of the model's output layer.
    relabel
        Brings the labels of a batch under the name ``"labels"``, with -100 where they are ignored.
    decoder
        What a model with a decoder needs to be told when it does not get labels.
    ignored
        The label that the criterion ignores.
    """

    name: str
    endings: tuple[str, ...]
    unit: str
    labels: str
    compare: Callable[[Any, Tensor, int], Compared]
    criterion: Callable[[int], nn.Module]
    head: bool = False
    relabel: Callable[[Inputs, int], Inputs] = lambda inputs, _: inputs
    decoder: Callable[[Any, Inputs], Inputs] = lambda model, inputs: {}
    ignored: int = IGNORED


def wide(logits: Tensor) -> Tensor:
    """The logits in at least single precision."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _there(outputs: Any, labels: Tensor) -> tuple[Any, Tensor, Tensor]:
    """The logits, the labels on the same device, and which of these Transformers does not ignore."""
    logits = logits_of(outputs)
    labels = labels.to(logits.device)
    return wide(logits) if isinstance(logits, Tensor) else logits, labels, labels != IGNORED


def _samples(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    logits, labels, valid = _there(outputs, labels)
    if labels.is_floating_point() and logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if not labels.is_floating_point():
        labels = labels.masked_fill(~valid, ignored)
        if labels.shape == (len(logits), 1):
            labels, valid = labels.squeeze(1), valid.squeeze(1)
    # labels of more dimensions are not one for each loss
    return Compared(logits, labels, valid if labels.dim() == 1 else None, valid.sum())


def _numbers(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    logits, labels, valid = _there(outputs, labels)
    if logits.shape[1:].numel() == labels.shape[1:].numel() == 1:
        logits, labels = logits.flatten(), labels.flatten()
    _check_shape("be numbers of the shape of the logits", logits, labels)
    return Compared(logits, labels.to(logits.dtype), None, valid.sum())


def _every_label(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    logits, labels, valid = _there(outputs, labels)
    _check_shape("be 0 or 1 for every class, of the shape of the logits", logits, labels)
    if not labels.is_floating_point():
        rule, remedy = "be floats for several labels at once", "Convert them with labels.float()."
        raise ArgumentError(message("OrderedLossFunc", "labels", rule, labels.dtype, remedy))
    return Compared(logits, labels.to(logits.dtype), None, valid.sum())


def _check_shape(rule: str, logits: Tensor, labels: Tensor) -> None:
    if logits.shape != labels.shape:
        got = f"shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}"
        remedy = "Check num_labels and problem_type in the model's configuration."
        raise ArgumentError(message("OrderedLossFunc", "labels", rule, got, remedy))


def _tokens(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    logits, labels, valid = _there(outputs, labels)
    if isinstance(logits, Tensor):
        logits = logits.transpose(1, 2)  # the classes second, as torch has it
    if not labels.is_floating_point():
        labels = labels.masked_fill(~valid, ignored)
    return Compared(logits, labels, valid, valid.sum())


def _next_tokens(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    return _tokens(outputs, F.pad(labels, (0, 1), value=IGNORED)[..., 1:], ignored)  # the last predicts nothing


def _pixels(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    logits, labels, there = _there(outputs, labels)
    logits = F.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    valid = there & (labels != ignored)
    return Compared(logits, labels.masked_fill(~valid, ignored), valid, there.sum())


def _spans(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    names = ("start_logits", "end_logits")
    if isinstance(outputs, dict) and not all(name in outputs for name in names):
        got, remedy = ", ".join(outputs), "Train this kind of model with Trainer."
        raise ArgumentError(message("OrderedLossFunc", "outputs", f"have {' and '.join(names)}", got, remedy))
    start, end = (outputs[name] for name in names) if isinstance(outputs, dict) else outputs[:2]
    length, labels = start.shape[1], labels.to(start.device)
    there = labels != IGNORED
    positions = labels.masked_fill(~there, length).clamp(0, length)  # models themselves ignore what lies beyond
    valid = (positions < length).any(1)
    return Compared(torch.stack((wide(start), wide(end)), 2), positions, valid, there.sum())


class _PerSample(nn.Module):
    """Cross-entropy of a class, or of labels that are 0 or 1 each the mean binary cross-entropy."""

    ignore_index = IGNORED

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not labels.is_floating_point():
            return F.cross_entropy(logits, labels, reduction="none")
        if labels.shape != logits.shape or labels.dim() != 2:
            rule, got = "be classes (s,), or 0 and 1 for every class (s, C)", f"{labels.dtype} {tuple(labels.shape)}"
            remedy = 'For numbers pass OrderedLossFunc("regression", ...), or set num_labels=1 in the configuration.'
            raise ArgumentError(message("OrderedLossFunc", "labels", rule, got, remedy))
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


class _Squares(nn.Module):
    """Squared errors, averaged over the numbers of a sample."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = F.mse_loss(logits, labels, reduction="none")
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


class _BothEnds(nn.Module):
    """Mean of the cross-entropies of start and end; an end that is ignored leaves more weight to the others' ends."""

    def forward(self, logits: Tensor, positions: Tensor) -> Tensor:
        length = logits.shape[1]
        losses = F.cross_entropy(logits, positions, ignore_index=length, reduction="none")
        there = positions < length
        share = there.any(1).sum() / there.sum(0).clamp(min=1)  # 1 unless just one end of a sample is ignored
        return (losses * share).mean(1)


class PerToken(nn.Module):
    """A criterion of (n, C) and (n,) for (s, C, T) and (s, T): flattened, which is faster than by columns."""

    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.criterion = criterion
        self.ignore_index = ignore_index(criterion)

    def forward(self, logits: Tensor | Unprojected, labels: Tensor) -> Tensor:
        """One loss per token."""
        if isinstance(logits, Unprojected):
            return logits.losses(labels, self.ignore_index)
        losses: Tensor = self.criterion(logits.transpose(1, 2).flatten(0, 1), labels.flatten())
        return losses if losses.dim() == 0 else losses.view_as(labels)


def _cross_entropy(ignored: int) -> nn.Module:
    return nn.CrossEntropyLoss(ignore_index=ignored, reduction="none")


def _both_positions(inputs: Inputs, ignored: int) -> Inputs:
    """Positions beyond the text are ignored, and negative ones count as 0, as models of Transformers have it."""
    names = ("start_positions", "end_positions")
    if not all(isinstance(inputs.get(name), Tensor) for name in names):
        return inputs
    positions = torch.stack([inputs[name].flatten() for name in names], 1).clamp(min=0)
    if isinstance(words := inputs.get("input_ids"), Tensor):
        positions = positions.masked_fill(positions >= words.shape[1], IGNORED)
    return {name: value for name, value in inputs.items() if name not in names} | {"labels": positions}


def _one_ignored(inputs: Inputs, ignored: int) -> Inputs:
    labels = inputs.get("labels")
    if not isinstance(labels, Tensor):
        return inputs
    return {**inputs, "labels": labels.masked_fill(labels == ignored, IGNORED)}


def _decoder_inputs(model: Any, inputs: Inputs) -> Inputs:
    """The labels, shifted to the right by the model; some models do it only inside of their forward pass."""
    given = ("decoder_input_ids", "decoder_inputs_embeds")
    if inputs.get("labels") is None or any(inputs.get(name) is not None for name in given):
        return {}
    labels = inputs["labels"]
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    return {"labels": labels} if shift is None else {"decoder_input_ids": shift(labels=labels)}


_CLASSIFIERS = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
)
_TO_TEXT = ("ForConditionalGeneration", "EncoderDecoderModel", "ForSpeechToText", "ForTextToText")
_CHOICES = ("ForMultipleChoice", "ForNextSentencePrediction")
_ANSWERS = ("ForQuestionAnswering", "ForQuestionAnsweringSimple")
_TOKENS = ("ForTokenClassification", "ForMaskedLM")
_CAUSAL = ("ForCausalLM", "LMHeadModel")

TASKS = {
    task.name: task
    for task in (
        Task("sequence", _CLASSIFIERS + _CHOICES, "sample", "a class (s,)", _samples, lambda _: _PerSample()),
        Task("multi_label", _CLASSIFIERS, "sample", "0 or 1, floats (s, C)", _every_label, lambda _: _PerSample()),
        Task("regression", _CLASSIFIERS, "sample", "numbers (s,) or (s, C)", _numbers, lambda _: _Squares()),
        Task("token", _TOKENS, "token", "classes (s, T)", _tokens, _cross_entropy, head=True),
        Task("causal", (*_CAUSAL, _TO_TEXT[0]), "token", "words (s, T)", _next_tokens, _cross_entropy, head=True),
        Task(
            "seq2seq",
            _TO_TEXT,
            "token",
            "words (s, T)",
            _tokens,
            _cross_entropy,
            head=True,
            decoder=_decoder_inputs,
        ),
        Task(
            "question_answering",
            _ANSWERS,
            "sample",
            "`start_positions` and `end_positions` (s,)",
            _spans,
            lambda _: _BothEnds(),
            relabel=_both_positions,
        ),
        Task(
            "segmentation",
            ("ForSemanticSegmentation",),
            "pixel",
            "classes (s, H, W)",
            _pixels,
            _cross_entropy,
            relabel=_one_ignored,
            ignored=255,
        ),
    )
}
# Their own losses do not shift the labels: each label stands at the position that predicts it.
UNSHIFTED = {
    "BartForCausalLM",
    "BigBirdPegasusForCausalLM",
    "BlenderbotForCausalLM",
    "BlenderbotSmallForCausalLM",
    "MBartForCausalLM",
    "MarianForCausalLM",
    "MvpForCausalLM",
    "PegasusForCausalLM",
    "PLBartForCausalLM",
    "TrOCRForCausalLM",
    "WhisperForCausalLM",
    "CpmAntForCausalLM",
    "XLMWithLMHeadModel",
    "FlaubertWithLMHeadModel",
}
UNSUPPORTED = {  # by how their names end, and why
    "ForObjectDetection": "matches boxes to objects",
    "ForInstanceSegmentation": "matches masks to objects",
    "ForUniversalSegmentation": "matches masks to objects",
    "ForPreTraining": "adds the losses of several outputs",
    "DoubleHeadsModel": "adds the losses of several outputs",
    "ForCTC": "sums over alignments",
    "ForXVector": "compares with learned directions",
    "ForMaskedImageModeling": "compares images",
    "ForDepthEstimation": "compares depths up to a scale",
}


def task_named(task: "str | Task") -> Task:
    """The row of the table with this name, or the task itself."""
    if isinstance(task, Task):
        return task
    check_choice("OrderedLossFunc", "task", task, tuple(TASKS))
    return TASKS[task]


def task_of(model: Any) -> Task:
    """The task of a model, by the name of its class and its configuration; an adapter has that of its base model."""
    if model is None:
        remedy = "Pass compute_loss_func=OrderedLossFunc(task, ...) beside model_init."
        raise ArgumentError(message("OrderedTrainer", "model", "be given to know its task", None, remedy))
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(base).__name__, getattr(base, "config", None)
    found = [task for task in TASKS.values() if name.endswith(task.endings)]
    if not found:
        raise ArgumentError(_unknown(name))
    names = [task.name for task in found]
    if "multi_label" in names:
        return TASKS[_kind_of_labels(config)]
    if "seq2seq" in names and (len(names) == 1 or getattr(config, "is_encoder_decoder", False)):
        return TASKS["seq2seq"]
    if name in UNSHIFTED:
        return TASKS["token"]
    if found[0].name == "segmentation":
        named = getattr(config, "semantic_loss_ignore_index", getattr(config, "loss_ignore_index", 255))
        return replace(found[0], ignored=named)
    return found[0]


def _kind_of_labels(config: Any) -> str:
    """As models themselves have it; float labels of several classes are found out from the first batch."""
    problem = getattr(config, "problem_type", None)
    if problem == "regression" or (problem is None and getattr(config, "num_labels", 2) == 1):
        return "regression"
    return "multi_label" if problem == "multi_label_classification" else "sequence"


def _unknown(name: str) -> str:
    for end, why in UNSUPPORTED.items():
        if name.endswith(end):
            rule, remedy = "have one loss per sample, token or pixel", "Train this kind of model with Trainer."
            return message("OrderedTrainer", "the model", rule, f"{name}, whose loss {why}", remedy)
    endings = dict.fromkeys(end for task in TASKS.values() for end in task.endings)
    remedy = f"Pass compute_loss_func=OrderedLossFunc(task, ...), with one of the tasks {', '.join(TASKS)}."
    return message("OrderedTrainer", "the model's name", f"end in {', '.join(endings)}", name, remedy)
