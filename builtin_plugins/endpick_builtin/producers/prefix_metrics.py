"""llm-d's metrics of a prefix index: how much it holds, and how much of each prompt it found where the prompt went."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, Histogram

from endpick_builtin.producers.prefix_hashing import BYTES_PER_TOKEN

RATIO_BUCKETS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BYTES_BUCKETS = (0.0, *(float(2**power) for power in range(4, 17)))


class PrefixMetrics:
    """The metrics of one index."""

    def __init__(self, registry: CollectorRegistry | None, entries: Callable[[], int]) -> None:
        """`entries` gives the blocks held; it is called when Prometheus asks."""
        prefix = "llm_d_epp_prefix_indexer_"
        size = Gauge(f"{prefix}size", "Prompt blocks held, counted for each endpoint that holds them.", registry=registry)
        size.set_function(entries)
        ratio = "Share of a prompt's blocks that were found where the prompt went."
        self._hit_ratio = Histogram(f"{prefix}hit_ratio", ratio, buckets=RATIO_BUCKETS, registry=registry)
        found = "Bytes of a prompt that were found where the prompt went."
        self._hit_bytes = Histogram(f"{prefix}hit_bytes", found, buckets=BYTES_BUCKETS, registry=registry)

    def found(self, matched: float, blocks: int, block_size_tokens: int) -> None:
        """A prompt of this many blocks goes where the first `matched` of them are."""
        self._hit_ratio.observe(matched / blocks)
        self._hit_bytes.observe(matched * block_size_tokens * BYTES_PER_TOKEN)
