"""`selective_backward` on models in DistributedDataParallel, and on unmodified models of Transformers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import explain_backward, ordered_mean, selective_backward

IDS, LABELS = torch.arange(12 * 16).view(12, 16) % 99, torch.arange(12) % 2
SLOW = pytest.mark.slow  # what a checkpoint does has a short test beside the models
DDP = nn.parallel.DistributedDataParallel


def assert_same_gradients(model: nn.Module, plain: nn.Module) -> None:
    """Relative to the largest gradient of all: those of keys' biases are rounding alone."""
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
    found = [(a, b) for a, b in pairs if a is not None and b is not None]
    assert len(found) == len([b for _, b in pairs if b is not None])
    assert max(float((a - b).abs().max()) for a, b in found) < 1e-6 * max(float(b.abs().max()) for _, b in found)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("wrap", [lambda m: DDP(selective_backward(m)), lambda m: selective_backward(DDP(m))])
def test_a_model_may_be_wrapped_before_or_after(wrap: Callable[[nn.Module], nn.Module]) -> None:
    x, y = torch.randn(12, 6), torch.arange(12) % 3
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.load_state_dict(plain.state_dict())
    wrapped = wrap(model)
    for one in (plain, wrapped):
        ordered_mean(F.cross_entropy(one(x), y, reduction="none"), q=3).backward()
    assert_same_gradients(model, plain)
    assert explain_backward(wrapped).rows == 3


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=99, max_position_embeddings=32, **sizes)
    return transformers.BertForSequenceClassification(config).train()


def run(model: Any, seed: int, **inputs: Tensor) -> None:
    model.zero_grad()
    torch.manual_seed(seed)
    logits = model(input_ids=IDS, **inputs).logits
    ordered_mean(F.cross_entropy(logits, LABELS, reduction="none"), q=3).backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where a graph breaks
@pytest.mark.xdist_group("trainers")
@pytest.mark.parametrize(  # with labels the model computes a loss of its own, without use
    ("labelled", "checkpointing"),
    [(True, False), *(pytest.param(*both, marks=SLOW) for both in ((False, False), (False, True), (True, True)))],
)
def test_a_model_of_transformers_skips_samples(labelled: bool, checkpointing: bool) -> None:
    plain, model = bert(), bert()
    selective_backward(model)
    inputs = {"labels": LABELS} if labelled else {}
    for seed in range(2):
        for one in (plain, model):
            if checkpointing:
                one.gradient_checkpointing_enable()
            run(one, seed, **inputs)
        assert_same_gradients(model, plain)
    report = explain_backward(model)
    graphs = 2 if checkpointing else 1
    assert report.skipping == report.passes == 2 * graphs
    assert (report.rows, report.samples) == (6 * graphs, 24 * graphs)
    assert report.reasons == {}
