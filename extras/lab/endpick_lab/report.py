"""The HTML report of a simulation: one file, with its plots as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from endpick_lab.compare import Compared

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto }
.wide { overflow-x: auto }
"""
_SIZE = (9.0, 4.0)


Table: TypeAlias = tuple[Sequence[str], Sequence[Sequence[str]]]  # headers and rows


def html_report(title: str, tables: Sequence[Table], compared: Sequence[Compared]) -> str:
    """Return a page with the tables and three plots; raises ImportError without matplotlib."""
    drawn = [result for result in compared if len(result.samples)]
    plots = "".join(
        f"<h2>{escape(heading)}</h2>{_plot(draw, drawn, across, up)}"
        for heading, across, up, draw in (
            ("Time to first token", "seconds", "share of requests", partial(_distribution, column=1)),
            ("Whole answers", "seconds", "share of requests", partial(_distribution, column=3)),
            ("Over time", "minutes", "median time to first token (s)", _over_time),
        )
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(map(_table, tables))}{plots}</body></html>\n"
    )


def _table(table: Table) -> str:
    headers, rows = table
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headers)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plot(draw: Callable[[Axes, Compared], None], compared: Sequence[Compared], across: str, up: str) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "endpick", "svg.fonttype": "none"}):
        figure = Figure(_SIZE, layout="constrained")
        axes = figure.subplots()
        for result in compared:
            draw(axes, result)
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        axes.grid(visible=True, alpha=0.3)
        if compared:
            axes.legend()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _distribution(axes: Axes, result: Compared, column: int) -> None:
    values = np.quantile(result.samples[:, column], np.linspace(0, 1, 401))
    axes.plot(np.maximum(values, 1e-3), np.linspace(0, 1, 401), label=result.figures["config"])
    axes.set_xscale("log")


def _over_time(axes: Axes, result: Compared) -> None:
    arrived, first = result.samples[:, 0], result.samples[:, 1]
    edges = np.linspace(0, max(float(arrived.max()), 1e-9), 61)
    place = np.clip(np.digitize(arrived, edges) - 1, 0, 59)
    medians = [float(np.median(first[place == number])) if (place == number).any() else np.nan for number in range(60)]
    axes.plot((edges[:-1] + edges[1:]) / 120, medians, label=result.figures["config"])
