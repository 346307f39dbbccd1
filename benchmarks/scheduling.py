"""What deciding costs, without network or protocol: `python -m benchmarks.scheduling`.

Prints microseconds of one CPU per call: scheduling alone for 4 to 1000 endpoints, then parsing, hashing and prefix look-up by prompt size.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from time import process_time

import numpy as np
import orjson

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    DataProducer,
    Endpoint,
    InferenceRequest,
    Plugin,
    PluginContext,
    PreRequest,
    Prompt,
)
from endpick.api.access import Access
from endpick.api.data import AnyKey
from endpick.api.keys import LORA_ADAPTERS, LoraAdapters
from endpick.api.state import CycleState
from endpick.data.table import EndpointTable
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import default_on_fault, kinds_of
from endpick.host.schema import own_model
from endpick.host.telemetry import NullTelemetry
from endpick.requests.director import Director
from endpick.requests.model import CloseCause, IncomingRequest, Routed
from endpick.requests.pipeline import compile_pipeline, compile_producer, produce
from endpick.scheduling.scheduler import compile_profile, compile_scheduler
from endpick_builtin.handlers.profiles import SingleProfileHandler
from endpick_builtin.label_filters import DecodeFilter
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.pickers import MaxScorePicker
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.producers.prefix_tree import PrefixTree
from endpick_builtin.producers.prompt_blocks import FINGERPRINT_BYTES, fingerprints
from endpick_builtin.scorers.affinity import LoraAffinityScorer, PrefixCacheScorer
from endpick_builtin.scorers.load import KVCacheUtilizationScorer, QueueScorer, RunningRequestsScorer

POOL_SIZES = (4, 16, 100, 1000)
PROMPT_BYTES = (1_000, 16_000, 220_000)
KEYS: tuple[AnyKey, ...] = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, LORA_ADAPTERS)
DEFAULT_PROFILE: tuple[tuple[type[Plugin], float], ...] = ((QueueScorer, 2), (KVCacheUtilizationScorer, 2), (PrefixCacheScorer, 3))
FIVE_SCORERS = (*DEFAULT_PROFILE, (RunningRequestsScorer, 1), (LoraAffinityScorer, 1))
SILENT = NullTelemetry()


def instance(plugin: type[Plugin], **parameters: object) -> Instance:
    """One built plugin, as the host would build it."""
    model = own_model(plugin)
    assert model is not None
    values = model(**parameters)
    subscriptions, kinds = plugin.subscriptions(values), kinds_of(plugin)
    name = plugin.__name__
    built = plugin(name, values, PluginContext(random=random.Random(1)))
    return Instance(name, name, "endpick", "0", kinds, built, subscriptions, default_on_fault(kinds), scope_of(name, subscriptions))


def pool(size: int) -> EndpointTable:
    """Endpoints with plausible, different values in all columns."""
    table = EndpointTable(clock=lambda: 1.0, keys=KEYS)
    table.replace_all(Endpoint(f"bench/{n}", f"10.0.{n // 250}.{n % 250}", 8000) for n in range(size))
    write, draw = table.writer(None).set, random.Random(7)
    for endpoint in table.generation.endpoints:
        write(WAITING_QUEUE_SIZE, float(draw.randrange(20)), endpoint)
        write(RUNNING_REQUESTS_SIZE, float(draw.randrange(50)), endpoint)
        write(KV_CACHE_USAGE, draw.random(), endpoint)
        write(LORA_ADAPTERS, LoraAdapters(frozenset({"a"}), frozenset(), 4), endpoint)
    return table


def prompt(size: int, seed: int = 1) -> bytes:
    """Text that compresses like nothing in particular."""
    return bytes(random.Random(seed).choices(b"abcdefghijklmnopqrstuvwxyz     ", k=size))


def chat_body(size: int) -> bytes:
    """A conversation of eight messages."""
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": prompt(size // 8, n).decode()} for n in range(8)]
    return orjson.dumps({"model": "m", "messages": messages, "stream": True})


def microseconds(call: Callable[[], object], at_least_seconds: float = 0.15) -> float:
    """CPU time of one call: the best of five rounds, so that other people's work on the machine counts little."""
    call()
    rounds = 1
    while True:
        started = process_time()
        for _ in range(rounds):
            call()
        if process_time() - started > at_least_seconds / 5:
            break
        rounds *= 2
    gc.disable()
    best = np.inf
    for _ in range(5):
        started = process_time()
        for _ in range(rounds):
            call()
        best = min(best, process_time() - started)
    gc.enable()
    return float(best / rounds * 1e6)


def scheduling(size: int, scorers: Sequence[tuple[type[Plugin], float]], prompt_bytes: int | None) -> float:
    """One decision; with a prompt, its hashing and its look-up are part of it."""
    table, access = pool(size), Access()
    profile = compile_profile(
        "default", [instance(DecodeFilter)], [(instance(kind), weight) for kind, weight in scorers], instance(MaxScorePicker), SILENT
    )
    scheduler = compile_scheduler(instance(SingleProfileHandler), {"default": profile}, SILENT)
    text = prompt(prompt_bytes or 0)
    request = InferenceRequest(id="bench", model="m", prompt=Prompt(lambda: (text,)))
    producers = [compile_producer(instance(ApproxPrefixCacheProducer), SILENT)] if prompt_bytes else []

    endpoints = table.view(access)

    def decide() -> object:
        state = CycleState(access)
        produce(producers, request, endpoints, state, access)
        return scheduler.schedule(request, endpoints, state, access)

    return microseconds(decide)


