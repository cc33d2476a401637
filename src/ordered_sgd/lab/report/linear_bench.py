"""What an epoch of the linear models costs, as tables: of a record of `osgd bench linear`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
MARK = "bench-linear"


def linear_bench_tables(record: Mapping[str, Any]) -> dict[str, Rows]:
    """Title to rows, as far as the record has them."""
    epochs: Sequence[Mapping[str, Any]] = record["epochs"]
    by_part = {part: [row for row in epochs if row["part"] == part] for part in (row["part"] for row in epochs)}
    tables = {}
    if "images" in by_part:
        tables["Logistic regression on MNIST, 60,000 x 784, s = 64"] = _images(by_part["images"])
    sparse = {part: rows for part, rows in by_part.items() if part.startswith("sparse")}
    if sparse:
        tables["Sparse rows, 20,000 x 50,000 with 50 non-zeros each, s = 64, momentum and L2"] = _sparse(sparse)
    growth = {part: rows for part, rows in by_part.items() if part.startswith("growth")}
    if growth:
        tables["Growth: regression on rows of 20 features, or of 20 non-zeros in 2,000 columns"] = _growth(growth)
    if record["reached"]:
        tables[f"Seconds to a test error of {record['target']:g} % on MNIST"] = _reached(record["reached"])
    return tables


def linear_bench_page(page: str, record: Mapping[str, Any]) -> str:
    """The Markdown page with its figures made anew from a record."""
    machine = record["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("scikit-learn", "numba", "torch"))
    how = f"{machine['processor']}, one thread, {versions}; medians of {record['rounds']} rounds, ± half the "
    how += "interquartile range."
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in linear_bench_tables(record).items()]
    return fill(page, MARK, [how, *parts])


def _images(rows: Sequence[Mapping[str, Any]]) -> Rows:
    seconds = {row["subject"]: row["seconds"] for row in rows}
    table = []
    for row in rows:
        name = row["subject"]
        line = {"what trains": "one read of the float32 array" if name == "stream" else name, "ms an epoch": _ms(row)}
        line["reads"] = f"{row['seconds'] / seconds['stream']:.1f}"
        ours = name.startswith(("uint8", "float32"))
        loop = f"torch, {name.partition(', ')[2]}"
        for head, other in (("SGDClassifier's time", "SGDClassifier, log_loss"), ("a torch loop's time", loop)):
            line[head] = f"{seconds[other] / row['seconds']:.1f}x" if ours else ""
        table.append(line)
    return table


def _sparse(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    table = []
    for part, rows in parts.items():
        by_name = {row["subject"]: row for row in rows}
        for name, row in by_name.items():
            if name.startswith("SGDClassifier"):
                continue
            loss, q = name.split(", ")
            theirs = by_name[f"SGDClassifier, {loss}"]
            cells = {"classes": part.split()[1], "loss": loss, "q": q.removeprefix("q = "), "ms an epoch": _ms(row)}
            cells |= {"SGDClassifier, ms": _ms(theirs), "its time": f"{theirs['seconds'] / row['seconds']:.2f}x"}
            table.append(cells)
    return table


def _growth(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> Rows:
    sizes = dict.fromkeys(row["subject"] for rows in parts.values() for row in rows)
    found = {(part, row["subject"]): row["seconds"] for part, rows in parts.items() for row in rows}
    return [
        {"rows": f"{int(n):,}"}
        | {f"{part.split(', ')[1]}, ns a row": f"{1e9 * found[part, n] / int(n):.0f}" for part in parts}
        for n in sizes
    ]


def _reached(rows: Sequence[Mapping[str, Any]]) -> Rows:
    return [
        {
            "method": row["method"],
            "budget": row["setting"],
            "seconds": f"{row['seconds']:.2f}",
            "test error, %": f"{row['error']:.2f}" + ("" if row["reached"] else " (not reached)"),
        }
        for row in rows
    ]


def _ms(row: Mapping[str, Any]) -> str:
    return f"{1000 * row['seconds']:.1f} ± {500 * (row['high'] - row['low']):.1f}"
