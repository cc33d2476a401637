"""`osgd gamma`: the weights of the ranks, as numbers and as a figure."""

from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.options import Counts, Q, json_option, kept, show

MOST = 10**8  # samples: all weights are in memory


def summary(n: int, s: int, q: int) -> dict[str, Any]:
    """The weights of one (n, s, q) in a few numbers."""
    import numpy as np

    from ordered_sgd import theory

    weights = theory.gamma_weights(n, s, q)
    ranks = np.arange(1, n + 1) / n
    limit = theory.gamma_limit(ranks, s, q)
    half = int(np.searchsorted(-weights, -s / n / 2, side="right"))
    return {
        "n": n,
        "s": s,
        "q": q,
        "largest_weight": float(weights[0]),
        "half_weight_rank": half,
        "nonzero_ranks": n - s + q,
        "effective_samples": float(q**2 / np.sum(weights**2)),
        "distance_from_limit": float(np.max(np.abs(n * weights - limit)) / s),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--n", "ns", type=Counts(), default=None, help="Samples in all, one or several: 200,1000.")
@click.option("--s", type=int, default=None, help="Samples in a mini-batch.")
@click.option("--q", type=Q(), default=None, help="Samples kept of it: a count, or a share such as 0.25.")
@click.option("--figure2", is_flag=True, help="The paper's Figure 2: three panels in one file.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    show_default="gamma, or figure2 with --figure2",
    help="Figure files, without suffix.",
)
@click.option("--no-figure", is_flag=True, help="Only the numbers.")
@json_option
def command(
    ns: tuple[int, ...] | None,
    s: int | None,
    q: float | None,
    figure2: bool,
    out: Path | None,
    no_figure: bool,
    as_json: bool,
) -> None:
    """The weights gamma_j of the ranks, as numbers and a figure.

    The sample with the j-th largest loss of n is kept with probability gamma_j when s are drawn and q kept. Draws
    n gamma_j against j/n with its limit for large n, as PNG and SVG.
    """
    given = [ns, s, q]
    if figure2 and any(value is not None for value in given):
        raise click.UsageError("--figure2 must be used without --n, --s and --q; got both.")
    if not figure2 and any(value is None for value in given):
        raise click.UsageError("--n, --s and --q must be given together; got fewer. For the paper's figure: --figure2.")
    from ordered_sgd.lab.report.figure2 import FIGURE_2, draw_gamma
    from ordered_sgd.theory.weights import check_nsq, check_sq

    panels = FIGURE_2
    if not figure2:
        assert s is not None
        assert q is not None
        assert ns is not None
        check_sq("osgd gamma", s, 1)
        panels = [(s, kept(q, s, "osgd gamma"), ns)]
    for panel_s, panel_q, panel_ns in panels:
        for n in panel_ns:
            check_nsq("osgd gamma", n, panel_s, panel_q)
            if n > MOST:
                remedy = "The limit of many samples is the same to seven digits."
                raise ArgumentError(message("osgd gamma", "n", f"be at most {MOST:,}", f"{n:,}", remedy))
    rows = [summary(n, panel_s, panel_q) for panel_s, panel_q, panel_ns in panels for n in panel_ns]
    show(rows, title="weights gamma_j by rank of the loss, largest first", as_json=as_json)
    if no_figure:
        return
    from ordered_sgd.lab.report.canvas import save

    for path in save(draw_gamma(panels), out or Path("figure2" if figure2 else "gamma")):
        click.echo(f"written: {path}", err=True)
