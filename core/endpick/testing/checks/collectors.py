"""Checks of data collectors."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.api.datalayer import DataCollector
from endpick.api.errors import Unavailable
from endpick.api.plugin import Kind
from endpick.testing.bench import Raised, benches
from endpick.testing.check import Finding, NotApplicable, check
from endpick.testing.subject import Subject
from endpick.testing.values import nonsense_of


@check(Kind.DATA_COLLECTOR)
def collector_survives_nonsense(subject: Subject) -> Iterator[Finding]:
    """A payload of the right type that makes no sense is `Unavailable`, or changes nothing; no other exception comes out."""
    payloads = nonsense_of(subject.plugin.meta.payload or object)
    if not payloads:
        raise NotApplicable(f"the kit cannot make a {subject.plugin.meta.payload}")
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, DataCollector)
        for payload in payloads:
            answer = bench.call(plugin.collect, payload, bench.writer(bench.table.generation.endpoints[0]))
            if isinstance(answer, Raised) and not isinstance(answer.problem, Unavailable):
                yield Finding(
                    f"`collect` raises {answer} for the payload {_shown(payload)}",
                    "raise Unavailable where the payload holds nothing of use; model servers can send anything",
                )
                return


@check(Kind.DATA_COLLECTOR)
def collector_reads_good_payloads(subject: Subject) -> Iterator[Finding]:
    """Every payload that its author gave the kit is read without complaint."""
    if not subject.material.payloads:
        raise NotApplicable("give the kit `payloads=`, what a source would deliver")
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, DataCollector)
        for payload in subject.material.payloads:
            answer = bench.call(plugin.collect, payload, bench.writer(bench.table.generation.endpoints[0]))
            if answer is not None:
                said = f"raises {answer}" if isinstance(answer, Raised) else f"answers {type(answer).__name__}"
                yield Finding(f"`collect` {said} for the payload {_shown(payload)}", "write values with writer.set, and return nothing")
                return


def _shown(payload: object) -> str:
    text = repr(getattr(payload, "body", payload))
    return text if len(text) <= 60 else f"{text[:60]}…"
