"""Draws the data flow as SVG, in layers by grandalf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TypeAlias

from grandalf.graphs import Edge, Graph, Vertex
from grandalf.layouts import SugiyamaLayout

from endpick.host.planning.document import Arrow, Picture

CHARACTER, LINE, PADDING, MARGIN = 7.0, 15.0, 12.0, 20.0  # pixels, for 12 px sans-serif

GAP = 24.0

Point: TypeAlias = tuple[float, float]
Drawn: TypeAlias = tuple[str, list[str]]

_STYLE = """\
text{font:12px system-ui,sans-serif;fill:#1f2328}
.box{fill:#f6f8fa;stroke:#57606a}
.added{stroke-dasharray:4 3}
.arrow{fill:none;stroke:#57606a;marker-end:url(#head)}
.idle{stroke-dasharray:4 3}
.what{fill:#57606a;font-size:11px;text-anchor:end;paint-order:stroke;stroke:#fff;stroke-width:4px}"""

_HEAD = (
    '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#57606a"/></marker>'
)


@dataclass(slots=True)
class Box:
    """A node. grandalf lays out top to bottom, the page reads left to right: `w` is the height, `h` the width, `xy` (y, x)."""

    w: float
    h: float
    xy: Point = (0.0, 0.0)

    @property
    def centre(self) -> Point:
        """Centre on the page."""
        return self.xy[1], self.xy[0]


@dataclass(slots=True)
class Route:
    """An arrow's points on the page, ends included."""

    points: tuple[Point, ...] = ()

    def setpath(self, points: Iterable[Point]) -> None:
        """Called by grandalf."""
        self.points = tuple((across, down) for down, across in points)


def svg(picture: Picture) -> str:
    """A complete document; deterministic."""
    arriving: dict[str, list[Arrow]] = {node.name: [] for node in picture.nodes}
    for arrow in picture.arrows:
        arriving[arrow.taker].append(arrow)
    boxes = {
        node.name: Box(max(36.0, sum(map(_label_height, arriving[node.name]))), len(node.name) * CHARACTER + 2 * PADDING)
        for node in picture.nodes
    }
    routes = _lay_out(boxes, picture.arrows)
    drawn = [arrow for name in boxes for arrow in _arrows(arriving[name], boxes, routes)]
    width = max((box.centre[0] + box.h / 2 for box in boxes.values()), default=0.0) + MARGIN
    height = max((box.centre[1] + box.w / 2 for box in boxes.values()), default=0.0) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>data flow of {escape(picture.config)}</title>",
        f"<style>{_STYLE}</style>",
        _HEAD,
        *(line for line, _ in drawn),
    ]
    for node in picture.nodes:
        box = boxes[node.name]
        (x, y), kind = box.centre, "box added" if node.added else "box"
        place = f'x="{x - box.h / 2:.1f}" y="{y - box.w / 2:.1f}" width="{box.h:.1f}" height="{box.w:.1f}" rx="6"'
        name = escape(node.name)
        parts.append(f'<g><title>{escape(node.type)}</title><rect class="{kind}" {place}/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{name}</text></g>')
    # Labels last: their white outline covers crossing arrows.
    return "\n".join([*parts, *(label for _, labels in drawn for label in labels), "</svg>"]) + "\n"


def _lay_out(boxes: Mapping[str, Box], arrows: Iterable[Arrow]) -> dict[tuple[str, str], Route]:
    vertices = {name: Vertex(name) for name in boxes}
    for name, vertex in vertices.items():
        vertex.view = boxes[name]
    routes = {(arrow.giver, arrow.taker): Route() for arrow in arrows}
    edges = [Edge(vertices[giver], vertices[taker]) for giver, taker in routes]
    for edge, route in zip(edges, routes.values(), strict=True):
        edge.view = route
    label_width = max((len(what) * CHARACTER for arrow in arrows for what in arrow.what), default=0.0)
    top = MARGIN
    for part in Graph(list(vertices.values()), edges).C:
        layout = SugiyamaLayout(part)
        layout.xspace, layout.yspace = GAP, label_width + 5 * PADDING
        layout.init_all()
        layout.draw()
        top = _move([boxes[vertex.data] for vertex in part.sV], [edge.view for edge in part.sE], top)
    return routes


def _move(boxes: Iterable[Box], routes: Iterable[Route], top: float) -> float:
    boxes = list(boxes)
    down = top - min(box.xy[0] - box.w / 2 for box in boxes)
    across = MARGIN - min(box.xy[1] - box.h / 2 for box in boxes)
    for box in boxes:
        box.xy = (box.xy[0] + down, box.xy[1] + across)
    for route in routes:
        route.points = tuple((x + across, y + down) for x, y in route.points)
    return max(box.xy[0] + box.w / 2 for box in boxes) + GAP


def _arrows(arriving: list[Arrow], boxes: Mapping[str, Box], routes: Mapping[tuple[str, str], Route]) -> Iterator[Drawn]:
    arriving = sorted(arriving, key=lambda arrow: (_origin(routes[arrow.giver, arrow.taker])[1], arrow.giver, arrow.flow, arrow.needed))
    entry = 0.0 if not arriving else boxes[arriving[0].taker].centre[1] - sum(map(_label_height, arriving)) / 2
    for arrow in arriving:
        giver, taker = boxes[arrow.giver], boxes[arrow.taker]
        entry += _label_height(arrow) / 2
        end = (taker.centre[0] - taker.h / 2, entry)
        start = (giver.centre[0] + giver.h / 2, giver.centre[1])
        points = (start, *routes[arrow.giver, arrow.taker].points[1:-1], end)
        first = entry - (len(arrow.what) - 1) * LINE / 2 + 4
        yield (
            f'<path class="{"arrow" if arrow.needed else "arrow idle"}" d="{_curve(points)}"/>',
            [
                f'<text class="what" x="{end[0] - PADDING:.1f}" y="{first + index * LINE:.1f}">{escape(what)}</text>'
                for index, what in enumerate(arrow.what)
            ],
        )
        entry += _label_height(arrow) / 2


def _origin(route: Route) -> Point:
    return route.points[-2]


def _curve(points: tuple[Point, ...]) -> str:
    drawn = [f"M{points[0][0]:.1f},{points[0][1]:.1f}"]
    for (x, y), (next_x, next_y) in pairwise(points):
        middle = (x + next_x) / 2
        drawn.append(f"C{middle:.1f},{y:.1f} {middle:.1f},{next_y:.1f} {next_x:.1f},{next_y:.1f}")
    return " ".join(drawn)


def _label_height(arrow: Arrow) -> float:
    return len(arrow.what) * LINE + 8.0
