"""The engine on a production trace: its prefix cache finds exactly what an unlimited cache can find, and less when it is small."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

from endpick_lab.engine import Engine, Finished, GenerationRequest
from endpick_lab.settings import EngineSettings, Timing

REPOSITORY = Path(__file__).resolve().parents[3]
TRACE = Path(os.environ.get("ENDPICK_TEST_DATA", REPOSITORY.parent / "shared" / "data")) / "mooncake/conversation_trace.jsonl"
BLOCK_TOKENS = 512
TIMING = Timing(prefill_seconds_per_token=5e-5, decode_seconds=0.01)


@dataclass(frozen=True)
class Line:
    """One request of the trace."""

    arrival_seconds: float
    request: GenerationRequest


@pytest.fixture(scope="module")
def trace() -> list[Line]:
    if not TRACE.is_file():
        pytest.skip(f"there is no trace at {TRACE}; set ENDPICK_TEST_DATA to the folder that holds mooncake/")
    lines = []
    with TRACE.open() as file:
        for number, line in enumerate(islice(file, 600)):
            entry = json.loads(line)
            request = GenerationRequest(str(number), entry["input_length"], max(1, entry["output_length"]), tuple(entry["hash_ids"]))
            lines.append(Line(entry["timestamp"] / 1000, request))
    return lines


def engine(kv_blocks: int) -> Engine:
    return Engine(
        EngineSettings(max_num_batched_tokens=8192, kv_blocks=kv_blocks, block_size=BLOCK_TOKENS, max_model_len=200_000, timing=TIMING)
    )


def test_unlimited_cache_finds_every_earlier_prefix(trace: list[Line]):
    unlimited = engine(kv_blocks=50_000)
    seen: set[int] = set()
    for line in trace:
        request = line.request
        full_blocks = request.block_hashes[: request.prompt_tokens // BLOCK_TOKENS]
        known = next((i for i, block in enumerate(full_blocks) if block not in seen), len(full_blocks))
        expected = min(known, (request.prompt_tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS
        seen.update(full_blocks)
        seen.update(request.block_hashes[: (request.prompt_tokens + request.output_tokens - 1) // BLOCK_TOKENS])

        unlimited.submit(request, now=float(request.id) * 1000)
        events = unlimited.advance(float(request.id) * 1000 + 999)
        (usage,) = [event.usage for event in events if isinstance(event, Finished)]
        assert usage.cached_tokens == expected, f"request {request.id}"


def test_real_arrivals_finish_and_a_small_cache_hits_less(trace: list[Line]):
    hits = {}
    for kv_blocks in (400, 50_000):
        busy = engine(kv_blocks)
        for line in trace:
            busy.submit(line.request, line.arrival_seconds)
        events = busy.advance(1e9)
        assert sum(isinstance(event, Finished) for event in events) == len(trace)
        metrics = busy.metrics(1e9)
        assert (metrics.finished, metrics.kv_cache_usage) == (len(trace), 0.0)
        hits[kv_blocks] = metrics.prefix_cache_hit_tokens
    assert 0 < hits[400] < hits[50_000]
