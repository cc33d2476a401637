"""Documents with generated parts: Markdown tables, and what stands between two marks of a page."""

from collections.abc import Mapping, Sequence

from ordered_sgd.errors import ArgumentError, message


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows with the same keys as a Markdown table.

    >>> print(markdown_table([{"q": "4", "error": "9.3"}]))
    | q | error |
    | --- | --- |
    | 4 | 9.3 |
    """
    heads = list(rows[0])
    lines = [f"| {' | '.join(row[head] for head in heads)} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *lines])


def fill(page: str, mark: str, parts: Sequence[str]) -> str:
    """The page with what stands between ``<!-- mark -->`` and ``<!-- /mark -->`` replaced by the parts.

    >>> fill("a <!-- b -->old<!-- /b --> c", "b", ["new"])
    'a <!-- b -->\\n\\nnew\\n\\n<!-- /b --> c'
    """
    opening, closing = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    if not (begin and end):
        remedy = "Put the two marks where the tables belong."
        raise ArgumentError(message("osgd bench", "the page", f"hold {opening} and {closing}", "none", remedy))
    return before + "\n\n".join([opening, *(part for part in parts if part), closing]) + after
