import pytest

from ordered_sgd.errors import OrderedSGDError
from ordered_sgd.lab.bench.gloo import on_ranks


@pytest.mark.slow
def test_what_a_rank_dies_of_is_told_and_the_others_do_not_wait_for_it() -> None:
    # rank 1 waits for a message that never comes
    call = "timing.every(1 // (1 - gloo.dist.get_rank()), int) and gloo.dist.barrier()"
    with pytest.raises(OrderedSGDError, match=r"osgd bench: every rank must finish; got .*by zero"):
        on_ranks(2, call)
