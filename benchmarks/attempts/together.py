"""Many built-in plugins in one configuration: what clients and servers say to all of them, and what stays when requests end anywhere."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import HELLO, answer_messages, answered, connected, data, grpc, headers_message, opened, request
from benchmarks.attempts.gateway import trailers_message as trailers
from benchmarks.attempts.kept import EXPERIMENTS, beside, hold, page_of
from benchmarks.attempts.posing import hostile_entries, serving, write_endpoints
from benchmarks.attempts.streams import exchanged
from endpick.transport.h2 import frames

_SILENT = 20_702
_SCORERS = (
    *("session-affinity-scorer", "lora-affinity-scorer", "context-length-aware", "no-hit-lru-scorer", "active-request-scorer"),
    *("token-load-scorer", "running-requests-size-scorer", "mm-embeddings-cache-scorer", "topology-affinity-scorer"),
    *("latency-scorer", "load-aware-scorer", "header-label-affinity-scorer"),
)
_FILTERS = (
    "session-affinity-filter",
    "prefix-cache-affinity-filter",
    "slo-headroom-tier-filter",
    "topology-affinity-filter",
    "decode-filter",
)
_PLAIN = (
    *("openai-parser", "anthropic-parser", "vllmhttp-parser", "sglanghttp-parser", "vllmgrpc-parser", "vertexai-parser"),
    *("token-producer", "agent-identity", "inflight-load-producer", "mm-embeddings-cache-producer"),
    *("lora-affinity-scorer", "context-length-aware", "no-hit-lru-scorer", "active-request-scorer", "token-load-scorer"),
    *("running-requests-size-scorer", "mm-embeddings-cache-scorer", "latency-scorer", "load-aware-scorer", "topology-affinity-scorer"),
    *("topology-affinity-filter", "prefix-cache-affinity-filter", "slo-headroom-tier-filter", "latency-slo-admitter"),
    *("probabilistic-admitter", "destination-endpoint-served-verifier", "always-disagg-multimodal-decider", "program-aware-fairness"),
    *("slo-deadline-ordering-policy", "soft-reflective-ceiling-policy", "sheddable-eviction-filter", "decode-filter"),
    *("priority-then-time-eviction-order-policy", "topology-extractor", "endpoint-load-observer", "endpoint-notification-source"),
)
_OTHERS = """\
- {type: session-id-producer, parameters: {cookieName: session}}
- {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {sources: [{attribute: session-id}, {header: x-id}]}}}
- type: session-affinity-scorer
- {type: header-label-affinity-scorer, parameters: {headerName: x-zone, labelKey: zone}}
- {type: predicted-latency-producer, parameters: {predictInProduce: false, streamingMode: true, useEncoderCacheFeatures: true}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 16}}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider, encode: always-disagg-multimodal-decider}}
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: {matchLabels: {app: a}}}
    headerSelectors: [{name: zone, headerName: x-only, labelKey: zone, mode: strict}]
    revisionGating: {mode: disabled}
- type: request-attribute-reporter
  parameters: {attributes: [{key: {name: tokens}, expression: "usage.prompt_tokens / usage.completion_tokens"}]}
- {type: concurrency-detector, parameters: {maxConcurrency: 400}}
"""
_PROFILE = "".join(f"  - pluginRef: {name}\n" for name in (*_FILTERS, *_SCORERS))
_STAGES = "".join(
    f"- name: {stage}\n  plugins: [{{pluginRef: queue-scorer}}, {{pluginRef: prefix-cache-scorer}}, {{pluginRef: max-score-picker}}]\n"
    for stage in ("prefill", "encode")
)
EVERYTHING = (
    (
        beside("".join(f"- type: {name}\n" for name in _PLAIN) + _OTHERS, _PROFILE)
        .replace("kind:", "featureGates: [flowControl]\nkind:", 1)
        .replace("- name: default\n", f"{_STAGES}- name: decode\n")
    )
    + """\
