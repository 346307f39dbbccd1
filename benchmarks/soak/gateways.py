"""Two well-behaved gateways over grpcio: `python -m benchmarks.soak.gateways PORT SECONDS`; prints JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import grpc

from benchmarks.extproc.messages import conversations
from endpick.transport.methods import EXT_PROC_PATH

CONNECTIONS, STREAMS, PAUSE_SECONDS = 2, 4, 0.03


class Gateway:
    """One connection that sends requests until the time is up and waits for every reply."""

    def __init__(self, port: int, seed: int, until: float) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._method = self._channel.stream_stream(EXT_PROC_PATH)
        self._random = random.Random(seed)
        self._until = until
        self._messages = [conversation.messages for conversation in conversations()[:3]]
        self.requests = 0
        self.lost: list[str] = []
        self.picks: list[float] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._requests() for _ in range(STREAMS)))
        await self._channel.close()

    async def _requests(self) -> None:
        while time.monotonic() < self._until:
            try:
                async with asyncio.timeout(30):
                    await self._request(self._random.choice(self._messages))
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                self.lost.append(str(error)[:300])
            self.requests += 1
            await asyncio.sleep(self._random.uniform(0, 2 * PAUSE_SECONDS))

    async def _request(self, messages: tuple[bytes, ...]) -> None:
        call = self._method()
        sent = time.perf_counter()
        for message in messages:
            await call.write(message)
        if await call.read() is grpc.aio.EOF:
            self.lost.append("no reply")
            return
        self.picks.append(time.perf_counter() - sent)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass


async def main(port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    gateways = [Gateway(port, seed, until) for seed in range(CONNECTIONS)]
    await asyncio.gather(*(gateway.run() for gateway in gateways))
    found = {
        "requests": sum(gateway.requests for gateway in gateways),
        "lost": [reason for gateway in gateways for reason in gateway.lost],
        "picks": [pick for gateway in gateways for pick in gateway.picks],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
