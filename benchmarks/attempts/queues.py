"""Flow control where others decide what it goes by: servers that say how full they are, and an API server that says who is important."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable
from itertools import count

from benchmarks.attempts.api_server import CHUNKED, OBJECTIVES, Asked, answer, api_server, chunk, event, kubeconfig, listed
from benchmarks.attempts.api_server import config as of_kubernetes
from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import answer_messages, grpc, request
from benchmarks.attempts.kept import EXPERIMENTS, hold, page_of
from benchmarks.attempts.posing import hostile_entries, page, serving, write_endpoints
from benchmarks.attempts.streams import exchanged

_SHORT = b'{"model":"m","prompt":"p"}'
_EVENTS = b'data: {"usage":{"prompt_tokens":1,"completion_tokens":18446744073709551615}}\n\n'
_ANSWER = grpc(answer_messages(_EVENTS * 5, {"content-type": "text/event-stream"}, 50))
OBJECTIVE = "x-llm-d-inference-objective"


def queued(config: str, detector: str, rest: str = "") -> str:
    """The same with flow control, this detector, programs that share, and eviction."""
    plugins = f"- {detector}\n- type: program-aware-fairness\n- type: soft-reflective-ceiling-policy\n- type: edf-ordering-policy\n"
    eviction = "- type: sheddable-eviction-filter\n- type: priority-then-time-eviction-order-policy\n"
    kind = detector.partition("type: ")[2].partition(",")[0]
    return (
        config.replace("kind:", "featureGates: [flowControl]\nkind:", 1).replace("plugins:\n", f"plugins:\n{plugins}{eviction}", 1)
        + f"""\
flowControl:
  saturationDetector: {{pluginRef: {kind}}}
  usageLimitPolicyPluginRef: soft-reflective-ceiling-policy
  defaultRequestTTL: 3s
  enableEviction: true
  defaultPriorityBand: {{fairnessPolicyRef: program-aware-fairness, orderingPolicyRef: edf-ordering-policy, maxRequests: 9000}}
{rest}"""
    )


async def servers_that_claim_to_be_full(target: Target) -> None:
    """Two servers of fourteen report queues and caches mostly of 5000, sometimes NaN or nothing, while requests wait and are evicted."""
    claims = ("1e9", "1e308", "9" * 300, "NaN", "+Inf", "0", "-5", *["5000"] * 200)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            number = target.rng.choice(claims).encode()
            writer.write(page(b"vllm:num_requests_waiting %s\nvllm:kv_cache_usage_perc %s\n" % (number, number)))
            await writer.drain()

    async with serving(serve) as port:
        write_endpoints(target, hostile_entries(port, 2))
        while target.seconds_left() > 2:
            payloads = [request(_SHORT, {OBJECTIVE: target.rng.choice(("later", "last", "first"))}) + _ANSWER[:-9] for _ in range(200)]
            await asyncio.gather(*(hold(target, payloads, 0.7, reset=True) for _ in range(4)), return_exceptions=True)
        write_endpoints(target)


_turns = count()


async def bands_by_the_thousand(target: Target) -> Iterable[str]:
    """Three thousand objectives, each of a priority of its own that each list and watch changes, and requests for all of them that wait."""

    def objectives(turn: int) -> list[dict[str, object]]:
        meta = [{"name": f"o{number}", "resourceVersion": str(turn)} for number in range(3000)]
        return [{"metadata": one, "spec": {"poolRef": {"name": "pool"}, "priority": 5 + turn * 3000 + at}} for at, one in enumerate(meta)]

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path != OBJECTIVES:
            return False
        told = objectives(next(_turns))
        if not asked.watches:
            writer.write(answer(listed(told)))
            return True
        writer.write(CHUNKED + chunk(b"".join(map(event, told))))
        await writer.drain()
        await asyncio.sleep(1.0)
        writer.write(b"0\r\n\r\n")
        return True

    async with api_server(target, lie):
        await asyncio.sleep(1)
        while target.seconds_left() > 2.5:
            payloads = [request(_SHORT, {OBJECTIVE: f"o{target.rng.randrange(3000)}"}) + _ANSWER for _ in range(1500)]
            both = (exchanged(target.ext_proc_port, payloads[each::2], 2.0) for each in range(2))
            await asyncio.gather(*both, return_exceptions=True)
        lines = (await page_of(target)).splitlines()
    priorities = {line.partition('priority="')[2].partition('"')[0] for line in lines}
    return [f"the page tells {len(priorities)} priorities apart"] if len(priorities) > 600 else []


_POOL, _PLACE = 20_703, "http://127.0.0.1:20703/pool.json"
_COLLECTING = (
    CONFIG.replace(
        "plugins:\n",
        f"""plugins:
