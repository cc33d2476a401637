"""When a batch is scored whole to measure the recall."""

import numpy as np
import torch

from ordered_sgd.engines.audits import Audits, audits_of, stretch_of


def test_each_stretch_has_one_audit_and_every_step_of_it_the_same_chance() -> None:
    audits, generator = Audits(), torch.Generator().manual_seed(0)
    found = np.zeros((4000, 5))
    for stretch in found:
        assert audits.left == 0
        audits.begin(5, generator)
        stretch[:] = [audits.due() for _ in range(5)]
    assert set(found.sum(1)) == {1}
    assert np.abs(found.mean(0) - 0.2).max() < 4 * (0.2 * 0.8 / 4000) ** 0.5


def test_an_epoch_has_about_as_many_audits_as_there_are_steps_between_them() -> None:
    for steps in (16, 64, 938, 10**6):
        assert abs(stretch_of(steps) - steps / stretch_of(steps)) <= 1
        assert audits_of(steps) == max(8, steps // stretch_of(steps))


def test_a_saved_stretch_goes_on() -> None:
    for cut in range(1, 6):
        first, second = Audits(), Audits()
        first.begin(6, torch.Generator().manual_seed(cut))
        for _ in range(cut):
            first.due()
        second.load_state_dict(first.state_dict())
        assert [first.due() for _ in range(first.left)] == [second.due() for _ in range(second.left)]