def directing(size: int, body_bytes: int) -> float:
    """A whole request under the default profile: decision, response headers, one piece of the answer, end."""
    profile = compile_profile(
        "default", [], [(instance(kind), weight) for kind, weight in DEFAULT_PROFILE], instance(MaxScorePicker), SILENT
    )
    producer = instance(ApproxPrefixCacheProducer)
    pipeline = compile_pipeline(
        scheduler=compile_scheduler(instance(SingleProfileHandler), {"default": profile}, SILENT),
        parsers=[instance(OpenAIParser)],
        on_request={DataProducer: [producer], PreRequest: [producer]},
        telemetry=SILENT,
    )
    director = Director(pipeline, pool(size), SILENT, lambda: 1.0)
    headers = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json", "x-request-id": "bench"}
    incoming = IncomingRequest(headers, chat_body(body_bytes), None, 1.0)
    answer = b'{"model":"m","usage":{"prompt_tokens":10,"completion_tokens":20}}'

    def serve() -> None:
        routed = director.decide(incoming)
        assert isinstance(routed, Routed)
        routed.exchange.response_headers({":status": "200", "content-type": "application/json"}, None)
        routed.exchange.response_chunk(answer, True)
        routed.exchange.finish(CloseCause.END)

    return microseconds(serve)


def look_up(size: int, blocks: int) -> float:
    """Matching a prompt whose beginning is everywhere, and whose later parts fewer and fewer endpoints hold."""
    index = PrefixTree()
    names = [f"bench/{n}" for n in range(size)]
    index.slots(names)
    whole = fingerprints(prompt(blocks * 256), 1, 64, None, 1)
    for position, name in enumerate(names):
        index.insert(name, whole[: blocks * (position + 1) // size * FINGERPRINT_BYTES], 31250)
    return microseconds(lambda: index.match(whole))


def remember(size: int, blocks: int) -> float:
    """Noting a prompt for one of the endpoints, which holds it already."""
    index = PrefixTree()
    names = [f"bench/{n}" for n in range(size)]
    index.slots(names)
    whole = fingerprints(prompt(blocks * 256), 1, 64, None, 1)
    for name in names:
        index.insert(name, whole, 31250)
    return microseconds(lambda: index.insert(names[-1], whole, 31250))


def parse(size: int) -> tuple[float, float, float]:
    """Parsing a chat body, the same with rendering its prompt, and hashing the prompt."""
    body = chat_body(size)
    parser = instance(OpenAIParser).plugin
    assert isinstance(parser, OpenAIParser)

    def render() -> object:
        parsed = parser.parse("/v1/chat/completions", {}, body)
        return parsed.prompt.texts  # type: ignore[union-attr]

    text = prompt(size)
    only = microseconds(lambda: parser.parse("/v1/chat/completions", {}, body))
    return only, microseconds(render), microseconds(lambda: fingerprints(text, 1, 64, 2048, 1))


def table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    """Print one."""
    print(f"\n{title}\n{'':<44}" + "".join(f"{column:>12}" for column in columns))
    for name, values in rows:
        print(f"{name:<44}" + "".join(f"{value:>12.1f}" for value in values))


def main() -> None:
    """Measure and print everything."""
    sizes = [f"{size} endp." for size in POOL_SIZES]
    profiles = (
        ("max-score-picker alone", (), None),
        ("default profile, no prompt", DEFAULT_PROFILE, None),
        ("five scorers, no prompt", FIVE_SCORERS, None),
        ("default profile, 16 KB prompt hashed", DEFAULT_PROFILE, 16_000),
        ("five scorers, 16 KB prompt hashed", FIVE_SCORERS, 16_000),
    )
    decisions = [(name, [scheduling(size, scorers, size_of_prompt) for size in POOL_SIZES]) for name, scorers, size_of_prompt in profiles]
    for name, costs in decisions:
        print(f"{name}: a decision among {POOL_SIZES[-1]} endpoints costs {costs[-1] / costs[0]:.1f} x one among {POOL_SIZES[0]}")
    table("One decision (µs CPU): decode-filter, scorers, max-score-picker", sizes, decisions)
    table(
        "One request through the director (µs CPU): default profile, decision to end",
        sizes,
        [(f"{size // 1000} KB chat body", [directing(endpoints, size) for endpoints in POOL_SIZES]) for size in PROMPT_BYTES],
    )
    table(
        "Prefix index (µs CPU)",
        sizes,
        [(f"look up {blocks} blocks", [look_up(size, blocks) for size in POOL_SIZES]) for blocks in (256, 2048)]
        + [(f"remember {blocks} blocks", [remember(size, blocks) for size in POOL_SIZES]) for blocks in (256, 2048)],
    )
    measured = [parse(size) for size in PROMPT_BYTES]
    names = ("parse chat body", "parse and render chat body", "hash prompt, blocks of 64 tokens")
    table(
        "Reading a request (µs CPU)",
        [f"{size // 1000} KB" for size in PROMPT_BYTES],
        [(name, [costs[row] for costs in measured]) for row, name in enumerate(names)],
    )


if __name__ == "__main__":
    main()
