"""What models of Transformers are trained on: which of their outputs is compared with which labels, and by what loss.

`TASKS` is the table. `task_of` finds a model's row by the name of its class and by its configuration. Needs nothing but
torch.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.integrations._compared import (
    IGNORED,
    BothEnds,
    Compared,
    PerSample,
    Squares,
    every_label,
    next_tokens,
    numbers,
    pixels,
    samples,
    spans,
    tokens,
)

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """How the losses of one kind of model are computed.

    Attributes
    ----------
    name
        What `OrderedLossFunc` calls the task.
    endings
        How the names of these models' classes end.
    when
        What else must be true, in words.
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
    _: KW_ONLY
    when: str = ""
    unit: str
    labels: str
    compare: Callable[[Any, Tensor, int], Compared]
    criterion: Callable[[int], nn.Module]
    head: bool = False
    relabel: Callable[[Inputs, int], Inputs] = lambda inputs, _: inputs
    decoder: Callable[[Any, Inputs], Inputs] = lambda model, inputs: {}
    ignored: int = IGNORED


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

TASKS = {
    task.name: task
    for task in (
        Task(
            "sequence",
            (*_CLASSIFIERS, "ForMultipleChoice", "ForNextSentencePrediction"),
            unit="sample",
            labels="a class (s,)",
            compare=samples,
            criterion=lambda _: PerSample(),
        ),
        Task(
            "multi_label",
            _CLASSIFIERS,
            when='`problem_type="multi_label_classification"`, or float labels (s, C)',
            unit="sample",
            labels="0 or 1 for every class, floats (s, C); a sample's loss is the mean over the classes",
            compare=every_label,
            criterion=lambda _: PerSample(),
        ),
        Task(
            "regression",
            _CLASSIFIERS,
            when='`problem_type="regression"`, or `num_labels=1`',
            unit="sample",
            labels="numbers (s,) or (s, C); a sample's loss is its mean squared error",
            compare=numbers,
            criterion=lambda _: Squares(),
        ),
        Task(
            "token",
            ("ForTokenClassification", "ForMaskedLM"),
            unit="token",
            labels="classes or words (s, T)",
            compare=tokens,
            criterion=_cross_entropy,
            head=True,
        ),
        Task(
            "causal",
            ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"),
            when="not an encoder-decoder",
            unit="token",
            labels="words (s, T), shifted so that each token predicts the next",
            compare=next_tokens,
            criterion=_cross_entropy,
            head=True,
        ),
        Task(
            "seq2seq",
            ("ForConditionalGeneration", "EncoderDecoderModel", "ForSpeechToText", "ForTextToText"),
            when="an encoder-decoder",
            unit="token",
            labels="words (s, T), not shifted; the decoder's inputs are made from them unless the batch has them",
            compare=tokens,
            criterion=_cross_entropy,
            head=True,
            decoder=_decoder_inputs,
        ),
        Task(
            "question_answering",
            ("ForQuestionAnswering", "ForQuestionAnsweringSimple"),
            unit="sample",
            labels="`start_positions` and `end_positions` (s,); a sample's loss is the mean of both cross-entropies, "
            "0 for an end that was cut off",
            compare=spans,
            criterion=lambda _: BothEnds(),
            relabel=_both_positions,
        ),
        Task(
            "segmentation",
            ("ForSemanticSegmentation",),
            unit="pixel",
            labels="classes (s, H, W); `semantic_loss_ignore_index` of the configuration is ignored",
            compare=pixels,
            criterion=_cross_entropy,
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
