"""The data flow of a plan as a graph, for JSON, Mermaid and Graphviz."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from endpick.host.kinds import KindName, payload_of
from endpick.host.planning.document import VERSION, Document
from endpick.host.planning.plan import Plan


class Node(Document):
    """An instance that produces or reads data."""

    name: str
    type: str
    kinds: tuple[KindName, ...]
    added: bool = Field(description="True if endpick added it.")


class Arrow(Document):
    """Data that flows from one instance to another."""

    giver: str
    taker: str
    what: tuple[str, ...] = Field(description="Data keys, sorted; for a payload the name of its type.")
    flow: Literal["payload", "data"] = Field(description="payload: from a source to a collector; data: from a producer to a consumer.")
    needed: bool = Field(description="False for optional data and for payloads of an idle collector.")


class Picture(Document):
    """The data flow of a plan."""

    version: Literal[1] = VERSION
    config: str = Field(description="Name of the configuration file.")
    nodes: tuple[Node, ...] = Field(description="In plan order, without instances that neither produce nor read data.")
    arrows: tuple[Arrow, ...] = Field(description="Sorted.")


def picture_of(plan: Plan) -> Picture:
    """The data flow of a plan; deterministic."""
    arrows = sorted((*_payloads(plan), *_data(plan)), key=lambda arrow: (arrow.giver, arrow.taker, arrow.flow, arrow.needed))
    involved = {name for arrow in arrows for name in (arrow.giver, arrow.taker)}
    return Picture(
        config=plan.config.path,
        nodes=tuple(
            Node(name=one.name, type=one.type, kinds=tuple(kind.kind for kind in one.kinds), added=one.path is None)
            for one in plan.instances
            if one.name in involved
        ),
        arrows=tuple(arrows),
    )


def _payloads(plan: Plan) -> list[Arrow]:
    return [
        Arrow(
            giver=source.instance,
            taker=collector,
            what=(_payload(plan, source.instance),),
            flow="payload",
            needed=collector in source.active,
        )
        for source in plan.sources
        for collector in source.collectors
    ]


def _payload(plan: Plan, source: str) -> str:
    payload = payload_of(plan.by_name[source].loaded.plugin)
    return "payload" if payload is None else payload.__name__


def _data(plan: Plan) -> list[Arrow]:
    keys: dict[tuple[str, str, bool], set[str]] = {}
    for one in plan.graph.subscriptions:
        keys.setdefault((one.producer, one.consumer, one.required), set()).add(one.key)
    return [
        Arrow(giver=giver, taker=taker, what=tuple(sorted(what)), flow="data", needed=needed)
        for (giver, taker, needed), what in keys.items()
    ]


def mermaid(picture: Picture) -> str:
    """A Mermaid flowchart, as GitHub and GitLab render it."""
    number = {node.name: f"n{index}" for index, node in enumerate(picture.nodes)}
    lines = ["flowchart LR", *(f'  {number[node.name]}["{_mermaid(node.name)}"]' for node in picture.nodes)]
    for arrow in picture.arrows:
        line = "-->" if arrow.needed else "-.->"
        lines.append(f'  {number[arrow.giver]} {line}|"{"<br/>".join(map(_mermaid, arrow.what))}"| {number[arrow.taker]}')
    added = [number[node.name] for node in picture.nodes if node.added]
    if added:
        lines += ["  classDef added stroke-dasharray: 4 3", f"  class {','.join(added)} added"]
    return "\n".join(lines) + "\n"


def dot(picture: Picture) -> str:
    """A Graphviz digraph."""
    lines = ["digraph endpick {", "  rankdir=LR", '  node [shape=box, style=rounded, fontname="sans-serif"]']
    for node in picture.nodes:
        style = ', style="rounded,dashed"' if node.added else ""
        lines.append(f"  {_dot(node.name)} [label={_dot(node.name)}{style}]")
    for arrow in picture.arrows:
        style = "" if arrow.needed else ", style=dashed"
        lines.append(f"  {_dot(arrow.giver)} -> {_dot(arrow.taker)} [label={_dot(*arrow.what)}{style}]")
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(text: str) -> str:
    return "".join(character if character.isalnum() or character in " -_./@" else f"#{ord(character)};" for character in text)


def _dot(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
