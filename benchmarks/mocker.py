"""The simulated engine beside Dynamo's mocker, another model of the same server: one trace through both.

`python -m benchmarks.mocker --python ENV/bin/python`, where ENV is an environment of its own with `pip install ai-dynamo-runtime` and
`pip install --no-deps ai-dynamo`. The mocker runs in its own virtual time, without etcd or NATS, and with a polynomial cost of a step.
The simulated engine gets its linear cost, fitted to the mocker's answers to requests that are alone or all alike; then, to tell the cost
from the rest, also the constant that a step with a prefill takes in the mocker.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from endpick_lab.figures import tpot, ttft
from endpick_lab.pool import PoolSettings
from endpick_lab.run import run
from endpick_lab.settings import EngineSettings, Timing
from endpick_lab.trace import TraceRequest
from endpick_lab.workload import read_workload

BLOCK, BLOCKS, SEQUENCES, BATCHED = 64, 4000, 64, 2048
LOADS = (2.0, 6.0, 10.0)
WORKLOAD = """
duration: 300s
traffic:
  - {rate: CHATS, turns: 4, thinkTime: 20s, questionTokens: 600, outputTokens: 150}
  - {rate: AGENTS, tenants: 20, prefixTokens: 3000, questionTokens: 400, outputTokens: 60}
"""
ASK = """
import json, sys
from dynamo.replay import run_trace_replay
size, *engine = json.loads(sys.argv[2])
names = ("block_size", "num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
args = {"engine": dict(zip(names, engine)) | {"backend": "vllm"}}
report = run_trace_replay(sys.argv[1], trace_block_size=size, capture_per_request=True, extra_engine_args=args)
ordered = sorted(report.per_request, key=lambda one: one["arrival_time_ms"])
print(json.dumps([(one["ttft_ms"], one["itl_ms"], one["input_length"], one["reused_input_tokens"]) for one in ordered]))
"""


def mocker(python: str, requests: Sequence[TraceRequest]) -> np.ndarray:
    """A row for each request: milliseconds to the first token and per further token, tokens of the prompt, tokens from the cache."""
    numbers: dict[int, int] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for one in requests:
            blocks = [numbers.setdefault(block, len(numbers) + 1) for block in one.blocks]
            line = {"timestamp": one.at * 1000, "input_length": one.prompt_tokens, "output_length": one.output_tokens, "hash_ids": blocks}
            file.write(json.dumps(line) + "\n")
        file.flush()
        engine = json.dumps([BLOCK, BLOCK, BLOCKS, SEQUENCES, BATCHED])
        told = subprocess.run(
            [python, "-c", ASK, file.name, engine], check=True, capture_output=True, text=True, cwd=Path(file.name).parent
        )
    return np.array(json.loads(told.stdout.splitlines()[-1]), float)


def alone(count: int, prompt: int, output: int, *, every: float) -> list[TraceRequest]:
    """Prompts that share nothing."""
    size = -(-prompt // BLOCK)
    return [
        TraceRequest(number * every, prompt, output, tuple(range(number << 20, (number << 20) + size)), BLOCK) for number in range(count)
    ]


class Stepped(Timing):
    """As the mocker's: a step that prefills takes a constant longer, and its decoding counts only if others decode."""

    constant = 0.0

    def step_seconds(self, *, prefill_tokens: int, sequences: int, adapter_loads: int) -> float:
        if not prefill_tokens:
            return Timing.step_seconds(self, prefill_tokens=0, sequences=sequences, adapter_loads=adapter_loads)
        decoding = Timing.step_seconds(self, prefill_tokens=0, sequences=sequences - 1, adapter_loads=0) if sequences > 1 else 0.0
        return type(self).constant + self.prefill_seconds_per_token * prefill_tokens + decoding


def fitted(python: str) -> Timing:
    """The linear cost that is nearest to the mocker's; sets the constant of `Stepped`."""
    lengths = (256, 512, 1024, 1536, 2000)
    first = [float(mocker(python, alone(1, length, 2, every=1.0))[0, 0]) / 1000 for length in lengths]
    rate, start = np.polyfit(lengths, first, 1)
    pace = {clients: float(np.median(mocker(python, alone(clients, 1000, 400, every=0.0))[-1:, 1])) / 1000 for clients in (1, 32)}
    Stepped.constant = float(start)
    return Timing(float(rate), pace[1], (pace[32] / pace[1] - 1) / 31)


def simulated(timing: Timing, requests: Sequence[TraceRequest]) -> tuple[np.ndarray, float]:
    """Milliseconds to the first token and per further token of each request, and the share of cached tokens."""
    engine = EngineSettings(SEQUENCES, BATCHED, BLOCKS, BLOCK, BLOCKS * BLOCK, timing=timing)
    result = run(None, requests, PoolSettings(1, engine), 1)
    rows = [(ttft(one) * 1000, tpot(one) * 1000 if one.request.output_tokens > 1 else np.nan) for one in result.observed]
    return np.array(rows), result.hit_tokens / result.queried_tokens


def compare(name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    known = ~(np.isnan(ours) | np.isnan(theirs))
    ours, theirs = ours[known], theirs[known]
    rows = [(what, np.percentile(ours, share), np.percentile(theirs, share)) for what, share in (("p50", 50), ("p90", 90), ("p99", 99))]
    rows.insert(0, ("mean", ours.mean(), theirs.mean()))
    grid = np.sort(np.concatenate([ours, theirs]))
    steps = [np.searchsorted(np.sort(each), grid, "right") / len(each) for each in (ours, theirs)]
    distance = float(np.abs(steps[0] - steps[1]).max())
    ranks = [np.argsort(np.argsort(each)) for each in (ours, theirs)]
    print(f"  {name}: " + ", ".join(f"{what} {mine:.1f} / {other:.1f} ms = {mine / other:.2f}" for what, mine, other in rows))
    print(f"    distributions differ by at most {distance:.3f} (KS); rank correlation of requests {np.corrcoef(*ranks)[0, 1]:.3f}")


def main() -> int:
    """Fit, run both, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment with the mocker")
    python = parser.parse_args().python
    timing = fitted(python)
    rate, decode = timing.prefill_seconds_per_token * 1e6, timing.decode_seconds * 1e3
    stepped = Stepped(timing.prefill_seconds_per_token, timing.decode_seconds, timing.decode_slowdown_per_sequence)
    print(f"a step that prefills takes {Stepped.constant * 1e3:.1f} ms and what its tokens take in the mocker")
    print(f"fitted: prefill {rate:.1f} us a token, decode {decode:.2f} ms, slowdown {timing.decode_slowdown_per_sequence:.4f} a sequence")
    for load in LOADS:
        text = WORKLOAD.replace("CHATS", str(load / 8)).replace("AGENTS", str(load / 2))
        requests = read_workload(text).requests(1)
        theirs = mocker(python, requests)
        for kind, cost in (("linear", timing), ("as the mocker's", stepped)):
            ours, hits = simulated(cost, requests)
            print(f"{load:g} conversations a second, {len(requests)} requests, cost {kind}; simulated / mocker")
            print(f"  cached share of the prompts: {hits:.3f} / {theirs[:, 3].sum() / theirs[:, 2].sum():.3f}")
            compare("TTFT", ours[:, 0], theirs[:, 0])
            compare("TPOT", ours[:, 1], theirs[:, 1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
