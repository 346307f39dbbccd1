"""`predicted-latency` in the host: what it reads of requests and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from endpick.api import WAITING_QUEUE_SIZE
from endpick.requests.headers import REQUEST_ID
from endpick.requests.model import CloseCause, IncomingRequest, Routed
from endpick.testing.host import host_of

CONFIG = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: predicted-latency}]\n"
STREAM = {":status": "200", "content-type": "text/event-stream", "x-envoy-upstream-service-time": "1"}
TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 40}}\n\n'


STAGES = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
  - {type: predicted-latency}
  - {type: prefill-filter}
  - {type: decode-filter}
  - {type: always-disagg-pd-decider}
  - type: disagg-profile-handler
    parameters: {deciders: {prefill: always-disagg-pd-decider}}
schedulingProfiles:
  - {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: predicted-latency}]}
  - {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: predicted-latency}]}
"""


class Picker:
    """A host whose answers a test gives."""

    def __init__(self, endpoints: int = 3, config: str = CONFIG, labels: Sequence[Mapping[str, str]] = ()):
        self.host = host_of(config)
        self.host.put(endpoints, labels)
        self.plugin = self.host.instances["predicted-latency"].plugin

    def send(self, prompt: str, *, stream: bool = True) -> Routed:
        body = f'{{"model": "m", "prompt": "{prompt}", "stream": {str(stream).lower()}}}'.encode()
        headers = {":path": "/v1/completions", ":method": "POST", REQUEST_ID: "1"}
        decision = self.host.picker.decide(IncomingRequest(headers, body, None, self.host.clock()))
        assert isinstance(decision, Routed)
        return decision

    def state(self, address: str) -> dict[str, float]:
        (name,) = [one.name for one in self.host.table.generation.endpoints if one.address == address]
        return self.plugin.dump_state()["endpoints"][name]


@pytest.fixture
def picker():
    made = Picker()
    yield made
    made.host.close()


def test_long_prompts_spread_and_equal_ones_meet(picker):
    picked = [picker.send(f"{number}" * 40_000).destinations[0] for number in range(3)]
    assert len(set(picked)) == 3
    assert picker.send("1" * 40_000).destinations[0] == picked[1]


def test_an_answer_frees_its_endpoint(picker):
    sent = picker.send("a" * 40_000)
    (address,) = sent.destinations
    assert picker.state(address)["backlogSeconds"] == pytest.approx(2.005)
    picker.host.clock.now += 1.0
    sent.exchange.response_headers(STREAM, address, "")
    sent.exchange.response_chunk(TOKEN, False)
    assert picker.state(address)["backlogSeconds"] == 0.0
    assert picker.state(address)["open"] == 1
    picker.host.clock.now += 4.0
    sent.exchange.response_chunk(USAGE, True)
    sent.exchange.finish(CloseCause.END)
    assert picker.state(address)["open"] == 0
    dumped = picker.plugin.dump_state()
    assert dumped["prefillTokensPerSecond"] > 5000  # learnt: 10,000 tokens in a second
    assert dumped["secondsPerOutputToken"] > 0.02  # and 40 tokens in four
    (ratio,) = picker.plugin._accuracy.counts[3:4]
    assert sum(picker.plugin._accuracy.counts) == 1
    assert ratio == 0  # 1 s instead of 2.01 s is in the bucket up to 0.5


@pytest.mark.parametrize(
    ("headers", "gateway_error", "is_fault"),
    [
        ({":status": "500", "x-envoy-upstream-service-time": "1"}, "", True),
        ({":status": "503"}, "upstream_reset_before_response_started{connection_termination}", True),
        ({":status": "400", "x-envoy-upstream-service-time": "1"}, "", False),
    ],
)
def test_failures_of_the_server_count_against_it(picker, headers, gateway_error, is_fault):
    sent = picker.send("a" * 400)
    (address,) = sent.destinations
    sent.exchange.response_headers(headers, address, gateway_error)
    sent.exchange.response_chunk(b"{}", True)
    sent.exchange.finish(CloseCause.END)
    assert picker.state(address) == {"prefillTokensPerSecond": 5000, "backlogSeconds": 0.0, "open": 0, "openOfOthers": 0}
    others = {picker.send("b" * 40).destinations[0] for _ in range(2)}
    assert (address not in others) or not is_fault


def test_an_answer_of_another_endpoint_is_the_picks_failure(picker):
    sent = picker.send("a" * 400)
    (address,) = sent.destinations
    other = next(one.address for one in picker.host.table.generation.endpoints if one.address != address)
    sent.exchange.response_headers(STREAM, other, "")
    sent.exchange.response_chunk(TOKEN, True)
    sent.exchange.finish(CloseCause.END)
    assert picker.state(address)["open"] == 0


def test_a_client_that_leaves_takes_its_prompt_along(picker):
    sent = picker.send("a" * 40_000)
    sent.exchange.finish(CloseCause.RESET)
    assert picker.state(sent.destinations[0])["backlogSeconds"] == 0.0


def test_whole_answers_leave_no_trace(picker):
    sent = picker.send("a" * 40_000, stream=False)
    picker.host.clock.now += 3.0
    sent.exchange.response_headers({**STREAM, "content-type": "application/json"}, sent.destinations[0], "")
    sent.exchange.response_chunk(b'{"usage": {"prompt_tokens": 9, "completion_tokens": 40}}', True)
    sent.exchange.finish(CloseCause.END)
    assert picker.state(sent.destinations[0])["open"] == 0
    assert picker.plugin.dump_state()["prefillTokensPerSecond"] == 5000


def test_an_endpoint_that_leaves_and_comes_back_starts_anew(picker):
    address = picker.send("a" * 40_000).destinations[0]
    endpoints = picker.host.table.generation.endpoints
    (gone,) = [one for one in endpoints if one.address == address]
    for listener in picker.host.table.on_removed:
        listener(gone.name)
    picker.plugin.endpoint_removed(gone.name)
    picker.send("b" * 40)
    assert picker.state(address)["backlogSeconds"] < 0.1


def test_the_queue_that_others_fill_counts():
    made = Picker()
    made.host.put({WAITING_QUEUE_SIZE: [5.0, 5.0, 0.0]})
    assert made.send("a" * 400).destinations == ("10.0.0.3:8000",)
    made.host.close()


def test_one_stage_prefills_and_the_other_decodes():
    roles = [{"llm-d.ai/role": role} for role in ("prefill", "prefill", "decode")]
    made = Picker(config=STAGES, labels=roles)
    sent = made.send("a" * 40_000)
    (decoding,) = sent.destinations
    prefilling = sent.set_headers["x-prefiller-host-port"]
    assert made.state(prefilling)["backlogSeconds"] == pytest.approx(2.005)
    assert made.state(decoding) == {"prefillTokensPerSecond": 5000, "backlogSeconds": 0.005, "open": 1, "openOfOthers": 0}
    assert made.send("b" * 40_000).set_headers["x-prefiller-host-port"] != prefilling
    made.host.clock.now += 2.0
    sent.exchange.response_headers(STREAM, decoding, "")
    sent.exchange.response_chunk(TOKEN, False)
    assert made.state(prefilling)["backlogSeconds"] == 0.0
    sent.exchange.response_chunk(USAGE, True)
    sent.exchange.finish(CloseCause.END)
    assert (made.state(prefilling)["open"], made.state(decoding)["open"]) == (0, 1)
    made.host.close()
