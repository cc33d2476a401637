"""What `auto` runs, and that it has made up its mind after a few steps."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from ordered_sgd.engines import auto
from ordered_sgd.lab.models import LeNet
from ordered_sgd.selective import compiler
from tests.contracts.engine_checks import Listed

QS = (64, 32, 16, 8, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_ten_steps_with_each_q_nothing_is_compiled_or_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = LeNet(size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=Listed(QS))
    work: list[str] = []
    check = compiler.check_rows
    monkeypatch.setattr(compiler, "check_rows", lambda *given: (work.append("compare"), check(*given))[1])
    compiled = torch._dynamo.utils.counters["stats"]
    for q in QS:
        before: tuple[int, int] | None = None
        for number in range(20):
            record = step(torch.randn(64, 1, 16, 16), torch.randint(10, (64,)))
            if number == 9:
                before = compiled["unique_graphs"], len(work)
        assert record.q == q
        assert record.engine == ("dense" if q == 64 else "rows")
        assert (compiled["unique_graphs"], len(work)) == before
        step.end_epoch()
    assert work == ["compare"]  # one graph for every q, compared once


class Viewed(nn.Module):
    """Flattens by `view`, which images that are laid out channels-last do not allow."""

    def __init__(self, *extra: nn.Module) -> None:
        super().__init__()
        self.convolution, self.extra = nn.Conv2d(1, 8, 5), nn.Sequential(*extra)
        self.classifier = nn.Linear(8 * 6 * 6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.extra(self.convolution(x)).relu(), 2)
        scores: torch.Tensor = self.classifier(x.view(x.size(0), -1))
        return scores


def test_a_model_that_takes_a_view_of_its_convolution_trains_as_it_does_densely() -> None:
    x, y = torch.randn(32, 1, 16, 16), torch.randint(10, (32,))
    found = []
    for engine in ("auto", "dense"):
        torch.manual_seed(0)
        model = Viewed(nn.BatchNorm2d(8), nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=Listed((32, 8)), engine=engine)  # type: ignore[arg-type]
        step(x, y)
        found.append([value.clone() for value in model.state_dict().values()])
        step.end_epoch()
        step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # the look at it left no trace


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_state_that_is_loaded_leaves_the_choice_as_it_was() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 1, 16, 16), torch.randint(10, (64,))

    def made() -> OrderedStep:
        model = nn.Sequential(nn.Conv2d(1, 96, 5), nn.Dropout(0.1), nn.ReLU(), nn.Flatten(), nn.Linear(13824, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=16)

    step = made()
    step(x, y)
    assert step(x, y).engine == "rows"
    step.load_state_dict(step.state_dict())  # of the best epoch, say
    assert step(x, y).engine == "rows"
    later = made()
    later.model.eval()  # while a checkpoint is loaded
    later.load_state_dict(step.state_dict())
    later.model.train()
    assert later(x, y).engine == "rows"
    assert later.why == step.why


def test_batchnorm_in_training_runs_densely_and_a_warning_names_the_approximation() -> None:
    x, y = torch.randn(64, 1, 16, 16), torch.randint(10, (64,))
    found = []
    for engine in ("auto", "dense"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 96, 5), nn.BatchNorm2d(96), nn.ReLU(), nn.Flatten(), nn.Linear(13824, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=16, engine=engine)  # type: ignore[arg-type]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert [step(x, y).engine for _ in range(3)] == ["dense"] * 3
        said = [str(one.message) for one in caught if one.category is UserWarning]
        assert ['engine=Rows(batchnorm="full-batch")' in text for text in said] == [True] * (engine == "auto")
        found.append([value.clone() for value in model.state_dict().values()])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True))


def test_an_operation_that_cannot_be_counted_does_not_cost_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **named: object) -> int:
        raise AssertionError

    for name in list(auto.flop_registry):
        monkeypatch.setitem(auto.flop_registry, name, fails)
    model = nn.Linear(6, 4)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1), q=4)
    assert step(torch.randn(16, 6), torch.randint(4, (16,))).engine == "dense"


class Particular(nn.Module):
    """Refuses images that are laid out otherwise than it expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_contiguous()
        return self.layer(x).mean((2, 3))


def test_a_model_that_asserts_the_layout_of_its_images_gets_them_as_they_are() -> None:
    model = Particular()
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1), q=4)
    for _ in range(2):
        assert step(torch.randn(16, 3, 8, 8), torch.arange(16) % 4).q == 4


class Sentences(nn.Module):
    """Classifies sentences by the last state of a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase], **options: float) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 32), nn.Linear(64, 5)
        self.layer = kind(32, 64, batch_first=True, **options)  # type: ignore[arg-type, call-arg]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(self.embedding(x))[0][:, -1])
        return out


RECURRENT = [
    (nn.LSTM, {}, "twopass"),
    (nn.LSTM, {"num_layers": 2, "dropout": 0.3}, "twopass"),
    (nn.GRU, {}, "twopass"),
    (nn.GRU, {"num_layers": 2, "dropout": 0.3}, "dense"),
]


@pytest.mark.parametrize(("kind", "options", "engine"), RECURRENT)
def test_recurrent_layers_run_in_two_passes_with_the_dense_gradient(
    kind: type[nn.RNNBase], options: dict[str, float], engine: str
) -> None:
    found = []
    for one in ("auto", "dense"):
        torch.manual_seed(0)
        model = Sentences(kind, **options)
        step = OrderedStep(
            model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1), q=8, engine=one
        )
        torch.manual_seed(1)
        ran = [step(torch.randint(100, (32, 40)), torch.randint(5, (32,))).engine for _ in range(4)]
        found.append([*model.parameters()])
        if one == "auto":
            assert ran == ["dense", *[engine] * 3]  # the first step is counted
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


def test_two_passes_are_left_where_they_do_not_pay() -> None:
    torch.manual_seed(0)
    model = Sentences(nn.LSTM)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=Listed((8, 24, 8)))
    ran = []
    for _ in range(3):
        ran += [step(torch.randint(100, (32, 40)), torch.randint(5, (32,))).engine for _ in range(2)]
        step.end_epoch()
    assert ran == ["dense", "twopass", "dense", "dense", "twopass", "twopass"]