requestHandler: {parsers: [PARSERS]}
objectives: [{name: later, priority: -1}, {name: first, priority: 5}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  usageLimitPolicyPluginRef: soft-reflective-ceiling-policy
  defaultRequestTTL: 3s
  enableEviction: true
  priorityBands: [{priority: 0, fairnessPolicyRef: program-aware-fairness, orderingPolicyRef: slo-deadline-ordering-policy}]
""".replace("PARSERS", ", ".join(f"{{pluginRef: {name}}}" for name in _PLAIN if name.endswith("-parser")))
)
"""Some fifty instances: every parser, decoders and prefill, sessions, media, predicted latencies, LoRA, topology, programs, observers."""

_NUMBERS = ("0", "-1", "1e308", "1e999", "nan", "inf", "9" * 400, "\u0661\u0662", " 5 ", "0x10", "1_000", "", "5;q=1", "\ufffd")
_TEXTS = ("", "\x00", "a\r\nb: c", "\u202e", "=", "====", "ZTA=", "e0", "'" * 9000, "\U0001f600" * 400, "pool/e0", ",".join("a" * 900))
_HEADERS = (
    *("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-llm-d-video-fps", "x-llm-d-video-duration-seconds"),
    *("x-llm-d-video-resolution", "x-session-token", "x-id", "cookie", "x-claude-code-session-id", "session_id", "x-zone", "x-only"),
    *("x-llm-d-inference-fairness-id", "x-llm-d-inference-objective", "test-epp-endpoint-selection", "epp-profile", "prefer"),
    *("x-kv-cache-source-host-port", "x-prefiller-host-port", "x-encoder-hosts-ports", "x-request-id", REWRITE, "traceparent", "baggage"),
)
_ANSWERS = ("endpoint-load-metrics", "endpoint-load-metrics-bin", "x-session-token", ":status", "content-type", "x-only", "trailer")


def _body(target: Target) -> tuple[str, bytes]:
    """A request that most of the plugins have something to say to."""
    rng = target.rng
    media = (
        {
            "type": "image_url",
            "image_url": {"url": rng.choice(("", "data:,", f"https://a/{rng.random()}", "data:image/gif;base64,R0lGODlh////"))},
        },
        {"type": "video_url", "video_url": {"url": "v" * rng.choice((1, 9000))}},
        {"type": "input_audio", "input_audio": {"data": "A" * rng.choice((0, 9000)), "format": "\x00"}},
        {"type": "text", "text": rng.choice(_TEXTS) * 20},
    )
    content = [rng.choice(media) for _ in range(rng.choice((0, 1, 40)))]
    limits = {rng.choice(("max_tokens", "max_completion_tokens", "n")): rng.choice((0, -1, 2**63, 1e308, "1", None, [], True, *[9] * 30))}
    salt = {"cache_salt": rng.choice(_TEXTS), "stream": rng.choice((True, False, None, 1))}
    text = rng.choice([each for each in _TEXTS if each])
    body = {"model": rng.choice(("m", text)), "messages": [{"role": "user", "content": content or text}], "prompt": text, **limits, **salt}
    return rng.choice((*["/v1/chat/completions"] * 6, "/v1/messages", "/v1/completions", "/v1/responses")), json.dumps(body).encode()


def _answer(target: Target) -> bytes:
    """What a model server says: usage that cannot be, reports of its load, statuses."""
    rng = target.rng
    counts = (0, 1, 2**63, 2**64 - 1, 10**40, -1, 1e308, "1", None, [1], {}, True)
    usage = {name: rng.choice(counts) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    usage |= {"prompt_tokens_details": rng.choice(({"cached_tokens": rng.choice(counts)}, [], 7, None))}
    kind = rng.choice(("application/json", "text/event-stream"))
    text = json.dumps({"model": rng.choice(_TEXTS), "usage": usage}).encode()
    body = b"data: " + text + b"\n\ndata: [DONE]\n\n" if kind != "application/json" else text
    loads = (f'JSON {{"named_metrics":{{"num_requests_waiting":{number}}}}}' for number in _NUMBERS)
    odd = {name: rng.choice((*_TEXTS, *loads, *_NUMBERS)) for name in rng.sample(_ANSWERS, 3)}
    return grpc(answer_messages(body, {"content-type": kind, **odd}, rng.choice((1, 40, 60_000))))


def _whole(target: Target) -> bytes:
    headers = {name: target.rng.choice((*_NUMBERS, *_TEXTS)) for name in target.rng.sample(_HEADERS, target.rng.choice((1, 3, 9)))}
    path, body = _body(target)
    return request(body, {":path": path, **headers}) + target.rng.choice((b"", _answer(target)))


def _unreadable(page: str) -> list[str]:
    """What a scraper would not read, or not be able to add up."""
    try:
        samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    except ValueError as problem:
        return [f"the page cannot be read: {problem!r}"]
    sums = [each.name for each in samples if each.name.endswith(("_sum", "_total")) and not math.isfinite(each.value)]
    return [f"{sums[0]} is no number"] if sums else []


async def words_for_every_plugin(target: Target) -> Iterable[str]:
    """Headers that some fifty plugins read, bodies with media, and usage of servers, all of it odd; and whether the page can be read."""
    for _ in range(4):
        await asyncio.gather(*(exchanged(target.ext_proc_port, [_whole(target) for _ in range(60)], 2.0) for _ in range(2)))
    faults = {line[:300] for line in (target.folder / "log").read_text(errors="replace").splitlines() if "plugin fault" in line}
    return [*_unreadable(await page_of(target)), *faults]


_WHOSE = {"x-llm-d-inference-fairness-id": "anywhere", ":path": "/v1/chat/completions", "x-llm-d-slo-tpot-ms": "10", "x-id": "one"}
_TALK = b'{"model":"anywhere","stream":true,"messages":[{"role":"user","content":"' + b"talk " * 900 + b'"}]}'


def _moments() -> list[bytes]:
    """What was said when a request ends: before its headers are whole, after them, amid its body, routed, refused, answered."""
    whole = request(_TALK, _WHOSE)
    events = b'data: {"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    answer = grpc(answer_messages(events * 9, {"content-type": "text/event-stream"}, 90))
    refused, wrong = request(b"{", _WHOSE), request(_TALK, {**_WHOSE, "x-only": "nowhere"})
    starts = [b"", whole[:40], grpc([headers_message(_WHOSE)]), whole[:-3], whole, refused, wrong, whole + grpc([trailers()])]
    return [*starts, whole + answer[:60], whole + answer[:200], whole + answer[:-4], whole + answer, whole + answer + answer]


async def ends_at_each_moment(target: Target) -> Iterable[str]:
    """Thousands of requests end at each moment, by a reset, the end of their connection or their own; whether anything of them stays."""

    async def ended(payload: bytes) -> None:
        async with connected(target.ext_proc_port, source=f"127.0.3.{target.rng.randrange(1, 250)}") as (reader, writer):
            ids = range(1, 241, 2)
            writer.write(HELLO + b"".join(opened(each) + data(each, payload) for each in ids))
            await answered(reader, target.rng.choice((0.05, 0.4)))
            if target.rng.random() < 0.6:
                code = target.rng.choice((0, 8, 2))
                last = (lambda each: frames.rst_stream(each, code)) if target.rng.random() < 0.7 else (lambda each: data(each, b""))
                writer.write(b"".join(map(last, ids)))
                await answered(reader, 0.1)

    moments = _moments()
    while target.seconds_left() > 3:
        await asyncio.gather(*map(ended, target.rng.sample(moments, 6)))
    for _ in range(20):
        await asyncio.sleep(0.25)
        left = _left_of(await page_of(target))
        if not left:
            return []
    return left


_LEVELS = ("llm_d_epp_inflight_requests", "llm_d_epp_inflight_tokens", "running_requests", "flow_control_queue")


def _left_of(page: str) -> list[str]:
    """Gauges of the attempt's own that are not back where they were."""
    lines = (
        line for line in page.splitlines() if 'fairness_id="anywhere"' in line and any(name in line.partition("{")[0] for name in _LEVELS)
    )
    return [f"five seconds after the last request it says {line[:300]}" for line in lines if float(line.rpartition(" ")[2]) != 0]


async def bursts_alike(target: Target) -> None:
    """Bursts of long prompts that have all but their ends in common, or come in pairs, beside five hundred endpoints or twelve."""
    if wide := target.rng.random() < 0.5:
        write_endpoints(target, hostile_entries(target.model_server_port, 500))
    common = b"x" * target.rng.choice((100, 30_000, 120_000))
    bodies = (b'{"model":"m","prompt":"%s%d"}' % (common, number // target.rng.choice((1, 2))) for number in range(4000))
    payloads = [request(body) for body, _ in zip(bodies, range(60 if len(common) > 1000 else 300), strict=False)]
    await asyncio.gather(*(hold(target, payloads, 1.2) for _ in range(8)))
    if wide:
        write_endpoints(target)


async def predictors_that_are_silent(target: Target) -> None:
    """The predictor takes each question and says nothing, beside a thousand endpoints and requests without a pause, in 300 MiB."""

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 18):
            pass

    write_endpoints(target, hostile_entries(target.model_server_port, 1000))
    async with serving(silent, port=_SILENT):
        while target.seconds_left() > 1.5:
            await asyncio.gather(*(hold(target, [request(_TALK, _WHOSE)] * 60, 1.0) for _ in range(6)))


_BURSTS = beside(
    "- {type: burst-prefix-cache-producer, parameters: {windowDurationMs: 300, minColocateBlocks: 1, blockSizeTokens: 16}}\n"
).replace(
    "- type: prefix-cache-scorer", "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: burst-prefix-cache-producer}}"
)
_ASKING = beside("- {type: predicted-latency-producer}\n- type: latency-scorer\n", "  - pluginRef: latency-scorer\n")
_AT = f"http://127.0.0.1:{_SILENT}"
ATTEMPTS = (
    Attempt(words_for_every_plugin, flags=(EXPERIMENTS,), config=EVERYTHING),
    Attempt(ends_at_each_moment, flags=(EXPERIMENTS,), config=EVERYTHING),
    Attempt(bursts_alike, flags=(EXPERIMENTS,), config=_BURSTS),
    Attempt(
        predictors_that_are_silent,
        flags=(EXPERIMENTS, "--max-memory=300Mi"),
        config=_ASKING,
        environment={"PREDICTION_SERVER_URL": _AT, "TRAINING_SERVER_URL": _AT},
    ),
)
