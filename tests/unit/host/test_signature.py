"""Whether plugin methods fit the way the host calls them."""

from __future__ import annotations

import functools

from endpick.api import DataProducer, PerEndpointScorer, Plugin, PollingSource, Scorer
from endpick.api.discovery import EndpointDiscovery
from endpick.host.contract import signature_faults


def faults(base, **members):
    return list(signature_faults(type("Made", (base,), members)))


def test_the_exact_signature_fits():
    assert faults(Scorer, score=lambda self, request, endpoints, state: None) == []


def test_whatever_can_be_called_in_this_way_fits():
    for score in [
        lambda self, *args: None,
        lambda self, a, b, c, d=None, **more: None,
        lambda *everything: None,
        staticmethod(lambda request, endpoints, state: None),
        classmethod(lambda cls, request, endpoints, state: None),
    ]:
        assert faults(Scorer, score=score) == []


def test_what_cannot_be_called_in_this_way_does_not_fit():
    for score in [
        lambda self, request, endpoints: None,
        lambda self, request, endpoints, state, extra: None,
        lambda self, request, endpoints, *, state: None,
        lambda request, endpoints, state: None,
        staticmethod(lambda self, request, endpoints, state: None),
    ]:
        ((method, reason),) = faults(Scorer, score=score)

        assert method == "score"
        assert reason.startswith("is called with (request, endpoints, state), but ")


def test_a_method_that_is_no_method_is_a_fault():
    assert faults(Scorer, score=7) == [("score", "is not a method")]


def test_wrapped_methods_are_judged_by_what_they_wrap():
    def narrow(self, request, endpoints):
        return None

    @functools.wraps(narrow)
    def score(self, *args):
        return narrow(self, *args)

    assert [method for method, _ in faults(Scorer, score=score)] == ["score"]


async def _coroutine(self, *args):
    return None


def _plain(self, *args):
    return None


def test_a_plain_method_where_the_host_awaits_is_a_fault():
    assert faults(PollingSource, poll=_plain) == [("poll", "must be `async def`")]
    assert faults(EndpointDiscovery, run=_plain) == [("run", "must be `async def`")]
    assert faults(Scorer, score=_plain, start=_plain, stop=_coroutine) == [("start", "must be `async def`")]


def test_a_coroutine_where_the_host_does_not_await_is_a_fault():
    assert faults(Scorer, score=_coroutine) == [("score", "must not be `async def`: the host does not await it")]


def test_a_producer_may_be_either():
    assert faults(DataProducer, produce=_plain) == []
    assert faults(DataProducer, produce=_coroutine) == []


def test_the_constructor_is_part_of_the_contract():
    assert faults(Scorer, score=_plain, __init__=lambda self, name: None)[0][0] == "__init__"
    assert faults(Scorer, score=_plain, __init__=lambda self, name, parameters, context, extra=1: None) == []


def test_class_methods_are_judged_without_their_class():
    fits = classmethod(lambda cls, parameters: None)
    does_not = classmethod(lambda cls: None)

    assert faults(Scorer, score=_plain, subscriptions=fits) == []
    assert [method for method, _ in faults(Scorer, score=_plain, subscriptions=does_not)] == ["subscriptions"]


def test_methods_of_the_api_itself_are_not_judged():
    assert faults(Plugin) == []
    assert faults(PerEndpointScorer, score_endpoint=lambda self, request, endpoint, state: 1.0) == []


def test_other_methods_are_not_checked():
    assert faults(Scorer, score=_plain, _helper=lambda: None, helper=_coroutine) == []


def test_every_fault_is_told():
    class Both(Scorer, DataProducer):
        def score(self):
            return None

        def produce(self):
            return None

    assert sorted(method for method, _ in signature_faults(Both)) == ["produce", "score"]
