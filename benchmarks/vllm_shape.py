"""The shape of a real vLLM's time to first token against load and reuse, beside the simulated engine with fitted rates.

`python -m benchmarks.vllm_shape PORT [--requests N]` asks a server of `tests/real` (random weights, four sequences, blocks of 32 tokens).
Nine cells, of medians: 0, 50 and 100 % of a prompt cached, times one, two and four clients that each wait for their answer. Fitted are the
prefill and the decode rate, the slowdown per sequence and a constant for HTTP; of the times to first token, from two cells: the other seven
are predicted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import count
from random import Random

import aiohttp
import numpy as np

from endpick_lab.engine import GenerationRequest, TokenUsage
from endpick_lab.pool import Followed, PooledServer
from endpick_lab.settings import EngineSettings, Timing
from endpick_lab.virtual_time import VirtualLoop

BLOCK, BLOCKS, SEQUENCES = 32, 256, 4
PROMPT, ANSWER = 1600, 16
REUSE, CLIENTS = (0.0, 0.5, 1.0), (1, 2, 4)
CELLS = [(reuse, clients) for clients in CLIENTS for reuse in REUSE]


def prompts(reuse: float, seed: int) -> list[list[int]]:
    """Endless different prompts of token ids that begin alike."""
    random = Random(seed)
    common = [Random(7).randrange(300, 2000) for _ in range(round(PROMPT * reuse))]
    return [common + [random.randrange(300, 2000) for _ in range(PROMPT - len(common))] for _ in range(400)]


async def measure(port: int, reuse: float, clients: int, requests: int, seed: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token, and per further token."""
    texts = iter(prompts(reuse, seed))
    first: list[float] = []
    further: list[float] = []

    async def one(session: aiohttp.ClientSession) -> tuple[float, float]:
        body = {"model": "tiny", "prompt": next(texts), "max_tokens": ANSWER, "ignore_eos": True, "stream": True, "temperature": 0}
        began = time.perf_counter()
        async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as answer:
            answer.raise_for_status()
            times = [time.perf_counter() async for line in answer.content if line.startswith(b'data: {"')]
        return times[0] - began, (times[-1] - times[0]) / (ANSWER - 1)

    async def client(session: aiohttp.ClientSession) -> None:
        for _ in range(requests):
            ttft, tpot = await one(session)
            first.append(ttft)
            further.append(tpot)

    async with aiohttp.ClientSession() as session:
        await one(session)  # fills the cache
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return first, further


class _Client(Followed):
    def __init__(self, server: PooledServer, loop: VirtualLoop, reuse: float, requests: int, numbers: count[int]) -> None:
        self.server, self.loop, self.left, self.numbers = server, loop, requests, numbers
        self.common = int(PROMPT * reuse) // BLOCK
        self.first: list[float] = []
        self.sent_at = 0.0

    def send(self) -> None:
        number = next(self.numbers)
        own = [number << 20 | block for block in range(PROMPT // BLOCK - self.common)]
        self.sent_at = self.loop.time()
        request = GenerationRequest(str(number), PROMPT, ANSWER, (*(-block - 1 for block in range(self.common)), *own))
        self.server.submit(request, self)

    def first_token(self, now: float) -> None:
        self.first.append(now - self.sent_at)

    def finished(self, now: float, usage: TokenUsage) -> None:
        self.left -= 1
        if self.left > 0:
            self.loop.at(now, self.send)


def simulate(timing: Timing, reuse: float, clients: int, requests: int) -> float:
    """Median seconds to the first token of the engine."""
    loop = VirtualLoop()
    settings = EngineSettings(
        max_num_seqs=SEQUENCES, kv_blocks=BLOCKS, block_size=BLOCK, max_model_len=4096, max_num_batched_tokens=2048, timing=timing
    )
    server, numbers = PooledServer(0, settings, loop, 1), count()
    warm = _Client(server, loop, reuse, 1, numbers)
    loop.at(0.0, warm.send)
    loop.run_until_complete(loop.run_events())
    all_clients = [_Client(server, loop, reuse, requests, numbers) for _ in range(clients)]
    for client in all_clients:
        loop.at(loop.time(), client.send)
    loop.run_until_complete(loop.run_events())
    loop.close()
    return float(np.median([ttft for client in all_clients for ttft in client.first]))


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def main() -> int:
    """Measure, fit, predict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, default=8, help="of each client, in each round")
    parser.add_argument("--rounds", type=int, default=5, help="in which the cells take turns")
    given = parser.parse_args()
    asyncio.run(measure(given.port, 0.0, 1, 5, 99))  # what is compiled or imported at first use
    measured: dict[tuple[float, int], tuple[list[float], list[float]]] = {cell: ([], []) for cell in CELLS}
    for turn in range(given.rounds):
        for number, cell in enumerate(CELLS):
            found = asyncio.run(measure(given.port, *cell, given.requests, 100 * turn + number))
            for kept, new in zip(measured[cell], found, strict=True):
                kept.extend(new)
    real = {cell: float(np.median(first)) for cell, (first, _) in measured.items()}
    pace = {cell: float(np.median(further)) for cell, (_, further) in measured.items()}
    missing = {reuse: PROMPT - min(int(PROMPT * reuse) // BLOCK * BLOCK, (PROMPT - 1) // BLOCK * BLOCK) for reuse in REUSE}
    rate = (real[0.0, 1] - real[1.0, 1]) / (missing[0.0] - missing[1.0])
    decode = pace[1.0, 1]
    slowdown = max((pace[1.0, 4] / decode - 1) / 3, 0.0)
    constant = max(real[1.0, 1] - decode - rate * missing[1.0], 0.0)
    timing = Timing(rate, decode, slowdown)
    simulated = {cell: constant + simulate(timing, *cell, given.requests) for cell in CELLS}
    print(f"prefill {rate * 1e6:.1f} us a token, decode {decode * 1e3:.2f} ms, slowdown {slowdown:.3f}, constant {constant * 1e3:.1f} ms")
    for cell in CELLS:
        ratio = simulated[cell] / real[cell]
        print(
            f"{cell[0]:.0%} cached, {cell[1]} clients: real {real[cell] * 1e3:.1f} ms, simulated {simulated[cell] * 1e3:.1f}, {ratio:.2f}"
        )
    one, other = ([values[cell] for cell in CELLS] for values in (real, simulated))
    ratios = np.array([simulated[cell] / real[cell] for cell in CELLS])
    print(f"rank correlation {np.corrcoef(ranks(one), ranks(other))[0, 1]:.3f}")
    print(f"simulated / real: geometric mean {np.exp(np.log(ratios).mean()):.3f}, from {ratios.min():.2f} to {ratios.max():.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
