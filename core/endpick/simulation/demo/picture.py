"""Horizontal bars in groups, as SVG, drawn without any program or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 130, 190, 70, 16, 12
"""In pixels; `LEFT` is for the names of groups, `RIGHT` for what stands behind bars."""
_COLOURS = ("#d0d7de", "#0969da", "#1a7f37", "#8250df")
_STYLE = "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-size:15px;font-weight:600}.note{fill:#57606a;font-size:11px}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        group: Bars of one group stand together; the first has the name beside it.
        name: What it is of; bars of one name have one colour.
        value: How long it is, 0 or more.
        note: Written behind it.
    """

    group: str
    name: str
    value: float
    note: str


def bars_picture(title: str, bars: Sequence[Bar]) -> str:
    """The picture, ending in a newline; the longest bar takes the whole width."""
    longest = max((bar.value for bar in bars), default=0.0) or 1.0
    names = list(dict.fromkeys(bar.name for bar in bars))
    colours = {name: _COLOURS[position % len(_COLOURS)] for position, name in enumerate(names)}
    shapes, y, group = [], float(TOP), None
    for bar in bars:
        if bar.group != group:
            y += GAP if group is not None else 0
            shapes.append(_text(LEFT - 10, y + 12, bar.group, ' text-anchor="end"'))
            group = bar.group
        length = bar.value / longest * (WIDTH - LEFT - RIGHT)
        shapes.append(f'<rect x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR - 2}" fill="{colours[bar.name]}"/>')
        shapes.append(_text(LEFT + length + 6, y + 11, f"{bar.value:.2f}; {bar.note}", ' class="note"'))
        y += BAR
    legend = []
    for position, name in enumerate(names):
        x = LEFT + 180 * position
        legend.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{colours[name]}"/>')
        legend.append(_text(x + 18, 48, name))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + GAP:g}" role="img">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{WIDTH}" height="{y + GAP:g}" fill="#fff"/>',
            _text(10, 22, title, ' class="title"'),
            *legend,
            *shapes,
            "</svg>",
            "",
        )
    )


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{attributes}>{escape(text)}</text>'
