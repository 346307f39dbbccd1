"""Reads what the live table shows from a model server's own metrics page."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_WANTED = frozenset(
    {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total",
    }
)


@dataclass(frozen=True, slots=True)
class EndpointStats:
    """One model server at one moment."""

    requests: int
    """Answered since it started."""
    running: int
    waiting: int
    kv_cache_usage: float
    """0 to 1."""
    prefix_hit_ratio: float
    """0 to 1, over the server's life."""


async def read_stats(client: aiohttp.ClientSession, url: str) -> EndpointStats | None:
    """The server's state; None when it does not answer."""
    try:
        async with client.get(f"{url}/metrics") as response:
            return parse_stats(await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return None


def parse_stats(page: str) -> EndpointStats:
    """The figures of a metrics page; those missing are 0."""
    lines = (line for line in page.splitlines() if line.partition("{")[0] in _WANTED)
    values = dict.fromkeys(_WANTED, 0.0)
    for family in text_string_to_metric_families("\n".join((*lines, ""))):
        for sample in family.samples:
            values[sample.name] += sample.value
    queried = values["vllm:prefix_cache_queries_total"]
    return EndpointStats(
        requests=int(values["vllm:request_success_total"]),
        running=int(values["vllm:num_requests_running"]),
        waiting=int(values["vllm:num_requests_waiting"]),
        kv_cache_usage=values["vllm:kv_cache_usage_perc"],
        prefix_hit_ratio=values["vllm:prefix_cache_hits_total"] / queried if queried else 0.0,
    )
