"""Tiny models of every task in the table of integrations/_tasks.py, with rows that have ignored labels and padding."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Generator, Tensor

transformers.logging.set_verbosity_error()
LENGTH, WORDS, CLASSES, SIDE = 8, 23, 3, 16
BERT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": LENGTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": CLASSES,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "vocab_size": WORDS}
BART: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "num_labels": CLASSES,
    **SPECIAL,
}
T5 = {"d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0, **SPECIAL}
IMAGE = {k: v for k, v in BERT.items() if "num" in k or "size" in k} | {"image_size": SIDE, "patch_size": 8}
IMAGE = {k: v for k, v in IMAGE.items() if k != "vocab_size"}
SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [8, 8, 8, 8],
    "num_attention_heads": [1, 1, 1, 1],
    "decoder_hidden_size": 8,
    "sr_ratios": [1, 1, 1, 1],
    "num_labels": CLASSES,
    "drop_path_rate": 0.0,
    "classifier_dropout_prob": 0.0,
}
SPEECH = {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "num_mel_bins": 8, "max_length": 16}
WHISPER = BART | {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}

Row = dict[str, Tensor]


@dataclass(frozen=True)
class TaskModel:
    """A model by the names of its classes, the task that it has, and how a row is drawn."""

    task: str
    model: str
    config: str
    sizes: dict[str, Any]
    row: Callable[[Generator], Row]


def draw(g: Generator, count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape, generator=g)


def text(g: Generator) -> Row:
    """A sequence of 3 to 8 words, and padding."""
    mask = (torch.arange(LENGTH) < 3 + draw(g, LENGTH - 2)).long()
    return {"input_ids": (3 + draw(g, WORDS - 3, LENGTH)) * mask, "attention_mask": mask}


def sparse(g: Generator, labels: Tensor) -> Tensor:
    """The labels, two of three at random ignored; never all."""
    ignored = draw(g, 3, *labels.shape) > 0
    ignored[0] = False
    return labels.masked_fill(ignored, -100)


def of_class(g: Generator) -> Row:
    return {**text(g), "labels": draw(g, CLASSES)}


def of_floats(g: Generator) -> Row:
    return {**text(g), "labels": draw(g, 2, CLASSES).float()}


def of_number(g: Generator) -> Row:
    return {**text(g), "labels": torch.randn((), generator=g)}


def of_numbers(g: Generator) -> Row:
    return {**text(g), "labels": torch.randn(CLASSES, generator=g)}


def of_choices(g: Generator) -> Row:
    texts = [text(g), text(g)]
    return {name: torch.stack([t[name] for t in texts]) for name in texts[0]} | {"labels": draw(g, 2)}


def of_pair(g: Generator) -> Row:
    return {**text(g), "labels": draw(g, 2)}


def of_masked(g: Generator) -> Row:
    return {**text(g), "labels": sparse(g, draw(g, WORDS, LENGTH))}


def of_token_classes(g: Generator) -> Row:
    return {**text(g), "labels": sparse(g, draw(g, CLASSES, LENGTH))}


def of_next(g: Generator) -> Row:
    row = text(g)
    return {**row, "labels": row["input_ids"].masked_fill(row["attention_mask"] == 0, -100)}


def target(g: Generator) -> Tensor:
    """A text of 2 to 6 words to be written, and ignored labels."""
    words = 3 + draw(g, WORDS - 3, 6)
    return words.masked_fill(torch.arange(6) >= 2 + draw(g, 5), -100)


def of_translation(g: Generator) -> Row:
    return {**text(g), "labels": target(g)}


def of_span(g: Generator) -> Row:
    """An answer inside the text, or one that was cut off: both ends lie beyond, as some scripts have it."""
    start, end = draw(g, LENGTH), draw(g, LENGTH)
    cut = int(draw(g, 4)) == 0
    return {**text(g), "start_positions": start + 50 * cut, "end_positions": end + 50 * cut}


def of_image(g: Generator) -> Row:
    return {"pixel_values": torch.randn(3, SIDE, SIDE, generator=g), "labels": draw(g, CLASSES)}


def of_pixels(g: Generator, ignored: int = 255) -> Row:
    labels = draw(g, CLASSES, SIDE, SIDE)
    labels[: int(draw(g, SIDE))] = ignored
    return {"pixel_values": torch.randn(3, SIDE, SIDE, generator=g), "labels": labels}


def of_sound(g: Generator) -> Row:
    return {"input_values": torch.randn(16, 8, generator=g), "labels": draw(g, CLASSES)}


def of_speech(g: Generator) -> Row:
    return {"input_features": torch.randn(8, 16, generator=g), "labels": target(g)}


def _bert(task: str, kind: str, row: Callable[[Generator], Row], **sizes: Any) -> TaskModel:
    return TaskModel(task, f"BertFor{kind}", "BertConfig", BERT | sizes, row)


_SORTS = functools.partial(_bert, kind="SequenceClassification")
TASK_MODELS = {
    "Bert, a class": _SORTS("sequence", row=of_class),
    "Bert, several labels": _SORTS("multi_label", row=of_floats, problem_type="multi_label_classification"),
    "Bert, several labels, not said": _SORTS("sequence", row=of_floats),
    "Bert, a number": _SORTS("regression", row=of_number, num_labels=1),
    "Bert, numbers": _SORTS("regression", row=of_numbers, problem_type="regression"),
    "Bert, a choice": _bert("sequence", "MultipleChoice", of_choices),
    "Bert, the next sentence": _bert("sequence", "NextSentencePrediction", of_pair),
    "ViT": TaskModel("sequence", "ViTForImageClassification", "ViTConfig", IMAGE, of_image),
    "AST": TaskModel("sequence", "ASTForAudioClassification", "ASTConfig", IMAGE | SPEECH, of_sound),
    "Bert, tokens": _bert("token", "TokenClassification", of_token_classes),
    "Bert, masked": _bert("token", "MaskedLM", of_masked),
    "Bart, causal": TaskModel("token", "BartForCausalLM", "BartConfig", BART, of_next),
    "GPT2": TaskModel(
        "causal",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        | {"attn_pdrop": 0.0, "vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0},
        of_next,
    ),
    "T5": TaskModel("seq2seq", "T5ForConditionalGeneration", "T5Config", T5, of_translation),
    "Bart": TaskModel("seq2seq", "BartForConditionalGeneration", "BartConfig", BART, of_translation),
    "MBart, which wraps": TaskModel("seq2seq", "MBartForConditionalGeneration", "MBartConfig", BART, of_translation),
    "M2M100, which shifts inside": TaskModel(
        "seq2seq", "M2M100ForConditionalGeneration", "M2M100Config", BART, of_translation
    ),
    "Whisper, which shifts inside": TaskModel(
        "seq2seq", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, of_speech
    ),
    "Bert, answers": _bert("question_answering", "QuestionAnswering", of_span, num_labels=2),
    "Bart, answers": TaskModel(
        "question_answering", "BartForQuestionAnswering", "BartConfig", BART | {"num_labels": 2}, of_span
    ),
    "Segformer": TaskModel("segmentation", "SegformerForSemanticSegmentation", "SegformerConfig", SEGFORMER, of_pixels),
    "Segformer, class 0 ignored": TaskModel(
        "segmentation",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        SEGFORMER | {"semantic_loss_ignore_index": 0},
        functools.partial(of_pixels, ignored=0),
    ),
}


def model_of(name: str) -> Any:
    """The model with weights that tell inputs apart, the same at every call; BatchNorm would couple samples."""
    torch.manual_seed(0)
    case = TASK_MODELS[name]
    model = getattr(transformers, case.model)(getattr(transformers, case.config)(**case.sizes))
    if hasattr(model, "decode_head"):
        model.decode_head.batch_norm = torch.nn.GroupNorm(1, 8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def rows_of(name: str, n: int = 8) -> list[Row]:
    g = torch.Generator().manual_seed(1)
    return [TASK_MODELS[name].row(g) for _ in range(n)]


def batch_of(name: str, n: int = 8) -> Row:
    rows = rows_of(name, n)
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
