"""The precise prefix cache passes the kit that third parties use."""

from __future__ import annotations

from endpick.testing import parametrize_conformance
from endpick_kv_events.plugins import PrecisePrefixCacheProducer, PrecisePrefixCacheScorer


@parametrize_conformance([PrecisePrefixCacheProducer, PrecisePrefixCacheScorer])
def test_kv_events_conform(check):
    check()
