"""What a discovery may report that is no report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from endpick.api import Endpoint, EndpointRegistry, ModelRewrite, ModelTarget

from .answered import OwnText
from .misdeeds import act


def endpoints() -> list[Endpoint]:
    """As they stand in the file that another discovery would read."""
    listed = re.findall(r'name: (\S+), address: (\S+), port: "(\d+)"', Path("endpoints.yaml").read_text())
    return [Endpoint(name, address, int(port)) for name, address, port in listed]


def _without_end() -> Iterator[Endpoint]:
    for number in count():
        yield Endpoint(f"e{number}", "127.0.0.1", 1 + number % 60_000)


REPORTS: Mapping[str, Callable[[EndpointRegistry, object], object]] = {
    "upsert": lambda registry, answer: registry.upsert(answer),
    "remove": lambda registry, answer: registry.remove(answer),
    "replace": lambda registry, answer: registry.replace_all(answer),
    "replace-some": lambda registry, answer: registry.replace_all([*endpoints(), answer]),
    "objectives": lambda registry, answer: registry.set_objectives(answer),
    "priority": lambda registry, answer: registry.set_objectives({"x": answer, OwnText("y"): 1}),
    "rewrites": lambda registry, answer: registry.set_rewrites(answer),
    "rule": lambda registry, answer: registry.set_rewrites([answer]),
    "target": lambda registry, answer: registry.set_rewrites([ModelRewrite(("other",), (answer,))]),
    "weight": lambda registry, answer: registry.set_rewrites([ModelRewrite(("other",), (ModelTarget("n", answer),))]),
    "stand-by": lambda registry, answer: registry.stand_by(answer),
    "labels": lambda registry, answer: registry.upsert(Endpoint("labelled", "127.0.0.1", 1, labels=answer)),
    "port": lambda registry, answer: registry.upsert(Endpoint("port", "127.0.0.1", answer)),
    "address": lambda registry, answer: registry.upsert(Endpoint("address", answer, 1)),
    "without-end": lambda registry, _: registry.replace_all(_without_end()),
}


def report(registry: EndpointRegistry) -> None:
    """Report one thing in one way, and then again what is right."""
    for way, told in REPORTS.items():
        answer = act(f"report.{way}", lambda: registry)
        if answer is not registry:
            with suppress(BaseException):
                told(registry, answer)
            _repair(registry)


def _repair(registry: EndpointRegistry) -> None:
    registry.set_rewrites(())
    registry.set_objectives({})
    registry.stand_by("")
    registry.replace_all(endpoints())
