"""Draws calls between packages as a sequence diagram in SVG: a line down the page per package, an arrow per call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from docs_pictures.observe import Call, Function

CHARACTER, LINE, MARGIN = 6.2, 14.0, 16.0
"""Widths and heights in pixels, for a sans-serif font of 11 px."""
COLUMN, HEAD, GAP = 128.0, 26.0, 16.0
"""From line to line; height of the box at the end of a line; from arrow to label."""

_STYLE = """\
text{font:11px system-ui,sans-serif;fill:#1f2328;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}
.page{fill:#fff}
.life{stroke:#8c959f;stroke-dasharray:3 4}
.head{fill:#f6f8fa;stroke:#57606a}
.title{font-weight:600;stroke:none}
.arrow{stroke:#0550ae;stroke-width:1.3;marker-end:url(#head)}
.number{fill:#57606a}"""
_HEAD = (
    '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#0550ae"/></marker>'
)


@dataclass(frozen=True, slots=True)
class Arrow:
    """Calls from one package into another, with no other call between them."""

    caller: str
    callee: str
    functions: tuple[Function, ...]


def arrows(calls: Iterable[Call]) -> tuple[Arrow, ...]:
    """The calls in their order, those that follow each other between the same packages as one arrow."""
    return tuple(
        Arrow(caller, callee, tuple(call.callee for call in group))
        for (caller, callee), group in groupby(calls, lambda call: (call.caller, call.callee.package))
    )


def label(function: Function) -> str:
    """`Director.decide`; `Director(…)` for a constructor."""
    name = function.name
    return f"{name.removesuffix('.__init__')}(…)" if name.endswith(".__init__") else name


def sequence(title: str, shown: Sequence[Arrow]) -> str:
    """A complete SVG document; the same calls always give the same bytes."""
    columns = {name: MARGIN + COLUMN * (at + 0.5) for at, name in enumerate(dict.fromkeys(_involved(shown)))}
    width = len(columns) * COLUMN + 2 * MARGIN
    drawn: list[str] = []
    down = MARGIN + HEAD + GAP / 2
    for number, arrow in enumerate(shown, 1):
        down += len(arrow.functions) * LINE + GAP
        drawn += _arrow(number, arrow, columns[arrow.caller], columns[arrow.callee], down, width)
    end = down + GAP
    height = end + HEAD + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        _HEAD,
        f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>',
        *(f'<line class="life" x1="{x:.0f}" y1="{MARGIN:.0f}" x2="{x:.0f}" y2="{end:.0f}"/>' for x in columns.values()),
        *(part for top in (MARGIN, end) for name, x in columns.items() for part in _end(name, x, top)),
        *drawn,
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _involved(shown: Iterable[Arrow]) -> Iterator[str]:
    for arrow in shown:
        yield arrow.caller
        yield arrow.callee


def _end(name: str, x: float, top: float) -> Iterator[str]:
    wide = COLUMN - 16
    yield f'<rect class="head" x="{x - wide / 2:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{HEAD:.0f}" rx="5"/>'
    yield f'<text class="title" x="{x:.0f}" y="{top + 17:.0f}">{escape(name)}</text>'


def _arrow(number: int, arrow: Arrow, start: float, end: float, down: float, width: float) -> Iterator[str]:
    first = down - 7 - (len(arrow.functions) - 1) * LINE
    for at, function in enumerate(arrow.functions):
        text = label(function)
        half = len(text) * CHARACTER / 2 + MARGIN / 2
        x = min(max((start + end) / 2, half), width - half)
        yield f'<text x="{x:.0f}" y="{first + at * LINE:.0f}">{escape(text)}</text>'
    # The line comes after the labels: their white rim would cover it.
    side = 1 if end > start else -1
    yield f'<line class="arrow" x1="{start:.0f}" y1="{down:.0f}" x2="{end - side:.0f}" y2="{down:.0f}"/>'
    yield f'<text class="number" x="{start - side * 12:.0f}" y="{down + 4:.0f}">{number}</text>'
