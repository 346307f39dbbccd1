"""What the host asks of plugins that neither filter nor score nor pick, as calls to be measured; `benchmarks.plugins` measures them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping

from endpick.api import (
    Admitter,
    CandidateFilter,
    CycleState,
    DataProducer,
    DisaggregationDecider,
    Endpoints,
    InferenceRequest,
    Parser,
    Plugin,
    PreRequest,
    ProfileHandler,
    ProfileRunResult,
    Rejection,
    RequestHeaderProcessor,
    Responder,
    ResponseEnd,
    ResponseHead,
    ResponseObserver,
    SaturationDetector,
    SchedulingResult,
    TerminationCause,
    Usage,
)
from endpick.requests.headers import HeadersForUpstream

KINDS = (
    Admitter,
    CandidateFilter,
    DataProducer,
    DisaggregationDecider,
    Parser,
    PreRequest,
    ProfileHandler,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
    SaturationDetector,
)
TEXT = "You are a careful assistant who answers in one sentence. " * 70
"""4 kB: about a thousand tokens."""
_MESSAGES = [{"role": "user", "content": TEXT}]
_CHAT = {"model": "a", "messages": _MESSAGES, "max_tokens": 100}
_BODIES: Mapping[str, tuple[str, object]] = {
    "anthropic-parser": ("/v1/messages", _CHAT),
    "vllmhttp-parser": ("/inference/v1/generate", {"model": "a", "token_ids": list(range(1000))}),
    "sglanghttp-parser": ("/generate", {"input_ids": list(range(1000))}),
}
"""Other parsers read a chat."""
_ANSWER = ResponseEnd(TerminationCause.NATURAL, 200, Usage(1000, 100, 640), 4096, 1.5, 0.5)


def grpc_body() -> bytes:
    """A request to generate from the text, in a frame of vLLM's gRPC service, by hand."""
    text = TEXT.encode()
    message = b"\x1a" + bytes([len(text) & 127 | 128, len(text) >> 7]) + text
    return b"\0" + len(message).to_bytes(4, "big") + message


def vertex_body() -> bytes:
    """The chat in a frame of Vertex AI's service, by hand."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content

    message = b"\x0a\x01e" + field(2, field(2, json.dumps(_CHAT).encode()))
    return b"\0" + len(message).to_bytes(4, "big") + message


def waits(plugin: Plugin) -> bool:
    """Whether its part of a request is to wait for something else, so that CPU time says nothing of it."""
    return isinstance(plugin, DataProducer) and inspect.iscoroutinefunction(plugin.produce)


def request_calls(
    plugin_type: str, plugin: Plugin, request: InferenceRequest, endpoints: Endpoints, state: CycleState
) -> Iterator[tuple[str, Callable[[], object]]]:
    """A name and a call for each part that it has in a request."""
    if isinstance(plugin, Parser):
        yield "parser", _parsing(plugin_type, plugin)
    if isinstance(plugin, Responder):
        yield "responder", lambda: plugin.respond(request, endpoints, state)
    if isinstance(plugin, RequestHeaderProcessor):
        yield "request header processor", lambda: plugin.request_headers(request, state)
    if isinstance(plugin, CandidateFilter):
        yield "candidate filter", lambda: plugin.filter_candidates(request, endpoints)
    if isinstance(plugin, SaturationDetector):
        yield "saturation detector", lambda: plugin.saturation(endpoints)
    if isinstance(plugin, Admitter):
        yield "admitter", lambda: plugin.admit(request, endpoints, state)
    if isinstance(plugin, DisaggregationDecider):
        one = endpoints.take([0])
        yield "decider", lambda: plugin.disaggregate(request, one, state)
    if isinstance(plugin, DataProducer) and not waits(plugin):
        plugin.produce(request, endpoints, state)
        yield "data producer", lambda: plugin.produce(request, endpoints, state)
    if isinstance(plugin, ProfileHandler):
        yield "profile handler", _handling(plugin, request, endpoints, state)
    if isinstance(plugin, PreRequest | ResponseObserver) and not waits(plugin):
        yield "after the decision", _serving(plugin, request, endpoints, state)


def _parsing(plugin_type: str, plugin: Parser) -> Callable[[], object]:
    """Parse, and render the prompt, which some plugin asks for in nearly every configuration."""
    path, body = _BODIES.get(plugin_type, ("/v1/chat/completions", _CHAT))
    raw = json.dumps(body).encode()
    if plugin_type == "vllmgrpc-parser":
        path, raw = "/vllm.grpc.engine.VllmEngine/Generate", grpc_body()
    if plugin_type == "vertexai-parser":
        path, raw = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions", vertex_body()

    def parse() -> object:
        parsed = plugin.parse(path, {}, raw)
        assert not isinstance(parsed, Rejection), parsed.message
        return parsed.prompt.texts

    return parse


def _handling(plugin: ProfileHandler, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> Callable[[], object]:
    """Every round, and the decision."""
    parameters = plugin.parameters
    profiles = tuple(dict.fromkeys((*plugin.required_profiles(parameters), *plugin.optional_profiles(parameters)))) or ("default",)
    runs = {name: ProfileRunResult(name, endpoints.take([number])) for number, name in enumerate(profiles)}

    def handle() -> object:
        done: dict[str, ProfileRunResult] = {}
        while chosen := [name for name in plugin.pick_profiles(request, profiles, done, state) if name not in done]:
            done.update((name, runs[name]) for name in chosen)
        return plugin.process_results(request, done, state)

    return handle


def _serving(plugin: Plugin, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> Callable[[], object]:
    """From the decision to the end of the answer."""
    picked = endpoints.take([1])
    served = picked.members[0]
    result = SchedulingResult("default", {"default": ProfileRunResult("default", picked)}, (served.address,))
    head = ResponseHead(200, {"content-type": "application/json"}, served)

    def serve() -> None:
        if isinstance(plugin, PreRequest):
            plugin.before_request(request, result, HeadersForUpstream({}), state)
        if isinstance(plugin, ResponseObserver):
            plugin.response_started(request, head, state)
            plugin.first_chunk(request, state)
            plugin.response_ended(request, _ANSWER, state)

    return serve
