"""Signals of `endpoint-health`: answers, silence, slowness, hangs, sleep and restarts, on a real endpoint table."""

from __future__ import annotations

import logging

import msgspec
import pytest
from prometheus_client.registry import CollectorRegistry

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, Endpoint, MetricsPage, PluginContext, ResponseEnd
from endpick.api.keys import ENDPOINT_HEALTH, HealthState
from endpick.api.request_control import TerminationCause
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.data.table import EndpointTable
from endpick.requests.headers import HeadersForUpstream
from endpick.scheduling.scheduler import as_view
from endpick.testing.factories import make_request
from endpick_builtin.health.parameters import EndpointHealthParameters
from endpick_builtin.health.plugin import EndpointHealthMonitor

REFUSED = "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}"
RESET = "upstream_reset_before_response_started{connection_termination}"
HEALTHY, DEGRADED, EJECTED, PROBING = HealthState


class Pool:
    """Endpoints a, b, …, and the plugin; time passes in steps in which all report metrics, except for the `silent` ones."""

    def __init__(self, size: int = 3, roles: tuple[str, ...] = (), **parameters: object) -> None:
        self.now = 100.0
        self.table = EndpointTable(lambda: self.now, (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, ENDPOINT_HEALTH))
        labels = [{"llm-d.ai/role": role} for role in roles] or [{}] * size
        self.endpoints = {"abcdefghij"[n]: Endpoint("abcdefghij"[n], "10.0.0.1", 8000 + n, each) for n, each in enumerate(labels)}
        self.table.replace_all(self.endpoints.values())
        self.registry = CollectorRegistry()
        context = PluginContext(clock=lambda: self.now, columns=self.table.writer(None), registry=self.registry)
        self.plugin = EndpointHealthMonitor("health", EndpointHealthParameters.model_validate(parameters), context)
        self.table.on_removed.append(self.plugin.endpoint_removed)
        self.silent = ""
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            for name, endpoint in self.endpoints.items():
                if name not in self.silent:
                    self.table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)
            self.candidates()
            if self.now >= until:
                return
            self.now = min(self.now + 0.5, until)

    def candidates(self) -> str:
        endpoints = self.table.view()
        kept = as_view(endpoints, self.plugin.filter_candidates(make_request(received_at=self.now), endpoints))
        return "".join(endpoint.name for endpoint in kept)

    def send(self, name: str, client: str = "one"):
        """Send a request; returns how to end it."""
        request, state = make_request(fairness_id=client, received_at=self.now), CycleState()
        picked = self.table.view().only(lambda endpoint: endpoint.name == name)
        result = SchedulingResult("default", {"default": ProfileRunResult("default", picked)}, ("x:1",))
        self.plugin.before_request(request, result, HeadersForUpstream({}), state)

        def first_token():
            state.first_chunk_at = self.now

        def end(status=200, error="", cause=TerminationCause.NATURAL, token=True, served=name):
            if token:
                first_token()
            endpoint = self.endpoints.get(served)
            seconds = self.now - request.received_at
            self.plugin.response_ended(request, ResponseEnd(cause, status, None, 9, seconds, seconds, endpoint, error), state)

        end.first_token = first_token
        return end

    def fail(self, name: str, times: int = 1, status: int = 500, **outcome: object) -> None:
        for _ in range(times):
            self.send(name)(status, **outcome)

    def serve(self, name: str, times: int, seconds: float = 0.0, client: str = "one") -> None:
        for _ in range(times):
            end = self.send(name, client)
            self.now += seconds
            end()

    def page(self, name: str, text: str) -> None:
        self.now += 1.0
        self.plugin.collect(MetricsPage(text.encode()), self.table.writer(None, self.endpoints[name]))

    def state(self, name: str) -> HealthState:
        return self.health(name).state

    def health(self, name: str):
        (found,) = self.table.view().only(lambda endpoint: endpoint.name == name).objects(ENDPOINT_HEALTH)
        return found


