"""Prints Markdown tables row by row, as their figures come."""

from __future__ import annotations


def print_row(*cells: object) -> None:
    """Print a row of a table."""
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def print_head(text: str) -> None:
    """Print the names of columns, which stand between bars."""
    names = text.split(" | ")
    print_row(*names)
    print_row(*["---"] * len(names))
