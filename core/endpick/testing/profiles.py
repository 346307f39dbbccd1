"""Made-up runs of scheduling profiles, for profile handlers and for whoever looks at decisions."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np

from endpick.api.endpoints import Endpoints
from endpick.api.scheduling import ProfileRunResult, ScoredEndpoints
from endpick.testing.bench import Bench

DEFAULT_PROFILE = "default"


def profiles_of(bench: Bench) -> tuple[str, ...]:
    """The profiles a handler expects: those its parameters name (`prefillProfile: prefill`), or else one called `default`."""
    parameters = bench.instance.plugin.parameters.model_dump()
    named = [value for name, value in parameters.items() if "profile" in name.lower() and isinstance(value, str) and value]
    return tuple(dict.fromkeys(named)) or (DEFAULT_PROFILE,)


def runs_of(profiles: Iterable[str], endpoints: Endpoints, failed: Container[str] = ()) -> dict[str, ProfileRunResult]:
    """A run of each profile: the first endpoint picked, the second as fallback; nothing picked where it `failed`."""
    return {name: failed_run(name) if name in failed else successful_run(name, endpoints) for name in profiles}


def successful_run(profile: str, endpoints: Endpoints) -> ProfileRunResult:
    """A run that found endpoints."""
    scored = ScoredEndpoints(endpoints, np.linspace(1.0, 0.1, len(endpoints)))
    return ProfileRunResult(profile, scored.take(range(min(2, len(endpoints)))), scored)


def failed_run(profile: str) -> ProfileRunResult:
    """A run that found nobody."""
    return ProfileRunResult(profile, None, failure="no endpoints available for the given request")
