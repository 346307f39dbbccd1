"""What is in flight to each endpoint: charged once, released once, whatever happens to the request or the endpoint."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from endpick.api import Endpoint, InferenceRequest, ProfileRunResult, Prompt, ResponseEnd, SchedulingResult, TerminationCause
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, PrefixBlocks
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from unit.scheduling.workbench import access, instance, pool

END = ResponseEnd(TerminationCause.NATURAL, 200, None, 0, 1.0, None)


class Bench:
    """The producer with a pool, as the host drives it."""

    def __init__(self, size=3, **parameters):
        self.table = pool(size=size)
        columns = self.table.writer(instance(InflightLoadProducer).scope)
        self.instance = instance(InflightLoadProducer, columns=columns, **parameters)
        self.plugin = self.instance.plugin
        self.table.on_removed.append(self.plugin.endpoint_removed)

    def send(self, request=None, prefix=None, **rows):
        """Route a request; `rows` are the picks by profile, the first one is the primary."""
        shared = access()
        endpoints, state = self.table.view(shared), CycleState(shared)
        if prefix is not None:
            state.put(PREFIX_BLOCKS, prefix[0])
            state.put_column(PREFIX_MATCH_BLOCKS, endpoints, np.array(prefix[1], dtype=float))
        request = request or InferenceRequest(id="r", size_bytes=400)
        runs = {profile: ProfileRunResult(profile, None if row is None else endpoints.take([row])) for profile, row in rows.items()}
        shared.scope = self.instance.scope
        self.plugin.produce(request, endpoints, state)
        self.plugin.before_request(request, SchedulingResult(next(iter(rows)), runs, ("x:1",)), HeadersForUpstream({}), state)
        return request, state

    def first_chunk(self, sent):
        self.plugin.first_chunk(*sent)

    def end(self, sent):
        self.plugin.response_ended(sent[0], END, sent[1])

    @property
    def requests(self):
        return self.table.view()[INFLIGHT_REQUESTS].tolist()

    @property
    def tokens(self):
        return self.table.view()[INFLIGHT_TOKENS].tolist()


def test_prompt_tokens_are_released_when_the_answer_begins():
    bench = Bench()
    sent = bench.send(default=1)
    assert (bench.requests, bench.tokens) == ([0, 1, 0], [0, 100, 0])
    bench.first_chunk(sent)
    assert (bench.requests, bench.tokens) == ([0, 1, 0], [0, 0, 0])
    bench.end(sent)
    assert (bench.requests, bench.tokens) == ([0, 0, 0], [0, 0, 0])


def test_a_request_is_released_once():
    bench = Bench()
    other, sent = bench.send(default=1), bench.send(default=1)
    for _ in range(3):
        bench.end(sent)
    bench.first_chunk(sent)
    assert (bench.requests, bench.tokens) == ([0, 1, 0], [0, 100, 0])
    bench.end(other)
    assert bench.requests == [0, 0, 0]


def test_prefill_is_released_when_the_answer_begins():
    bench = Bench()
    sent = bench.send(decode=0, prefill=1, encode=None)
    assert (bench.requests, bench.tokens) == ([1, 1, 0], [100, 100, 0])
    bench.first_chunk(sent)
    assert (bench.requests, bench.tokens) == ([1, 0, 0], [0, 0, 0])
    bench.end(sent)
    assert bench.requests == [0, 0, 0]


@pytest.mark.parametrize(
    ("parameters", "limit", "expected"),
    [
        ({}, None, 100),
        ({"addEstimatedOutputTokens": True}, None, 1100),
        ({"addEstimatedOutputTokens": True, "outputRatio": 0.5}, None, 1100),
        ({"addEstimatedOutputTokens": True}, 20, 120),
        ({"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 30}, 40, 130),
        ({"addEstimatedOutputTokens": True, "maxEstimatedOutputTokens": 0}, None, 100),
    ],
)
def test_output_tokens_are_estimated_on_request(parameters, limit, expected):
    bench = Bench(**parameters)
    sent = bench.send(InferenceRequest(id="r", size_bytes=400, max_output_tokens=limit), default=0)
    assert bench.tokens[0] == expected
    bench.first_chunk(sent)
    assert bench.tokens[0] == expected - 100
    bench.end(sent)
    assert bench.tokens[0] == 0


def test_tokens_come_from_a_readable_prompt():
    bench = Bench()
    bench.send(InferenceRequest(id="r", size_bytes=4000, prompt=Prompt(lambda: (b"x" * 41, b"y"))), default=0)
    assert bench.tokens[0] == 12


@pytest.mark.parametrize(
    ("matched", "expected"),
    [([0, 0, 0], 1000), ([10, 0, 0], 360), ([15, 0, 0], 40), ([np.nan, 0, 0], 1000)],
)
def test_cached_tokens_do_not_count(matched, expected):
    bench = Bench()
    request = InferenceRequest(id="r", prompt=Prompt(lambda: (b"x" * 4000,)))
    bench.send(request, prefix=(PrefixBlocks(15, 64), matched), default=0)
    assert bench.tokens[0] == expected


def test_new_endpoints_start_with_no_load():
    bench = Bench()
    bench.send(default=0)
    bench.table.upsert(Endpoint("pool/new", "10.1.1.1", 1))
    assert np.isnan(bench.requests[3])
    bench.send(default=1)
    assert bench.requests == [1, 1, 0, 0]


def test_a_removed_endpoint_loses_its_load():
    bench = Bench()
    sent = bench.send(default=1)
    gone = bench.table.generation.endpoints[1]
    bench.table.remove(gone.name)
    bench.table.upsert(Endpoint(gone.name, gone.host, gone.port))
    later = bench.send(default=2)
    assert bench.requests == [0, 0, 1]
    bench.end(sent)
    assert bench.requests == [0, 0, 1]
    bench.end(later)
    assert bench.requests == [0, 0, 0]


def gauges(bench):
    """What is shown: requests and tokens by endpoint, fairness id and priority."""
    families = {family.name: family.samples for family in bench.instance.registry.collect()}
    shown = [families[f"llm_d_epp_inflight_{what}"] for what in ("requests", "tokens")]
    assert all(sample.labels["namespace"] == "pool" for samples in shown for sample in samples)
    assert all(sample.labels["producer_name"] == "inflight-load-producer" for samples in shown for sample in samples)
    keys = ("endpoint_name", "fairness_id", "priority")
    return {tuple(requests.labels[key] for key in keys): (requests.value, tokens.value) for requests, tokens in zip(*shown, strict=True)}


def test_gauges_by_fairness_id_and_priority():
    bench = Bench()
    alice = InferenceRequest(id="a", size_bytes=400, fairness_id="alice", priority=2)
    first, second = bench.send(alice, decode=0, prefill=1), bench.send(alice, default=0)
    other = bench.send(InferenceRequest(id="b", size_bytes=40, fairness_id="bob", priority=-1), default=0)
    assert gauges(bench) == {("e0", "alice", "2"): (2, 200), ("e1", "alice", "2"): (1, 100), ("e0", "bob", "-1"): (1, 10)}

    bench.first_chunk(first)
    bench.end(second)
    assert gauges(bench) == {("e0", "alice", "2"): (1, 0), ("e0", "bob", "-1"): (1, 10)}

    bench.end(first)
    bench.end(other)
    assert gauges(bench) == {}


def test_gauges_leave_out_removed_endpoints():
    bench = Bench()
    sent = bench.send(default=1)
    gone = bench.table.generation.endpoints[1]
    bench.table.remove(gone.name)
    bench.table.upsert(Endpoint(gone.name, gone.host, gone.port))
    assert gauges(bench) == {}
    bench.send(InferenceRequest(id="r", size_bytes=400), default=2)
    bench.end(sent)
    assert gauges(bench) == {("e1", "default-flow", "0"): (1, 100)}


def test_the_number_of_flows_is_bounded():
    bench = Bench()
    for number in range(1100):
        bench.send(InferenceRequest(id="r", fairness_id=f"client-{number}"), default=0)

    assert len(gauges(bench)) == 1001
    assert gauges(bench)["e0", "other", "0"] == (100, 0)


class LoadAgainstModel(RuleBasedStateMachine):
    """Any interleaving of requests: the columns are always the sum of what is open."""

    def __init__(self):
        super().__init__()
        self.bench = Bench()
        self.open: list[list] = []

    @rule(row=st.integers(0, 2), size=st.integers(0, 50))
    def send(self, row, size):
        self.open.append([self.bench.send(InferenceRequest(id="r", size_bytes=size * 4), default=row), row, size])

    @rule(data=st.data())
    def begin_to_answer(self, data):
        if self.open:
            entry = data.draw(st.sampled_from(self.open))
            self.bench.first_chunk(entry[0])
            entry[2] = 0

    @rule(data=st.data())
    def end(self, data):
        if self.open:
            self.bench.end(self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))[0])

    @invariant()
    def columns_are_the_sums(self):
        for row in range(3):
            mine = [(size) for _, at, size in self.open if at == row]
            assert np.nan_to_num(self.bench.requests[row]) == len(mine)
            assert np.nan_to_num(self.bench.tokens[row]) == sum(mine)
            shown = gauges(self.bench).get((f"e{row}", "default-flow", "0"), (0, 0))
            assert shown == (len(mine), sum(mine))


TestLoadAgainstModel = LoadAgainstModel.TestCase
TestLoadAgainstModel.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_others_hear_of_an_endpoint_that_left():
    bench, silent = Bench(), Bench(syncCrossReplicaState=False)
    for each in (bench, silent):
        each.plugin.context = dataclasses.replace(each.plugin.context, is_shared=True)
        each.send(default=0)
    assert msgspec.msgpack.decode(bench.plugin.drain_deltas()) == [True, {"pool/e0": [1, 100]}]
    bench.table.remove("pool/e0")
    assert msgspec.msgpack.decode(bench.plugin.drain_deltas()) == [False, {"pool/e0": [0, 0]}]
    assert silent.plugin.drain_deltas() == b""