@pytest.mark.parametrize(
    ("outcome", "ejects"),
    [
        ({"status": 500}, True),
        ({"status": 503, "error": REFUSED}, True),
        ({"status": 503, "error": RESET}, True),
        ({"status": 503, "error": "unnamed"}, True),
        ({"status": 503, "error": "upstream_reset_before_response_started{overflow}"}, False),
        ({"status": 503, "error": "no_healthy_upstream"}, False),
        ({"status": 504, "error": "response_timeout"}, False),
        ({"status": 429}, False),
        ({"status": 400}, False),
        ({"status": 200, "cause": TerminationCause.CLIENT_DISCONNECT}, False),
        ({"status": 0, "cause": TerminationCause.CLIENT_DISCONNECT, "token": False}, False),
        ({"status": 0, "cause": TerminationCause.ERROR, "token": False}, False),
    ],
    ids=str,
)
def test_answer_counts_against_the_endpoint(outcome, ejects):
    pool = Pool()
    pool.fail("a", 4, **outcome)
    assert (pool.state("a"), pool.candidates()) == (HEALTHY, "abc")
    pool.fail("a", **outcome)
    assert (pool.state("a"), pool.candidates()) == ((EJECTED, "bc") if ejects else (HEALTHY, "abc"))


def test_a_success_begins_the_count_again():
    pool = Pool()
    for _ in range(3):
        pool.fail("a", 4)
        pool.serve("a", 1)
    assert pool.state("a") is HEALTHY


def test_share_of_failures_ejects_from_the_volume_on():
    pool = Pool(consecutiveFailures=100, requestVolume=20)
    for _ in range(2):
        pool.serve("a", 1)
        pool.fail("a", 8)
    pool.fail("a")
    assert pool.state("a") is HEALTHY
    pool.fail("a")
    assert (pool.state("a"), pool.health("a").reason) == (EJECTED, "18 of 20 requests failed; the last: server-error, status 500")


def test_old_failures_are_forgotten():
    pool = Pool(consecutiveFailures=100, requestVolume=20)
    pool.fail("a", 19)
    pool.pass_time(25.0)
    pool.fail("a", 19)
    assert pool.state("a") is HEALTHY


def test_one_client_cannot_eject_an_endpoint_that_serves_others():
    pool = Pool()
    pool.serve("a", 1, client="other")
    for _ in range(9):
        pool.send("a", "evil")(500)
    assert pool.state("a") is HEALTHY
    for client in ("other", "third", "evil", "other", "third", "evil"):
        pool.send("a", client)(500)
    assert pool.state("a") is EJECTED


def test_one_client_counts_once_others_were_served_too_long_ago():
    pool = Pool()
    pool.serve("a", 1, client="other")
    pool.pass_time(11.0)
    pool.fail("a", 5)
    assert pool.state("a") is EJECTED


@pytest.mark.parametrize(("status", "states"), [(200, (HEALTHY, 0)), (500, (EJECTED, 60)), (400, (PROBING, 0))])
def test_one_trial_decides_after_the_ejection(status, states):
    pool = Pool()
    pool.fail("a", 5)
    pool.pass_time(29.5)
    assert (pool.state("a"), pool.candidates()) == (EJECTED, "bc")
    pool.pass_time(1.0)
    assert (pool.state("a"), pool.candidates()) == (PROBING, "abc")
    trial, late = pool.send("a"), pool.send("a")
    assert pool.candidates() == "bc"
    late(500)
    assert pool.state("a") is PROBING
    trial(status)
    assert pool.state("a") is states[0]
    if states[1]:
        pool.pass_time(states[1] - 1)
        assert pool.state("a") is EJECTED
        pool.pass_time(1.5)
        assert pool.state("a") is PROBING


def test_trial_that_streams_succeeds_before_its_end():
    pool = Pool()
    pool.fail("a", 5)
    pool.pass_time(31.0)
    pool.send("a").first_token()
    pool.pass_time(0.5)
    assert pool.state("a") is PROBING
    pool.pass_time(1.5)
    assert pool.state("a") is HEALTHY


def test_trial_that_the_gateway_sent_elsewhere_failed():
    pool = Pool()
    pool.fail("a", 5)
    pool.pass_time(31.0)
    pool.send("a")(200, served="b")
    assert (pool.state("a"), pool.state("b")) == (EJECTED, HEALTHY)


def test_failure_counts_against_the_endpoint_that_served():
    pool = Pool()
    pool.fail("a", 5, served="b")
    assert (pool.state("a"), pool.state("b")) == (HEALTHY, EJECTED)


def test_silent_endpoint_gets_one_request_at_a_time():
    pool = Pool()
    pool.silent = "a"
    pool.pass_time(2.0)
    assert pool.state("a") is HEALTHY
    pool.pass_time(0.5)
    assert (pool.state("a"), pool.candidates()) == (DEGRADED, "abc")
    end = pool.send("a")
    assert pool.candidates() == "bc"
    end.first_token()
    assert pool.candidates() == "abc"
    pool.silent = ""
    pool.pass_time(0.5)
    assert pool.state("a") is HEALTHY


