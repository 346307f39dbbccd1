"""The self-check of the approximate index against cached tokens that servers report."""

from __future__ import annotations

import pytest

from endpick.api import Endpoint, ProfileRunResult, ResponseEnd, ResponseHead, SchedulingResult, TerminationCause, Usage
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.producers.self_check import LOWEST_FACTOR, Finding, Promise, SelfCheck
from unit.builtin.test_prefix_cache_producer import Bench, text

NODE = Endpoint("pool/e0", "10.0.0.1", 8000)


def ask(bench, row, prompt, cached, *, prompt_tokens=None, status=200, cause=TerminationCause.NATURAL, served_by=None):
    """One request whose server reports `cached` tokens."""
    asked, endpoints, state, shared = bench.produce(prompt)
    result = SchedulingResult("decode", {"decode": ProfileRunResult("decode", endpoints.take([row]))}, ("10.0.0.1:8000",))
    plugin = bench.instance.plugin
    shared.scope = bench.instance.scope
    plugin.before_request(asked, result, HeadersForUpstream({}), state)
    server = endpoints.pool_members[row if served_by is None else served_by]
    plugin.response_started(asked, ResponseHead(status, {}, server), state)
    usage = Usage(prompt_tokens or len(prompt) // 4, 1, cached)
    plugin.response_ended(asked, ResponseEnd(cause, status, usage, 1, 0.1, 0.1), state)


def count(bench, name, row=0):
    return bench.instance.registry.get_sample_value(f"endpick_prefix_{name}", {"endpoint_name": f"e{row}"}) or 0.0


def test_kept_promises_change_nothing():
    bench = Bench()
    ask(bench, 0, text(8), cached=0)
    for _ in range(19):
        ask(bench, 0, text(8), cached=512)
    assert bench.matched(text(8)) == [8, 0, 0]
    assert count(bench, "checks_total") == 19
    assert count(bench, "broken_promises_total") == 0
    assert count(bench, "calibration") == 1
    assert count(bench, "drift") == 0


def test_servers_without_cached_tokens_are_trusted():
    bench = Bench()
    for _ in range(20):
        ask(bench, 0, text(8), cached=None)
    assert bench.matched(text(8)) == [8, 0, 0]
    assert count(bench, "checks_total") == 0


def test_a_broken_promise_purges_older_blocks():
    bench = Bench()
    ask(bench, 0, text(8, seed=1), cached=0)
    ask(bench, 0, text(8, seed=2), cached=0)
    ask(bench, 0, text(8, seed=3), cached=0)
    ask(bench, 0, text(8, seed=2), cached=0)
    factor = 0.95 + 0.05 / 8
    assert bench.matched(text(8, seed=1)) == [0, 0, 0]
    assert bench.matched(text(8, seed=2)) == [pytest.approx(8 * factor), 0, 0]
    assert bench.matched(text(8, seed=3)) == [pytest.approx(8 * factor), 0, 0]
    assert count(bench, "broken_promises_total") == 1
    assert count(bench, "purged_blocks_total") == 8
    assert count(bench, "calibration") == pytest.approx(factor)
    assert count(bench, "drift") == pytest.approx(0.05 * (1 - 1 / 8))


def test_an_unreliable_server_loses_every_prompt():
    bench = Bench()
    for _ in range(60):
        ask(bench, 0, text(8), cached=0)
    assert bench.matched(text(8)) == [0, 0, 0]
    assert count(bench, "calibration") < 0.5


def test_token_counts_are_compared_by_share():
    bench = Bench()
    for _ in range(3):
        ask(bench, 0, text(8), cached=900, prompt_tokens=1000)
    assert count(bench, "broken_promises_total") == 0
    assert count(bench, "calibration") == 1


def test_more_cached_tokens_than_predicted_lower_the_drift():
    bench = Bench()
    ask(bench, 0, text(8, seed=9), cached=0)  # before that, no server has reported anything
    ask(bench, 0, text(8), cached=512)
    assert count(bench, "drift") == pytest.approx(-0.05)
    assert count(bench, "broken_promises_total") == 0


@pytest.mark.parametrize(
    "how", [{"cause": TerminationCause.CLIENT_DISCONNECT}, {"status": 500}, {"served_by": 1}], ids=["cut-short", "error", "other-endpoint"]
)
def test_failed_and_redirected_requests_are_not_compared(how):
    bench = Bench()
    ask(bench, 0, text(8), cached=0)
    before = count(bench, "checks_total")
    ask(bench, 0, text(8), cached=0, **how)
    assert count(bench, "checks_total") == before
    assert bench.matched(text(8)) == [8, 0, 0]


def test_matches_are_trusted_without_self_check():
    bench = Bench(selfCheck=False)
    for _ in range(30):
        ask(bench, 0, text(8), cached=0)
    assert bench.matched(text(8)) == [8, 0, 0]


def test_a_successor_starts_with_a_clean_record():
    bench = Bench()
    for _ in range(30):
        ask(bench, 0, text(8), cached=0)
    gone = bench.table.generation.endpoints[0]
    bench.table.remove(gone.name)
    assert bench.instance.registry.get_sample_value("endpick_prefix_calibration", {"endpoint_name": "e0"}) is None
    bench.table.replace_all([gone])
    ask(bench, 0, text(8), cached=0)
    assert bench.matched(text(8)) == [8]


@pytest.mark.parametrize(
    ("matched", "total", "usage", "finding"),
    [
        (10, 10, Usage(1000, 1, 500), Finding.KEPT),
        (10, 10, Usage(1000, 1, 499), Finding.BROKEN),
        (1, 10, Usage(1000, 1, 0), Finding.KEPT),
        (2, 10, Usage(1000, 1, 0), Finding.BROKEN),
        (10, 10, Usage(0, 1, 0), Finding.KEPT),
        (0, 0, Usage(1000, 1, 5), Finding.KEPT),
    ],
)
def test_findings(matched, total, usage, finding):
    assert SelfCheck(None).judge(Promise(NODE, matched, total), usage) is finding


def test_calibration_is_slow_bounded_and_recovers():
    check = SelfCheck(None)
    factors = []
    for _ in range(200):
        check.judge(Promise(NODE, 1000, 1000), Usage(1000, 1, 0))
        factors.append(check.factors((NODE,))[0])
    assert factors[9] == pytest.approx(0.001 + 0.999 * 0.95**10)
    assert factors[-1] == LOWEST_FACTOR
    for _ in range(200):
        check.judge(Promise(NODE, 1000, 1000), Usage(1000, 1, 1000))
    assert check.factors((NODE,))[0] == pytest.approx(1.0, abs=1e-3)
    assert check.judge(Promise(NODE, 1000, 1000), Usage(1000, 1, 0)) is Finding.BROKEN
