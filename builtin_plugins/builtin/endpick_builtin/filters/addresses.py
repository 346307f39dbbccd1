"""`header-based-testing-filter`: lets a test name the endpoints it wants."""

from __future__ import annotations

from endpick.api import Endpoint, Endpoints, Filter, InferenceRequest, Parameters, PluginContext, ScoringState
from endpick_builtin.filters.labels import PerPool

HEADER = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """Keep the endpoints that the request header `test-epp-endpoint-selection` lists, in its order; for tests of gateways.

    The header is a list of `host` or `host:port` between commas, IPv6 in brackets where a port follows. A host alone means all its ports.
    An endpoint that is listed twice counts once. Keeps none without the header, and when it names none of the candidates. It has no place
    in a configuration that serves clients, who could choose their endpoint.
    """

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._named = PerPool(_by_address)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        named = self._named.of(endpoints)
        places = (place.strip().lower() for place in request.headers.get(HEADER, "").split(","))
        wanted = dict.fromkeys(name for place in places for name in named.get(place, ()))
        positions = (endpoints.position(name) for name in wanted)
        return endpoints.take([position for position in positions if position is not None])


def _by_address(pool: tuple[Endpoint, ...]) -> dict[str, list[str]]:
    """Names of endpoints by everything the header may call them."""
    names: dict[str, list[str]] = {}
    for endpoint in pool:
        for place in dict.fromkeys((endpoint.address, endpoint.host, f"[{endpoint.host}]")):
            names.setdefault(place.lower(), []).append(endpoint.name)
    return names
