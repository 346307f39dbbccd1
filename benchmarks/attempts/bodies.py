"""Request bodies and answers that cost more than they look."""

from __future__ import annotations

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import answered, connected, request, send_flow_controlled


async def prompts_of_one_token(target: Target) -> None:
    """`"prompt":[[1],[1],…]` of 30 MB."""
    async with connected(target.ext_proc_port) as (reader, writer):
        await send_flow_controlled(reader, writer, 1, request(b'{"model":"m","prompt":[' + b"[1]," * 7_500_000 + b"[1]]}"))
        await answered(reader, 2)


ATTEMPTS = (Attempt(prompts_of_one_token),)
