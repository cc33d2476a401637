"""`osgd q`: what a choice of q means."""

from typing import Any

import click

from ordered_sgd.lab.cli.options import Q, json_option, kept, show

# A forward pass over the whole batch is about a third of a step (Figures of `osgd bench step`), and is never saved.
FORWARD = 1 / 3
LIMIT_FROM = 10**7  # samples from which the limit of many is taken: it differs by less than the digits shown


def meaning(n: int | None, s: int, q: int) -> dict[str, Any]:
    """One row of the answer; without n, in the limit of many samples."""
    from ordered_sgd import theory

    finite = n if n is not None and n <= LIMIT_FROM else None
    row: dict[str, Any] = {"q": q, "share": q / s}
    size = theory.effective_sample_size(finite, s, q) / (finite or 1)
    if n is not None:
        row["effective_samples"] = round(size * n)
    row["effective_share"] = size
    row["cvar_level"] = theory.equivalent_cvar_level(s, q)
    row["hardest_1_percent"] = theory.share_of_hardest(0.01, finite, s, q)
    row["hardest_10_percent"] = theory.share_of_hardest(0.10, finite, s, q)
    row["time_saved"] = (1 - FORWARD) * (1 - q / s)
    return row


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--n", type=int, default=None, help="Samples in all; without it, the limit of many samples.")
@click.option("--s", type=int, default=64, show_default=True, help="Samples in a mini-batch.")
@click.option(
    "--q", "qs", type=Q(), multiple=True, help="Samples kept, a count or a share; may be repeated. Default: s to s/16."
)
@json_option
def command(n: int | None, s: int, qs: tuple[float, ...], as_json: bool) -> None:
    """What a choice of q means.

    Ordered SGD minimises a weighted mean of the losses in which hard samples count more. For each q:
    how many samples effectively carry the gradient (effective samples, and as a share of all), the share of the
    hardest samples whose plain mean comes closest to the same objective (CVaR level), and how much of the gradient's
    weight the hardest 1 % and 10 % of the samples receive. Smaller q listens to fewer, harder samples.
    Time saved is the share of a plain SGD step that is expected to fall away with an engine that back-propagates
    the kept samples only, where the step is large and its forward pass a third of it; measure yours: osgd bench step.
    """
    from ordered_sgd.theory.weights import check_nsq, check_sq

    if n is None:
        check_sq("osgd q", s, 1)
    else:
        check_nsq("osgd q", n, s, 1)
    counts = [kept(q, s, "osgd q") for q in qs] or list(dict.fromkeys(max(1, s // d) for d in (1, 2, 4, 8, 16)))
    samples = "many samples" if n is None else f"n = {n:,}"
    show([meaning(n, s, q) for q in counts], title=f"{samples}, mini-batches of s = {s}", as_json=as_json)
