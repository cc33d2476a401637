"""What the ranks compute, and which of it belongs to which job."""

from dataclasses import dataclass
from itertools import product
from typing import Any

# Samples of each rank; a job of two ranks takes the first two.
LAYOUTS = {"equal": (8, 8, 8), "uneven": (5, 11, 2), "empty": (0, 12, 6), "single": (1, 9, 1)}


@dataclass(frozen=True)
class Case:
    """Three gradients of a model over ranks against one process."""

    layout: str
    q: float
    wrapper: str = "ddp"
    engine: str = "dense"
    parts: int = 0  # micro-batches of each rank; 0: one batch
    data: str = "random"
    options: tuple[tuple[str, Any], ...] = ()  # of the wrapper
    kind: str = "quick"  # which job runs it

    @property
    def sizes(self) -> tuple[int, ...]:
        return LAYOUTS[self.layout]

    def __str__(self) -> str:
        parts = f", {self.parts} parts" if self.parts else ""
        options = "".join(f", {name}" for name, _ in self.options)
        return f"{self.wrapper} {self.engine}, {self.layout}, {self.data}, q={self.q}{parts}{options}"


@dataclass(frozen=True)
class Run:
    """A function of `runs.py`."""

    name: str
    arguments: tuple[Any, ...] = ()
    kind: str = "quick"

    def __str__(self) -> str:
        return " ".join(map(str, (self.name, *self.arguments)))


ENGINES = ("rows", "twopass", "auto")
DATA = ("random", "tied", "one rank")
WRAPPERS = ("ddp", "fsdp")
OPTIONS = [((name, True),) for name in ("static_graph", "find_unused_parameters", "gradient_as_bucket_view")]


def quick_if(yes: bool) -> str:
    return "quick" if yes else "slow"


# The quick job: every engine, wrapper and kind of batch at least once. The slow one: every combination.
CASES = [
    *(Case(layout, 5, data=data) for layout, data in product(LAYOUTS, DATA)),
    *(Case(layout, q, kind=quick_if(layout == "uneven")) for layout, q in product(LAYOUTS, (1, 0.25, 1.0))),
    *(Case(layout, 4, wrapper, engine, kind=quick_if(layout in ("uneven", "empty")))
      for layout, wrapper, engine in product(LAYOUTS, WRAPPERS, ("ordered_mean", "OrderedLoss"))),
    *(Case(layout, 5, engine="twopass", data=data, kind=quick_if(data == "random" or layout == "empty"))
      for layout, data in product(LAYOUTS, DATA)),
    *(Case(layout, 5, engine="rows", data=data, kind=quick_if((layout, data) == ("uneven", "random")))
      for layout, data in product(LAYOUTS, DATA)),
    *(Case(layout, 5, engine="auto", kind=quick_if(layout == "uneven")) for layout in LAYOUTS),
    *(Case(layout, 5, "fsdp", data=data, kind=quick_if(data == "random" or layout == "empty"))
      for layout, data in product(LAYOUTS, DATA)),
    *(Case(layout, 5, "fsdp", engine, kind=quick_if(layout == "uneven"))
      for layout, engine in product(LAYOUTS, ENGINES)),
    *(Case(layout, 5, "fsdp", "twopass", data=data, kind=quick_if(layout == "empty"))
      for layout, data in product(LAYOUTS, DATA[1:])),
    *(Case(layout, q, wrapper, parts=3, kind=quick_if(layout in ("uneven", "empty")))
      for layout, wrapper, q in product(LAYOUTS, WRAPPERS, (5, 1.0))),
    *(Case(layout, 2, wrapper, parts=3, data="one rank", kind=quick_if(layout == "equal"))
      for layout, wrapper in product(LAYOUTS, WRAPPERS)),
    *(Case(layout, 5, engine=engine, parts=2, kind="slow") for layout, engine in product(LAYOUTS, ENGINES)),
    *(Case("uneven", 5, engine=engine, options=options, kind=quick_if(engine == "twopass"))
      for engine, options in product(("dense", "twopass", "rows"), OPTIONS)),
    *(Case("uneven", 5, parts=2, options=options) for options in OPTIONS[1:]),
]  # fmt: skip
RUNS = [
    Run("fifty_steps", ("ddp", "dense", "accuracy", False)),
    Run("fifty_steps", ("ddp", "twopass", "loss mass", False), "slow"),
    Run("fifty_steps", ("fsdp", "dense", "accuracy", False), "slow"),
    Run("fifty_steps", ("fsdp", "twopass", "accuracy", False)),
    Run("fifty_steps", ("fsdp", "rows", "loss mass", False), "slow"),
    Run("fifty_steps", ("ddp", "dense", "accuracy", True), "slow"),
    Run("fifty_steps", ("fsdp", "dense", "loss mass", True)),
    Run("fifty_steps", ("ddp", "rows", "accuracy", False), "slow"),
    Run("another_number_of_ranks"),
    *(Run("not_finite", how) for how in (("ddp", "dense", False), ("fsdp", "twopass", False), ("fsdp", "dense", True))),
    *(Run("not_finite", how, "slow") for how in (("ddp", "twopass", False), ("ddp", "dense", True),
                                                 ("fsdp", "dense", False))),
    Run("not_finite", ("ddp", "rows", False), "slow"),
    Run("collectives"),
    Run("a_rank_that_finds_a_coupling", ("ddp", "twopass")),
    Run("a_rank_that_finds_a_coupling", ("fsdp", "twopass")),
    Run("a_rank_that_finds_a_coupling", ("ddp", "rows"), "slow"),
    Run("same_masks", ("ddp", "twopass", False)),
    Run("same_masks", ("fsdp", "twopass", False)),
    Run("same_masks", ("ddp", "dense", True)),
    Run("same_masks", ("ddp", "rows", False), "slow"),
    Run("wide_model", ("rows",), "slow"),
    Run("wide_model", ("auto",), "slow"),
    Run("batch_norm", ("ddp", "auto")),
    Run("batch_norm", ("ddp", "twopass")),
    Run("batch_norm", ("fsdp", "rows")),
    Run("batch_norm", ("ddp", "rows"), "slow"),
    Run("random_control"),
    Run("loss_with_a_rule"),
    Run("masked_units"),
    *(Run("ignored_targets", how) for how in (("ddp", "dense", False), ("ddp", "twopass", True))),
    Run("ignored_targets", ("fsdp", "twopass", False), "slow"),
    *(Run("ordered_by", how) for how in (("ddp", "dense", True), ("ddp", "twopass", False))),
    *(Run("ordered_by", how, "slow") for how in (("ddp", "rows", False), ("fsdp", "twopass", False))),
    Run("tokens_of_a_head"),
    Run("refusals"),
    Run("disagreements"),
    Run("recurrent_model"),
    Run("room_is_learnt"),
    Run("sharded_state"),
    Run("remembered_by_rank"),
    Run("each_rank_by_itself", ("twopass",)),
    Run("each_rank_by_itself", ("rows",), "slow"),
    Run("selective_loop", ("before",)),
    Run("selective_loop", ("after",), "slow"),
    Run("selective_blocks", ("before",), "slow"),
    Run("selective_blocks", ("after",), "slow"),
]  # fmt: skip
