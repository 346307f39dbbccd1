"""Traffic that flows while something else happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from integration.serve.gateway import Gateway, until


@dataclass
class Load:
    """Requests that keep coming; what became of each."""

    served: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stopping: bool = False

    async def client(self, gateway: Gateway, number: int) -> None:
        turn = 0
        while not self.stopping:
            turn += 1
            try:
                async with await gateway.chat(f"client {number} turn {turn}", max_tokens=8) as response:
                    body = await response.text()
                    if response.status == 200:
                        self.served[response.headers["x-served-by"]] += 1
                    else:
                        self.failed.append(f"{response.status} {body}")
            except OSError as problem:
                self.failed.append(repr(problem))

    async def beyond(self, count: int) -> None:
        """Wait until this many more have been served."""
        target = self.served.total() + count

        async def reached() -> bool:
            return self.served.total() >= target

        await until(reached, f"{count} more requests served; failures: {self.failed[:3]}")
