"""`osgd q`: what a choice of q means."""

from typing import Any

import click

from ordered_sgd.cli.options import Counts, json_option, show


def meaning(n: int | None, s: int, q: int) -> dict[str, Any]:
    """One row of the answer; without n, in the limit of many samples."""
    from ordered_sgd import theory

    row: dict[str, Any] = {"q": q, "share": q / s}
    size = theory.effective_sample_size(n, s, q)
    if n is not None:
        row["effective_samples"] = round(size)
    row["effective_share"] = size / (n or 1)
    row["cvar_level"] = theory.equivalent_cvar_level(s, q)
    row["hardest_1_percent"] = theory.share_of_hardest(0.01, n, s, q)
    row["hardest_10_percent"] = theory.share_of_hardest(0.10, n, s, q)
    return row


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--n", type=int, default=None, help="Samples in all; without it, the limit of many samples.")
@click.option("--s", type=int, default=64, show_default=True, help="Samples in a mini-batch.")
@click.option("--q", "qs", type=Counts(), default=None, help="Samples kept, e.g. 32,16; s, s/2 ... s/16 if not given.")
@json_option
def command(n: int | None, s: int, qs: tuple[int, ...] | None, as_json: bool) -> None:
    """What a choice of q means.

    Ordered SGD minimises a weighted mean of the losses in which hard samples count more. For each q:
    how many samples effectively carry the gradient (effective samples, and as a share of all), the share of the
    hardest samples whose plain mean comes closest to the same objective (CVaR level), and how much of the gradient's
    weight the hardest 1 % and 10 % of the samples receive. Smaller q listens to fewer, harder samples.
    """
    from ordered_sgd.theory.weights import check_nsq, check_sq

    if n is None:
        check_sq("osgd q", s, 1)
    else:
        check_nsq("osgd q", n, s, 1)
    if qs is None:
        qs = tuple(dict.fromkeys(max(1, s // d) for d in (1, 2, 4, 8, 16)))
    for q in qs:
        check_sq("osgd q", s, q)
    samples = "many samples" if n is None else f"n = {n:,}"
    show([meaning(n, s, q) for q in qs], title=f"{samples}, mini-batches of s = {s}", as_json=as_json)
