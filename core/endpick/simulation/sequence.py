"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from endpick.simulation.generation import GenerationRequest


@dataclass(slots=True, eq=False)
class Sequence:
    """How far one request has come, and the KV blocks it holds."""

    request: GenerationRequest
    arrival: float
    generated: int = 0
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    published: int = 0
    """Leading blocks that are in the prefix index, or were refused by it."""
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    ended: bool = False

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding, more while prefilling."""
        return self.request.prompt_tokens + self.generated - self.computed