def test_first_failure_ejects_a_silent_endpoint():
    pool = Pool()
    pool.silent = "ab"
    pool.pass_time(2.5)
    pool.fail("a", 1, 503, error=REFUSED)
    pool.fail("b", 1, 503, error=REFUSED)
    assert (pool.state("a"), pool.candidates()) == (EJECTED, "c"), "dead for two witnesses: the share does not apply"
    pool.silent = ""
    pool.pass_time(0.5)
    assert pool.state("a") is PROBING


def test_endpoint_that_never_reported_is_not_silent():
    pool = Pool()
    pool.table.upsert(Endpoint("z", "10.0.0.9", 8000))
    pool.pass_time(5.0)
    assert pool.state("z") is HEALTHY


@pytest.mark.parametrize(("slow", "state"), [(5.0, HEALTHY), (6.0, DEGRADED)])
def test_slow_first_tokens_degrade(slow, state):
    pool = Pool(slowFactor=5.0)
    for name, seconds in (("a", slow), ("b", 1.0), ("c", 1.1)):
        pool.serve(name, 8, seconds)
        pool.pass_time(0.5)
    assert pool.state("a") is state
    if state is DEGRADED:
        assert pool.health("a").first_token_seconds == slow
        pool.serve("a", 9, 1.0)
        pool.pass_time(0.5)
        assert pool.state("a") is HEALTHY


def test_roles_are_not_compared():
    pool = Pool(roles=("prefill", "decode"))
    pool.serve("a", 8, 30.0)
    pool.serve("b", 8, 0.1)
    pool.pass_time(0.5)
    assert pool.state("a") is HEALTHY
    pool.fail("a", 5)
    assert (pool.state("a"), pool.candidates()) == (EJECTED, "ab"), "the only one of its role"


def test_hung_endpoint_is_ejected():
    pool = Pool(slowFactor=2.0)
    waiting = pool.send("a")
    pool.pass_time(10.0)
    assert pool.state("a") is HEALTHY
    pool.pass_time(0.5)
    assert (pool.state("a"), pool.health("a").reason) == (EJECTED, "no first token for 10 s")
    waiting()
    assert pool.state("a") is EJECTED


def test_long_prompt_is_no_hang_while_others_are_served():
    pool = Pool()
    pool.send("a")
    for _ in range(9):
        pool.pass_time(3.0)
        pool.serve("a", 1)
    assert pool.state("a") is HEALTHY


SLEEPING = 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} %d\nvllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0\n'


def test_sleeping_engine_gets_nothing_until_it_wakes():
    pool = Pool(size=2, maxEjectionPercent=1)
    pool.page("a", SLEEPING % 0)
    assert (pool.state("a"), pool.health("a").reason, pool.candidates()) == (EJECTED, "asleep, as its metrics page says", "b")
    pool.pass_time(400.0)
    assert pool.candidates() == "b"
    pool.page("b", SLEEPING % 0)
    assert pool.candidates() == "ab", "all asleep: nobody else is left"
    pool.page("a", SLEEPING % 1)
    assert (pool.state("a"), pool.candidates()) == (PROBING, "a")


@pytest.mark.parametrize(
    ("first", "second", "restarted"),
    [
        ("process_start_time_seconds 1000.5\n", "process_start_time_seconds 1001.5\n", True),
        ("process_start_time_seconds 1000.5\n", "process_start_time_seconds 1000.5\n# more\n", False),
        ("process_start_time_seconds 1000.5\n", "process_start_time_seconds 900\n", False),
        ("process_start_time_seconds NaN\n", "process_start_time_seconds 900\n", False),
        ('vllm:generation_tokens_total{engine="0"} 9\n', 'vllm:generation_tokens_total{engine="0"} 0\n', True),
        ('vllm:generation_tokens_total{engine="0"} 9\n', 'vllm:generation_tokens_total{engine="0"} 9\n\n', False),
        ('vllm:generation_tokens_total{engine="0"} 9\n', "vllm:num_requests_running 0\n", False),
        ("", "garbage{ 1", False),
    ],
)
def test_restart_makes_everybody_forget(first, second, restarted):
    pool = Pool()
    removed = []
    pool.table.on_removed.append(removed.append)
    pool.fail("a", 5)
    pool.page("a", first)
    pool.page("a", second)
    queue = pool.table.view()[WAITING_QUEUE_SIZE].tolist()
    assert (removed, str(queue[0])) == ((["a"], "nan") if restarted else ([], "0.0"))
    assert (pool.state("a"), pool.health("a").ejections) == (PROBING if restarted else EJECTED, 1)
    assert pool.state("b") is HEALTHY


