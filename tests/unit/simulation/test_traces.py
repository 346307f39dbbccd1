"""Traces and workloads: what is read, what is drawn, and what is wrong with them."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest

from endpick_lab.trace import TraceError, TraceRequest, body_of, read_trace, spread
from endpick_lab.workload import read_workload

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}\n'
    '{"timestamp": 0, "input_length": 600, "output_length": 0, "hash_ids": [1, 3]}\n\n'
    '{"timestamp": 3000, "input_length": 0, "output_length": 7, "hash_ids": []}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.0319600,3180,8\n"
TRAFFIC = (
    "duration: 100s\ntraffic: [{rate: 2, questionTokens: 100, outputTokens: 50, tenants: 3, prefixTokens: 640, turns: 3, thinkTime: 5s}]\n"
)


def test_mooncake(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE)
    first, second, third = read_trace(file)
    assert (first.at, first.prompt_tokens, first.output_tokens, first.blocks, first.block_tokens) == (0.0, 1000, 5, (1, 2), 512)
    assert (second.output_tokens, second.blocks) == (1, (1, 3))
    assert (third.at, third.prompt_tokens, len(third.blocks)) == (3.0, 1, 1)


def test_azure(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(AZURE)
    first, second = read_trace(file)
    assert (first.at, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at == pytest.approx(1.052)
    assert not set(first.blocks) & set(second.blocks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no requests"),
        (MOONCAKE.replace("3000", "-1"), r"line 4: timestamp: Input should be greater than or equal to 0"),
        (MOONCAKE.replace('"timestamp": 0,', '"timestamp": 9000,', 1), r"line 2: the timestamp 0 is before"),
        (MOONCAKE.replace('"output_length": 5, ', ""), r"line 1: output_length: Field required"),
        (MOONCAKE.replace("1000", "1e12"), r"line 1: input_length"),
        ("nonsense\n", r"line 1: the line: Invalid JSON"),
        (AZURE.replace("3180", "many"), r"line 3: invalid literal"),
        (AZURE.replace("18:17:05", "18:17:01"), r"line 3: time goes backwards"),
    ],
)
def test_wrong_traces_are_refused_with_their_line(tmp_path, text, message):
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(file)


def test_the_text_of_a_prompt_is_equal_as_far_as_its_blocks_are():
    one = TraceRequest(0.0, 1000, 5, (1, 2), 512)
    other = TraceRequest(0.0, 900, 5, (1, 7), 512)
    assert len(one.text()) == 4000
    assert one.text()[:2048] == other.text()[:2048]
    assert one.text()[2048:2064] != other.text()[2048:2064]
    assert orjson.loads(body_of(one, "m")) == {
        "model": "m",
        "prompt": one.text(),
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_requests_of_the_same_time_are_spread():
    requests = [TraceRequest(at, 1, 1, (0,), 16) for at in (0.0, 0.0, 0.0, 3.0, 60.0, 60.0)]
    moved = spread(requests, seed=1)
    times = [one.at for one in moved]
    assert times == sorted(times)
    assert 0.0 < times[0] < times[2] < 3.0
    assert times[3] == 3.0
    assert 60.0 < times[4] < times[5] <= 65.0
    assert spread(requests, seed=1) == moved
    assert spread(requests, seed=2) != moved


def test_a_workload_is_drawn_by_its_seed():
    workload = read_workload(TRAFFIC)
    requests = workload.requests(seed=1)
    assert requests == workload.requests(seed=1)
    assert requests != workload.requests(seed=2)
    assert all(before.at <= after.at < 100 for before, after in pairwise(requests))
    assert 300 < len(requests) < 900  # 200 conversations of three turns, some of which begin too late for all
    assert {one.headers["x-llm-d-inference-fairness-id"] for one in requests} == {"tenant-0", "tenant-1", "tenant-2"}
    assert len({one.blocks[:10] for one in requests}) == 3  # 640 tokens are ten blocks of 64


def test_the_next_turn_begins_like_the_one_before():
    by_session: dict[str, list[TraceRequest]] = {}
    for one in read_workload(TRAFFIC).requests(seed=1):
        by_session.setdefault(one.headers["x-session-id"], []).append(one)
    pairs = [pair for turns in by_session.values() for pair in pairwise(turns)]
    assert pairs
    for before, after in pairs:
        full = before.prompt_tokens // before.block_tokens
        assert after.blocks[:full] == before.blocks[:full]
        assert after.prompt_tokens > before.prompt_tokens + before.output_tokens


def test_bursts_keep_the_mean_rate():
    text = "duration: 600s\ntraffic: [{rate: 5, questionTokens: 10, outputTokens: 1, burst: 6, burstPeriod: 60s}]\n"
    requests = read_workload(text).requests(seed=3)
    in_bursts = sum(one.at % 60 < 6 for one in requests)
    assert 2700 < len(requests) < 3300
    assert 0.5 < in_bursts / len(requests) < 0.7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("duration: 1s", "traffic: Field required"),
        (TRAFFIC.replace("rate: 2", "rate: -2"), r"traffic\.0\.rate: Input should be greater than 0"),
        (TRAFFIC.replace("thinkTime", "think"), r"traffic\.0\.think: Extra inputs"),
        (TRAFFIC.replace("rate: 2", "rate: 1e9"), "too many to simulate"),
        (TRAFFIC.replace("100s", "soon"), "duration"),
        ("{", "it is not YAML"),
    ],
)
def test_wrong_workloads_are_refused(text, message):
    with pytest.raises(TraceError, match=message):
        read_workload(text)


def test_a_failure_needs_its_server():
    workload = read_workload(TRAFFIC + "failures: [{server: 8, kind: down, at: 1s, for: 2s}]\n")
    with pytest.raises(TraceError, match="no server 8 among 8"):
        workload.failure_list(8)
