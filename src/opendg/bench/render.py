"""A table as Markdown, LaTeX, CSV, and as lines for the terminal."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

from opendg.bench.header import NAMES
from opendg.bench.tables import Row, Table, Value
from opendg.runs.files import write_atomic

AVERAGE = "Avg"
Lines = list[tuple[str, list[str]]]  # a label, and a text for each column
TEX = str.maketrans(  # what is no plain text in LaTeX
    {sign: rf"\{sign}" for sign in "_%&#${}"} | {sign: f"${sign}$" for sign in "+|<>"}
    | {"±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)  # fmt: skip


def columns(table: Table) -> list[str | None]:
    """The columns, and None for their average where there are several."""
    return [*table.columns, *([None] if len(table.columns) > 1 else [])]


def heading(target: str | None) -> str:
    return AVERAGE if target is None else target


def block(table: Table, metric: str) -> Lines:
    """The rows of one metric: measured, and beneath it published and difference; or published alone."""
    lines: Lines = []
    for row in table.rows:
        values = [table.value(row, target, metric) for target in columns(table)]
        lines += _row_lines(row, values, table.reference.decimals if table.reference else 2)
    return lines


def _row_lines(row: Row, values: list[Value], decimals: int) -> Lines:
    published = [_number(value.published, decimals) for value in values]
    if not row.results:
        return [(f"{row.label} (published)", published)]
    lines = [(row.label, [_measured(value) for value in values])]
    if any(value.published is not None for value in values):
        lines.append(("  published", published))
        lines.append(("  difference", [_number(value.difference, decimals, "+") for value in values]))
    return lines


def markdown(table: Table) -> str:
    """The header as a list, then a table for each metric."""
    parts = [f"# {table.title}", "\n".join(f"- {line}" for line in table.header)]
    head = ["", *(heading(target) for target in columns(table))]
    for metric in table.metrics:
        rows = [
            [f"*{label.strip()}*" if label.startswith(" ") else label, *cells] for label, cells in block(table, metric)
        ]
        parts.append(f"## {NAMES.get(metric, metric)}\n\n{markdown_table(head, rows)}")
    return "\n\n".join(parts) + "\n"


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A table of pipes, numbers to the right, its columns of one width. A pipe in a label stays in its cell."""
    head, *rows = [[cell.replace("|", r"\|") for cell in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    widths = [max(width, 3) for width in widths]

    def line(cells: list[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return f"| {' | '.join([cells[0].ljust(widths[0]), *padded[1:]])} |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def latex(table: Table) -> str:
    """The paper's layout: the metrics beneath each target."""
    shown = columns(table)
    each = len(table.metrics)
    groups = " & ".join(rf"\multicolumn{{{each}}}{{c}}{{{_tex(heading(target))}}}" for target in shown)
    names = " & ".join(_tex(NAMES.get(metric, metric)) for _ in shown for metric in table.metrics)
    lines = [f"% {line}" for line in [*table.header, r"Needs \usepackage{booktabs}."]]
    lines += [r"\begin{tabular}{l" + "c" * each * len(shown) + "}", r"\toprule"]
    lines += [f" & {groups} \\\\", f"Method & {names} \\\\" if each > 1 else "", r"\midrule"]
    for row in table.rows:
        values = [table.value(row, target, metric) for target in shown for metric in table.metrics]
        for label, cells in _row_lines(row, values, table.reference.decimals if table.reference else 2):
            inset = r"\quad " if label.startswith(" ") else ""
            lines.append(f"{inset}{_tex(label.strip())} & {' & '.join(map(_tex_number, cells))} \\\\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(filter(None, lines)) + "\n"


def comma_separated(table: Table) -> str:
    """A line for each number, with what it saw."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["row", "method", "score", "column", "metric", "mean", "spread", "n", "published", "difference"]
    writer.writerow([*names, *table.facts])
    for row in table.rows:
        for metric in table.metrics:
            for target in columns(table):
                v = table.value(row, target, metric)
                numbers = [_plain(v.mean), _plain(v.spread), v.count, _plain(v.published), _plain(v.difference)]
                place = [row.label, row.method, row.score, target or "average", metric]
                facts = table.facts.values() if v.count else [""] * len(table.facts)  # of what was measured
                writer.writerow([*place, *numbers, *facts])
    return text.getvalue()


Extra = tuple[str, list[str], list[list[str]]]  # a title, column names, rows


def write_table(table: Table, folder: Path, extra: Extra | None = None) -> list[Path]:
    """NAME.md, NAME.tex and NAME.csv; a second table goes below the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    below = f"\n## {extra[0]}\n\n{markdown_table(extra[1], extra[2])}\n" if extra else ""
    made = {".md": markdown(table) + below, ".tex": latex(table), ".csv": comma_separated(table)}
    for suffix, text in made.items():
        write_atomic(folder / f"{table.name}{suffix}", text.encode())
    return [folder / f"{table.name}{suffix}" for suffix in made]


def _measured(value: Value) -> str:
    if value.mean is None:
        return "-"
    return f"{value.mean:.2f}" + (f" ± {value.spread:.2f}" if value.spread is not None else "")


def _number(value: float | None, decimals: int, sign: str = "") -> str:
    return "-" if value is None else f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"  # no -0.00


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _tex_number(text: str) -> str:
    """With a minus for a hyphen, and a dash where there is no number."""
    return "--" if text == "-" else _tex(text).replace("-", "$-$")


def _tex(text: str) -> str:
    return text.translate(TEX).replace(" $\\pm$ ", r"\,$\pm$\,")
