"""The data flow of a plan as nodes and arrows: who delivers payloads to whom, who writes which data for whom."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from endpick.api.plugin import Kind
from endpick.planning.document import VERSION, Document
from endpick.planning.plan import Plan


class Node(Document):
    """An instance that gives data or takes it."""

    name: str
    type: str
    kinds: tuple[Kind, ...]
    added: bool = Field(description="Whether endpick added it by itself.")


class Arrow(Document):
    """Data on its way from one instance to another."""

    giver: str
    taker: str
    what: tuple[str, ...] = Field(description="Data keys, sorted; for a payload the name of its type.")
    flow: Literal["payload", "data"] = Field(
        description="A payload goes from a source to a collector, data from whoever writes it to a reader."
    )
    needed: bool = Field(description="False when the taker works without: optional data, and payloads for a collector nobody reads.")


class Picture(Document):
    """Who gives what to whom."""

    version: Literal[1] = VERSION
    config: str = Field(description="Name of the configuration file.")
    nodes: tuple[Node, ...] = Field(description="In the order of the plan; instances that neither give nor take are left out.")
    arrows: tuple[Arrow, ...] = Field(description="Sorted.")


def picture_of(plan: Plan) -> Picture:
    """The picture of a plan: the same plan always gives the same one."""
    arrows = sorted((*_payloads(plan), *_data(plan)), key=lambda arrow: (arrow.giver, arrow.taker, arrow.flow, arrow.needed))
    involved = {name for arrow in arrows for name in (arrow.giver, arrow.taker)}
    return Picture(
        config=plan.config.path,
        nodes=tuple(
            Node(name=one.name, type=one.type, kinds=one.kinds, added=one.path is None) for one in plan.instances if one.name in involved
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
    payload = plan.by_name[source].loaded.meta.payload
    return "payload" if payload is None else payload.__name__


def _data(plan: Plan) -> list[Arrow]:
    keys: dict[tuple[str, str, bool], set[str]] = {}
    for one in plan.graph.subscriptions:
        keys.setdefault((one.producer, one.consumer, one.required), set()).add(one.key)
    return [
        Arrow(giver=giver, taker=taker, what=tuple(sorted(what)), flow="data", needed=needed)
        for (giver, taker, needed), what in keys.items()
    ]
