"""`header-based-testing-filter`: lets a gateway test choose endpoints."""

from __future__ import annotations

from endpick.api import Endpoint, Endpoints, Filter, InferenceRequest, Parameters, PluginContext, ScoringState
from endpick_builtin.filters.labels import PerPool

HEADER = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, in its order. For tests only.

    The header is a comma-separated list of `host` or `host:port`, with IPv6 in brackets if a port follows. A host alone means all its
    ports. Duplicates count once. Without the header, or if it names no candidate, none is kept. Do not use it in production: clients could
    choose their endpoint.
    """

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._named = PerPool(_by_address)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        named = self._named.of(endpoints)
        places = (place.strip().lower() for place in request.headers.get(HEADER, "").split(","))
        wanted = dict.fromkeys(name for place in places for name in named.get(place, ()))
        positions = (endpoints.position(name) for name in wanted)
        return endpoints.take([position for position in positions if position is not None])


def _by_address(pool: tuple[Endpoint, ...]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for endpoint in pool:
        for place in dict.fromkeys((endpoint.address, endpoint.host, f"[{endpoint.host}]")):
            names.setdefault(place.lower(), []).append(endpoint.name)
    return names
