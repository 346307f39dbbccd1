"""What each built-in policy of flow control costs: `python -m benchmarks.flow_policies`.

Prints microseconds of one CPU for each request, the median of several rounds, while requests wait in so many flows, one in each.
*choose* is the answer alone; *come and go* is a request that begins to wait in a flow of its own, one that is chosen, and all that the
policy is told of both. The band is that of the conformance kit: the first row is what it takes itself.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from time import process_time

from benchmarks.__main__ import machine
from endpick.api import CycleState, Endpoint, Parameters, Plugin, PluginContext, ResponseEnd, ResponseObserver, TerminationCause, Usage
from endpick.api.flow_control import (
    Band,
    DispatchedRequest,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    Flow,
    OrderingPolicy,
    UsageLimitPolicy,
)
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.host.schema import own_model
from endpick.testing import FakeBand, make_request, make_waiting

FLOWS = (16, 1000, 10_000)
PRIORITIES = 16
LIMIT_MICROSECONDS = 20.0
"""What come and go may take at most with so many flows as the last of `FLOWS`, without the band itself."""
ROUNDS, CALLS = 9, 200
PARAMETERS = {"priority-holdback-policy": {"minCeiling": 0.5}}


class First(FairnessPolicy[Parameters]):
    """Answers the first flow: what the band itself costs."""

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        return next(iter(band.flows), None)


def microseconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """CPU time of one call, the median of several rounds."""
    rounds = []
    gc.disable()
    for _ in range(ROUNDS):
        started = process_time()
        for _ in range(calls):
            call()
        rounds.append((process_time() - started) / calls)
    gc.enable()
    return median(rounds) * 1e6


def fairness(policy: FairnessPolicy[Parameters], flows: int) -> tuple[float, float]:
    """Of one choice, and of one request that comes and one that goes."""
    band, arrivals = FakeBand(policy), count()
    ready = [make_waiting(f"tenant-{number * 7919 % (2 * flows)}", arrival=number, enqueued_at=number / 100) for number in range(2 * flows)]
    for waiting in ready[:flows]:
        band.add(waiting)
    coming = iter(ready[flows:] * (1 + 2 * CALLS * ROUNDS // flows))

    def come_and_go() -> None:
        waiting = next(coming)
        waiting.arrival = 2 * flows + next(arrivals)
        band.add(waiting)
        band.serve()

    if isinstance(policy, ResponseObserver):
        for number, waiting in enumerate(ready):
            policy.response_ended(waiting.request, _answered(number % 97), CycleState())
    band.choose()
    return microseconds(band.choose), microseconds(come_and_go)


def _answered(tokens: int) -> ResponseEnd:
    return ResponseEnd(TerminationCause.NATURAL, 200, Usage(tokens, tokens), 1, 1.0, 0.1)


def others(plugin: Plugin[Parameters]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What else the host asks of policies, and what the figure is for."""
    waiting = make_waiting(request=make_request(headers={"x-llm-d-slo-ttft-ms": "250"}))
    dispatched = DispatchedRequest(make_request(priority=-1), Endpoint("e", "192.0.2.1", 8000), 1.0)
    priorities = tuple(range(PRIORITIES, 0, -1))
    if isinstance(plugin, OrderingPolicy):
        yield "sort_key", lambda: plugin.sort_key(waiting)
    if isinstance(plugin, UsageLimitPolicy):
        yield f"ceilings of {PRIORITIES}", lambda: plugin.ceilings(0.75, priorities)
    if isinstance(plugin, EvictionFilter):
        yield "is_evictable", lambda: plugin.is_evictable(dispatched)
    if isinstance(plugin, EvictionOrderingPolicy):
        yield "sort_key", lambda: plugin.sort_key(dispatched)


def policies() -> Iterator[tuple[str, Plugin[Parameters]]]:
    """One instance of each built-in policy."""
    for candidate in sorted(discover(), key=lambda one: one.type):
        loaded = load(candidate, Reference(candidate.type), ()).loaded if candidate.is_builtin else None
        if loaded and issubclass(
            loaded.plugin, FairnessPolicy | OrderingPolicy | UsageLimitPolicy | EvictionFilter | EvictionOrderingPolicy
        ):
            model = own_model(loaded.plugin)
            assert model is not None
            yield candidate.type, loaded.plugin("bench", model(**PARAMETERS.get(candidate.type, {})), PluginContext())


def main() -> int:
    """The tables; 1 when a policy takes longer than it may."""
    logging.disable(logging.WARNING)
    print(machine())
    print(
        "\n| policy | " + " | ".join(f"choose, {flows} flows | come and go" for flows in FLOWS) + " |\n|---" + "|---" * 2 * len(FLOWS) + "|"
    )
    found = dict(policies())
    baseline = [fairness(First("it", Parameters(), PluginContext()), flows) for flows in FLOWS]
    _row("the band itself", baseline)
    slow = []
    for name, policy in found.items():
        if isinstance(policy, FairnessPolicy):
            figures = [fairness(policy, flows) for flows in FLOWS]
            _row(f"`{name}`", figures)
            if figures[-1][1] - baseline[-1][1] > LIMIT_MICROSECONDS:
                slow.append(name)
    print("\n| policy | asked | µs |\n|---|---|---|")
    for name, policy in found.items():
        for asked, call in others(policy):
            print(f"| `{name}` | {asked} | {microseconds(call, 5000):.2f} |")
    print(f"\nfairness policies above {LIMIT_MICROSECONDS:g} µs at {FLOWS[-1]} flows: {', '.join(slow) or 'none'}")
    return int(bool(slow))


def _row(name: str, figures: list[tuple[float, float]]) -> None:
    print(f"| {name} | " + " | ".join(f"{choose:.1f} | {both:.1f}" for choose, both in figures) + " |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
