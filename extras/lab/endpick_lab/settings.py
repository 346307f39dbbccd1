"""Settings of a simulated engine and its server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Timing:
    """A linear cost model of one engine step; the defaults resemble an 8B model on one data-centre GPU."""

    prefill_seconds_per_token: float = 0.000_1
    decode_seconds: float = 0.010  # of a step with one sequence, the minimum
    decode_slowdown_per_sequence: float = 0.01  # fraction of `decode_seconds` that each further sequence adds
    adapter_load_seconds: float = 0.050
    jitter: float = 0.0  # random variation, as a fraction

    def __post_init__(self) -> None:
        if self.decode_seconds <= 0:
            raise ValueError("decode_seconds must be greater than 0, or the engine would never advance")
        if min(self.prefill_seconds_per_token, self.decode_slowdown_per_sequence, self.adapter_load_seconds) < 0:
            raise ValueError("times and slowdowns cannot be negative")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and less than 1")

    def step_seconds(self, *, prefill_tokens: int, sequences: int, adapter_loads: int) -> float:
        """Return the duration of a step in seconds, before jitter."""
        batch = self.decode_seconds * (1 + self.decode_slowdown_per_sequence * max(sequences - 1, 0))
        return batch + self.prefill_seconds_per_token * prefill_tokens + self.adapter_load_seconds * adapter_loads


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine's capacity, with vLLM's names."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048  # per step; longer prompts are prefilled in chunks
    kv_blocks: int = 2048
    block_size: int = 16
    max_model_len: int = 16_384  # prompt and answer, in tokens
    max_loras: int = 0  # in one batch; 0 disables adapters
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_loras < 0:
            raise ValueError("max_loras cannot be negative")
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"a sequence of max_model_len={self.max_model_len} tokens does not fit in a KV cache of"
                f" {self.kv_blocks} blocks x {self.block_size} tokens; raise kv_blocks or lower max_model_len"
            )

    def slowed(self, speed: float) -> EngineSettings:
        """Return the settings of an engine that is `speed` times as fast."""
        timing = self.timing
        return replace(
            self,
            timing=replace(
                timing,
                prefill_seconds_per_token=timing.prefill_seconds_per_token / speed,
                decode_seconds=timing.decode_seconds / speed,
                adapter_load_seconds=timing.adapter_load_seconds / speed,
            ),
        )


PROFILES: Mapping[str, Timing] = {
    "a100-8b": Timing(),
    "h100-8b": Timing(prefill_seconds_per_token=0.000_033, decode_seconds=0.006),
    "h100x4-70b": Timing(prefill_seconds_per_token=0.000_071, decode_seconds=0.0132),
    "l4-8b": Timing(prefill_seconds_per_token=0.000_27, decode_seconds=0.067),
}
"""Named engines, from NVIDIA's data sheets: a decode step reads the 16-bit weights once from memory (2.0, 3.35, 4 x 3.35 and 0.3 TB/s, at
80 % of it), and a prompt token takes 2 x parameters operations (312, 989, 4 x 989 and 121 TFLOP/s dense, at 50 % of it)."""


ROLES = ("decode", "prefill", "encode", "prefill-decode", "encode-prefill", "encode-decode", "encode-prefill-decode")


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """Addresses of the KV event publisher."""

    address: str  # `tcp://*:5557` binds; without `*`, connects
    replay_address: str = ""  # empty for none


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one simulated server."""

    host: str = "127.0.0.1"
    port: int = 0  # 0 for any free port
    name: str = "sim"  # sent as `x-served-by`
    model: str = "sim-model"
    adapters: tuple[str, ...] = ()  # requested as model names
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0  # the same seed gives the same answers
    role: str = ""  # one of `ROLES`, as in the label `llm-d.ai/role`, or empty
    kv_events: KvEventSettings | None = None

    def __post_init__(self) -> None:
        if self.adapters and not self.engine.max_loras:
            raise ValueError("adapters are offered, but max_loras is 0")
        if self.role and self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}")

    @property
    def has_sidecar(self) -> bool:
        """Whether the server has a routing sidecar: those that decode, as in llm-d."""
        return "decode" in self.role.split("-")