def test_pages_are_read_at_most_once_a_second():
    pool = Pool()
    pool.page("a", "process_start_time_seconds 1\n")
    pool.now -= 0.5
    pool.page("a", "process_start_time_seconds 2\n")
    assert pool.table.view()[WAITING_QUEUE_SIZE].tolist()[0] == 0.0
    pool.page("a", "process_start_time_seconds 2\n# later\n")
    assert pool.table.view()[WAITING_QUEUE_SIZE].tolist()[0] != 0.0


@pytest.mark.parametrize(("percent", "candidates"), [(50, "cd"), (25, "bcd"), (24, "abcd"), (100, "d"), (0, "abcd")])
def test_share_of_the_pool_stays(percent, candidates):
    pool = Pool(size=4, maxEjectionPercent=percent)
    for name, times in (("a", 9), ("b", 7), ("c", 5)):
        pool.fail(name, times)
    assert pool.candidates() == ("d" if percent == 100 else candidates)
    assert [pool.state(name) for name in "abcd"] == [EJECTED, EJECTED, EJECTED, HEALTHY]


def test_all_stay_if_the_gateway_offers_only_the_ejected():
    pool = Pool()
    pool.fail("a", 5)
    some = pool.table.view().take([0])
    assert pool.plugin.filter_candidates(make_request(), some) is some


def test_a_clock_that_jumps_only_ends_ejections():
    pool = Pool()
    pool.fail("a", 5)
    pool.send("b")
    pool.now += 3600.0
    assert pool.candidates() == "abc"
    assert [pool.state(name) for name in "abc"] == [PROBING, HEALTHY, HEALTHY]
    pool.pass_time(3.0)
    assert pool.state("b") is HEALTHY


def test_endpoint_that_left_is_forgotten():
    pool = Pool()
    pool.fail("a", 5)
    pool.table.remove("a")
    assert pool.candidates() == "bc"
    assert {labels["endpoint_name"] for family in pool.registry.collect() for labels in (one.labels for one in family.samples)} == {
        "b",
        "c",
    }


def test_changes_are_logged_and_counted(caplog):
    pool = Pool()
    with caplog.at_level(logging.INFO, "endpick.plugin"):
        pool.fail("a", 4)
        pool.fail("a", 1, 503, error=REFUSED)
        pool.pass_time(30.5)
        pool.serve("a", 1)
    assert caplog.messages == [
        f"endpoint a: healthy -> ejected (5 consecutive failures; the last: connect-failure, {REFUSED})",
        "endpoint a: ejected -> probing (one trial request decides)",
        "endpoint a: probing -> healthy",
    ]
    value = pool.registry.get_sample_value
    assert value("endpick_endpoint_errors_total", {"endpoint_name": "a", "reason": "server-error"}) == 4
    assert value("endpick_endpoint_errors_total", {"endpoint_name": "a", "reason": "connect-failure"}) == 1
    assert value("endpick_endpoint_state", {"endpoint_name": "a", "state": "healthy"}) == 1
    assert value("endpick_endpoint_state", {"endpoint_name": "a", "state": "ejected"}) == 0


def test_ejection_times_must_be_in_order():
    with pytest.raises(ValueError, match="baseEjectionTime must not exceed maxEjectionTime"):
        EndpointHealthParameters(baseEjectionTime="10m")


def test_an_older_verdict_of_another_picker_changes_nothing():
    pool, other = Pool(), Pool()
    pool.fail("a", 5)
    (part,) = pool.plugin.snapshot()
    other.plugin.restore(part)
    assert other.state("a") is EJECTED, "it knew nothing of it"
    pool.pass_time(31.0)
    pool.serve("a", 1)
    assert pool.state("a") is HEALTHY
    older = msgspec.msgpack.encode([("a", True, "5 consecutive failures", 20.0)])
    pool.plugin.restore(older)
    assert pool.state("a") is HEALTHY
