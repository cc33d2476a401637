"""Which modules of a LightningModule compute kept samples only, and why others do not."""

import logging
import re
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.xdist_group("trainers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:It is recommended to use .*sync_dist=True"),  # of DDP on one rank
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # of a tensor that comes from another module
]
PARTNER = "lightning"  # what the fixtures `parts` and `leaf` import
SLOW = pytest.mark.slow
KEPT, COMPILED = "only kept samples", "whole batches: the model is compiled without selective_backward"


@pytest.mark.parametrize(
    ("kind", "options", "ran"),
    [
        ("BySelf", {"strategy": "ddp", "devices": 1}, KEPT),
        ("LossInside", {"precision": "bf16-mixed"}, KEPT),
        ("Composite", {"criterion": "criterion.ce"}, KEPT),
        ("CompiledPart", {}, COMPILED),
        ("WithBatchNorm", {}, "whole batches: .*takes statistics over the batch"),
        pytest.param("CompiledOutside", {}, COMPILED, marks=SLOW),
        pytest.param("BySelf", {"accumulate_grad_batches": 2}, KEPT, marks=SLOW),
        pytest.param("PartAndWhole", {}, KEPT, marks=SLOW),
        pytest.param("Adversaries", {}, KEPT, marks=SLOW),
    ],
)
def test_the_weights_are_those_of_whole_backward_passes(
    kind: str, options: dict[str, Any], ran: str, parts: Any, leaf: Any, request: pytest.FixtureRequest
) -> None:
    from tests.integrations import lightning_modules

    if "strategy" in options:
        request.getfixturevalue("one_rank")
    options = dict(options)
    criterion, weights = options.pop("criterion", "criterion"), []
    for selective in (False, True):
        torch.manual_seed(0)
        model = getattr(lightning_modules, kind)()
        before = [part._compiled_call_impl for part in model.modules()]
        callback = leaf.OrderedCallback(q=3, criterion=criterion, selective=selective)
        trainer = parts.fit(model, callback, epochs=1, **options)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert [part._compiled_call_impl for part in model.modules()] == before
        assert "training_step" not in vars(model)
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-6)
    assert re.fullmatch(ran, callback.backward_ran)
    assert trainer.callback_metrics["ordered/computed"].item() == (0.375 if ran == KEPT else 1)


def test_the_trainer_says_once_what_ran(parts: Any, leaf: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero")
    callback = leaf.OrderedCallback(q=0.25)
    parts.fit(parts.Net(nn.CrossEntropyLoss()), callback)
    said = [record.getMessage() for record in caplog.records if "OrderedCallback" in record.getMessage()]
    assert said == ["OrderedCallback: backward passes compute only kept samples"]


def test_the_module_is_plain_again_after_an_error(parts: Any, leaf: Any) -> None:
    class Failing(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            loss = super().training_step(batch, index)
            if index == 2:
                raise RuntimeError("by the user")
            return loss

    model, callback = Failing(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=3)
    with pytest.raises(RuntimeError, match="by the user"):
        parts.fit(model, callback)
    assert callback.backward_ran == KEPT
    assert all(part._compiled_call_impl is None for part in model.modules())
    assert "training_step" not in vars(model)
    assert isinstance(model.criterion, nn.CrossEntropyLoss)


def test_sharded_compiled_and_synchronized_modules_run_whole_with_a_reason(
    parts: Any, leaf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(model: Any) -> Any:
        callback = leaf.OrderedCallback(q=3)
        parts.fit(model, callback, epochs=1)
        return callback.backward_ran

    def plain() -> Any:
        return parts.Net(nn.CrossEntropyLoss())

    synchronized = plain()
    synchronized.net = nn.Sequential(nn.SyncBatchNorm(6), synchronized.net)
    assert ran(synchronized) == "whole batches: SyncBatchNorm couples the samples of all ranks"
    assert ran(torch.compile(plain(), backend="eager")) == "whole batches: the LightningModule is compiled"
    monkeypatch.setattr(
        leaf, "SingleDeviceStrategy", leaf.DDPStrategy
    )  # FSDP needs a GPU: any unknown one stands for it
    assert ran(plain()) == "whole batches: the strategy is SingleDeviceStrategy"


def test_of_two_callbacks_the_first_finds_the_modules(parts: Any, leaf: Any) -> None:
    class Two(parts.Net):
        def __init__(self) -> None:
            super().__init__(nn.CrossEntropyLoss())
            self.other = nn.CrossEntropyLoss()

        def training_step(self, batch: Any, index: int) -> Any:
            outputs = self.net(batch[0])
            return self.criterion(outputs, batch[1]) + self.other(outputs, batch[1])

    model = Two()
    callbacks = [leaf.OrderedCallback(q=3), leaf.OrderedCallback(q=2, criterion="other")]
    trainer = parts.fit(model, *callbacks, epochs=1)
    assert [callback.backward_ran for callback in callbacks] == [KEPT, KEPT]
    assert trainer.callback_metrics["ordered/computed"].item() < 0.5
