"""Model servers that say absurd things of their KV cache, of which what is learnt of others depends."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import request
from benchmarks.attempts.kept import page_of
from benchmarks.attempts.posing import page, serving, write_endpoints
from benchmarks.attempts.streams import exchanged

_NUMBERS = ("1e300", "1", "999999999999999", "8191", "1e18", "0", "-1", "0.5", "NaN", "1048576", "65537")
_HITS = re.compile(r"^llm_d_epp_prefix_indexer_hit_ratio_(sum|count)\S* (\S+)$", re.MULTILINE)


async def caches_of_absurd_layouts(target: Target) -> Iterable[str]:
    """Ten of 22 servers, of two engines, say that their KV cache has blocks of 1e300 tokens, of none, of others at each look."""
    looks = itertools.count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            size, blocks = (_NUMBERS[(next(looks) // 7 + more) % len(_NUMBERS)] for more in (0, 3))
            body = f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{blocks}"}} 1\nvllm:num_requests_waiting 0\n'
            body += f"sglang:page_size {size}\nsglang:num_pages {blocks}\nsglang:num_queue_reqs 0\n"
            writer.write(page(body.encode()))
            await writer.drain()

    async with serving(serve) as port:
        entries = [
            {
                "name": f"h{n}",
                "address": f"127.0.96.{n + 1}",
                "port": str(port),
                "labels": {"inference.networking.k8s.io/engine-type": "sglang" if n % 2 else "vllm"},
            }
            for n in range(10)
        ]
        write_endpoints(target, *(f"- {json.dumps(entry)}\n" for entry in entries))
        await asyncio.sleep(1.5)
        before = _hits(await page_of(target))
        start = f"{target.rng.random()}" * 400
        for number in range(4):
            prompts = [json.dumps({"model": "m", "prompt": f"{start}{number}-{n}"}).encode() for n in range(40)]
            await exchanged(target.ext_proc_port, [request(prompt) for prompt in prompts], 2.0)
            await asyncio.sleep(0.3)
        ratio, count = (after - then for after, then in zip(_hits(await page_of(target)), before, strict=True))
    write_endpoints(target)
    if count < 100 or ratio / count < 0.4:
        return [f"of {count:.0f} prompts with one beginning {ratio:.1f} were found where they went"]
    return []


def _hits(text: str) -> tuple[float, float]:
    found = dict(_HITS.findall(text))
    return float(found.get("sum", 0)), float(found.get("count", 0))


ATTEMPTS = (Attempt(caches_of_absurd_layouts),)