- {{type: http-pool-source, parameters: {{url: '{_PLACE}', interval: 50ms, timeout: 1s}}}}
- type: json-values-extractor
  parameters:
    values:
    - {{attributeKey: a/price, pointer: /price}}
    - {{attributeKey: a/text, pointer: /text, type: text}}
    - {{attributeKey: a/each, pointer: /each, perEndpoint: true}}
- {{type: dcgm-data-source, parameters: {{port: {_POOL}}}}}
- {{type: endpoint-attribute-scorer, parameters: {{attributeKey: a/each, algorithm: {{type: linear_lower_is_better}}}}}}
- {{type: models-data-source}}
""",
        1,
    )
    .replace("  - pluginRef: max-score-picker", "  - pluginRef: endpoint-attribute-scorer\n  - pluginRef: max-score-picker")
    .replace(
        "dataLayer: {discovery: {pluginRef: endpoints}}",
        "dataLayer: {discovery: {pluginRef: endpoints}, sources: ["
        "{pluginRef: http-pool-source, collectors: [{pluginRef: json-values-extractor}]}, "
        "{pluginRef: dcgm-data-source}, {pluginRef: models-data-source}]}",
    )
)


async def documents_about_the_pool(target: Target) -> None:
    """A document about the whole pool, and pages of GPUs of each endpoint: 8 MB of names, texts, numbers that are none, depth, halves."""
    rng = target.rng
    gpus = b"".join(b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",pod="e%d",namespace="x"} %d\n' % (gpu, gpu, gpu) for gpu in range(1900))
    bodies = (
        b'{"price":1e999,"each":{"e0":1}}',
        b'{"price":%s,"text":"%s","each":{"e0":-1e308,"e1":1e308,"e2":5e-324,"e3":true,"e4":"9"}}' % (b"9" * 19, b"t" * 8_000_000),
        b'{"each":{' + b",".join(b'"e%d":%d' % (each, each) for each in range(250_000)) + b"}}",
        b'{"each":{' + b",".join(b'"default/e%d":{}' % each for each in range(20_000)) + b"}}",
        b'{"text":"' + b"\\ud83d\\ude00" * 600_000 + b'"}',
        *(b"[" * 500_000, b'{"each":[]}', b"nan", b"", b"\xff\xfe", gpus, gpus * 20, b"DCGM_FI_DEV_GPU_UTIL NaN\n" * 9000),
        b'DCGM_FI_DEV_GPU_UTIL{pod="' + b"p" * 900_000 + b'"} 1e400\n',
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            body = rng.choice(bodies)
            packed = rng.random() < 0.2
            whole = page(gzip.compress(body, 1), b"Content-Encoding: gzip\r\n") if packed else page(body)
            writer.write(whole if rng.random() < 0.8 else whole[: rng.randrange(len(whole))])
            await writer.drain()
            if rng.random() < 0.2:
                return

    async with serving(serve, port=_POOL):
        write_endpoints(target, hostile_entries(_POOL, 30))
        await asyncio.sleep(max(1.0, target.seconds_left() - 1))
        write_endpoints(target)


_FULL = queued(
    CONFIG,
    "{type: utilization-detector, parameters: {metricsStalenessThreshold: 5s}}",
    "objectives: [{name: later, priority: -1}, {name: last, priority: -2}, {name: first, priority: 3}]\n",
)
ATTEMPTS = (
    Attempt(documents_about_the_pool, flags=(EXPERIMENTS,), config=_COLLECTING),
    Attempt(servers_that_claim_to_be_full, flags=(EXPERIMENTS,), config=_FULL),
    Attempt(
        bands_by_the_thousand,
        flags=(EXPERIMENTS,),
        config=queued(of_kubernetes(), "{type: concurrency-detector, parameters: {maxConcurrency: 40}}"),
        files={"kubeconfig": kubeconfig()},
        until_serving="benchmarks.attempts.api_server",
    ),
)
