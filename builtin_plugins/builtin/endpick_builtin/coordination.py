"""Plugins for callers that route in steps: `reserve-endpoint`, `endpoint-pin-screener` and `models-responder`."""

from __future__ import annotations

from ipaddress import ip_address

import orjson

from endpick.api import (
    BoolArray,
    CandidateFilter,
    CycleState,
    DirectResponse,
    Endpoint,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
    PreRequest,
    Responder,
    SchedulingResult,
    ScoringState,
    Stability,
    UpstreamHeaders,
)
from endpick.api.keys import SERVED_MODELS, ServedModel
from endpick_builtin.label_filters import PerPool

RESERVED_HEADER, PIN_HEADER = "x-llm-d-reserved-host-port", "x-llm-d-pin-host-port"
_RESERVE = "reserve-endpoint"
_MODELS = "/v1/models"
_JSON = {"content-type": "application/json"}


class ReserveEndpoint(PreRequest):
    """Answers `Prefer: reserve-endpoint` with the endpoint picked for the request, which is not sent.

    Status 204, `x-llm-d-reserved-host-port` = first pick, `Preference-Applied: reserve-endpoint`. No capacity is kept, but
    prefix producers learn from the request.
    """

    stability = Stability.EXPERIMENTAL

    def before_request(
        self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState
    ) -> DirectResponse | None:
        preferences = request.headers.get("prefer", "").lower().split(",")
        if not any(preference.strip() == _RESERVE for preference in preferences):
            return None
        return DirectResponse(204, headers={RESERVED_HEADER: result.destinations[0], "preference-applied": _RESERVE})


class EndpointPinScreener(CandidateFilter, PreRequest):
    """Keeps only the endpoint that the header `x-llm-d-pin-host-port` names, in any spelling of its address.

    If it is not a candidate, the request gets 503. The header is not sent to the model server. Clients that reach endpick directly can
    choose their endpoint.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._by_address = PerPool(_names_by_address)

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        pin = request.headers.get(PIN_HEADER)
        if not pin:
            return endpoints
        host, _, port = pin.strip().rpartition(":")
        name = self._by_address.of(endpoints).get(_address(host.removeprefix("[").removesuffix("]"), port))
        position = None if name is None else endpoints.position(name)
        return endpoints.take([] if position is None else [position])

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        if PIN_HEADER in request.headers:
            headers.remove(PIN_HEADER)


def _names_by_address(pool: tuple[Endpoint, ...]) -> dict[tuple[str, str], str]:
    return {_address(endpoint.host, str(endpoint.port)): endpoint.name for endpoint in pool}


def _address(host: str, port: str) -> tuple[str, str]:
    try:
        return ip_address(host).compressed, port
    except ValueError:
        return host.lower(), port


class ModelsResponder(Responder):
    """Answers `GET /v1/models` with the models and adapters of all endpoints, sorted by id.

    Of entries with the same id, that of the endpoint with the lowest name counts. 503 until an endpoint has reported. The lists come from
    `models-data-source`, which is added; define it for https.
    """

    consumes = (SERVED_MODELS,)
    stability = Stability.EXPERIMENTAL

    def respond(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> DirectResponse | None:
        if request.method != "GET" or request.path.rstrip("/") != _MODELS:
            return None
        lists = endpoints.objects(SERVED_MODELS)
        named = zip(endpoints.members, lists, strict=True)
        reported = sorted([(endpoint.name, models) for endpoint, models in named if models is not None], reverse=True)
        if not reported:
            message = "no endpoint has reported its models yet; try again"
            return DirectResponse(503, orjson.dumps({"error": {"message": message, "code": 503}}), _JSON)
        by_id = {model.id: model for _, models in reported for model in reversed(models)}
        data = [_entry(by_id[model_id]) for model_id in sorted(by_id)]
        return DirectResponse(200, orjson.dumps({"object": "list", "data": data}), _JSON)


def _entry(model: ServedModel) -> dict[str, str]:
    entry = {"id": model.id, "object": "model"}
    return entry | {"parent": model.parent} if model.parent else entry
