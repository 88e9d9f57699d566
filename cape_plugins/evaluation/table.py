"""Results of the evaluation commands as Markdown tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from cape_plugins.evaluation.output import columns


def table(header: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """A Markdown table; cells as given, without the columns that are empty throughout."""
    used = [i for i in range(len(header)) if any(row[i] not in ("", None) for row in body)]
    cells = [["" if row[i] is None else row[i] for i in used] for row in body]
    head = [header[i] for i in used]
    return tabulate(cells, head, tablefmt="github", disable_numparse=True) + "\n"


def rows_table(rows: Sequence[Any], hidden: Sequence[str] = ()) -> str:
    """All columns of rows but the hidden ones as a Markdown table, with two decimals."""
    shown = [name for name in columns(type(rows[0])) if name not in hidden] if rows else []
    body = [[getattr(row, name) for name in shown] for row in rows]
    return table(shown, [[f"{v:.2f}" if isinstance(v, float) else v for v in r] for r in body])


def publish(text: str, path: Path | None) -> None:
    """Print a table, and write it if there is a path."""
    print(f"\n{text}")
    if path is not None:
        path.write_text(text, encoding="utf-8")
