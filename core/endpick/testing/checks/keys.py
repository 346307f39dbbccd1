"""Checks of data keys: what a plugin declares is exactly what it touches, and so the host can prove who feeds whom."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.api.plugin import Kind
from endpick.testing.bench import Bench, benches
from endpick.testing.check import Finding, NotApplicable, check
from endpick.testing.exercise import walk
from endpick.testing.subject import Subject


@check()
def reads_only_declared_keys(subject: Subject) -> Iterator[Finding]:
    """Every data key that the plugin reads is in `consumes` or `consumes_optional`."""
    yield from _undeclared(subject, "read", "add it to `consumes`, or to `consumes_optional` if the plugin can do without")


@check()
def writes_only_declared_keys(subject: Subject) -> Iterator[Finding]:
    """Every data key that the plugin writes is in `produces`."""
    yield from _undeclared(subject, "write", "add it to `produces`: a value under an undeclared key is dropped")


@check()
def reads_every_declared_key(subject: Subject) -> Iterator[Finding]:
    """No data key is declared that the plugin never reads: the host would refuse to start without a producer for it."""
    declared = {key.name for bench in benches(subject) for key in bench.consumed}
    read: set[str] = set()
    for bench in _walked(subject):
        read |= bench.access.reads
    for key in sorted(declared - read):
        yield Finding(
            f"the data key '{key}' is declared and was never read",
            "remove it from `consumes`, or give the kit `examples=` with parameters that make the plugin read it",
        )


@check(Kind.DATA_COLLECTOR, Kind.DATA_PRODUCER)
def writes_every_declared_key(subject: Subject) -> Iterator[Finding]:
    """Every data key in `produces` is written, for one request or payload or another: consumers wait for it."""
    if Kind.DATA_COLLECTOR in subject.kinds and not subject.material.payloads:
        raise NotApplicable("give the kit `payloads=`, what a source would deliver")
    produced = {key.name for bench in benches(subject) for key in bench.instance.subscriptions.produces}
    written: set[str] = set()
    for bench in _walked(subject):
        written |= bench.access.writes
    for key in sorted(produced - written):
        yield Finding(f"the data key '{key}' is in `produces` and was never written", "write it, or remove it from `produces`")


def _undeclared(subject: Subject, access: str, advice: str) -> Iterator[Finding]:
    found = dict.fromkeys(key for bench in _walked(subject) for how, key in bench.access.undeclared if how == access)
    declared = "consumes" if access == "read" else "produces"
    for key in found:
        yield Finding(f"it {access}s the data key '{key}', which it does not declare in `{declared}`", advice)


def _walked(subject: Subject) -> Iterator[Bench]:
    for bench in benches(subject):
        for _ in walk(bench):
            continue  # what is answered concerns other checks; here counts what was touched
        yield bench
