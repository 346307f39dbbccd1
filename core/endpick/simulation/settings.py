"""Size and speed of a simulated engine, and what the server around it offers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """A linear cost model of one engine step; the defaults are of the order of an 8B model on one data-centre GPU."""

    prefill_seconds_per_token: float = 0.000_1
    decode_seconds: float = 0.010
    """A step with a single sequence; also the least any step takes."""
    decode_slowdown_per_sequence: float = 0.01
    """Each further sequence in the batch makes the step longer by this fraction of `decode_seconds`."""
    adapter_load_seconds: float = 0.050
    jitter: float = 0.0
    """Each step is longer or shorter by up to this fraction, drawn from the engine's random source."""

    def __post_init__(self) -> None:
        if self.decode_seconds <= 0:
            raise ValueError("decode_seconds must be greater than 0, or the engine would never advance")
        if min(self.prefill_seconds_per_token, self.decode_slowdown_per_sequence, self.adapter_load_seconds) < 0:
            raise ValueError("times and slowdowns cannot be negative")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and less than 1")

    def step_seconds(self, *, prefill_tokens: int, sequences: int, adapter_loads: int) -> float:
        """Seconds that a step takes which prefills `prefill_tokens` and advances `sequences` in all, before jitter."""
        batch = self.decode_seconds * (1 + self.decode_slowdown_per_sequence * max(sequences - 1, 0))
        return batch + self.prefill_seconds_per_token * prefill_tokens + self.adapter_load_seconds * adapter_loads


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one engine can hold at a time; the names are vLLM's where vLLM has one."""

    max_num_seqs: int = 64
    """Sequences in one batch."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step; longer prompts are prefilled in chunks."""
    kv_blocks: int = 2048
    block_size: int = 16
    """Tokens per KV block."""
    max_model_len: int = 16_384
    """Most tokens of prompt and answer together."""
    max_loras: int = 0
    """Adapters that fit in one batch; 0 disables adapters."""
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


ROLES = ("decode", "prefill", "encode", "prefill-decode", "encode-prefill", "encode-decode", "encode-prefill-decode")


@dataclass(frozen=True, slots=True)
class KvEventSettings:
    """Where a server publishes what its KV cache stores and evicts."""

    address: str
    """`tcp://*:5557` listens; an address without `*` is dialled."""
    replay_address: str = ""
    """Where past messages can be had; empty: nowhere."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What one simulated model server serves, and where."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free port; `SimulatedServer.port` returns it."""
    name: str = "sim"
    """Sent as `x-served-by` with every response."""
    model: str = "sim-model"
    adapters: tuple[str, ...] = ()
    """LoRA adapters on offer; a request asks for one by naming it as its model."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    seed: int = 0
    """Servers with the same seed give the same answer to the same prompt."""
    role: str = ""
    """One of `ROLES`, as the label `llm-d.ai/role` says it; empty for a server outside any. One that decodes heeds the headers by which
    a picker says where the other stages run."""
    kv_events: KvEventSettings | None = None

    def __post_init__(self) -> None:
        if self.adapters and not self.engine.max_loras:
            raise ValueError("adapters are offered, but max_loras is 0")
        if self.role and self.role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}")

    @property
    def has_sidecar(self) -> bool:
        """Whether a sidecar stands in front of it, as of every server that decodes."""
        return "decode" in self.role.split("-")
