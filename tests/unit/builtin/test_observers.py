"""Observers that report to the gateway or to a conformance test."""

from __future__ import annotations

import logging

import pytest

from endpick.api import ConfigurationError, CycleState, ResponseHead, Usage
from endpick_builtin.observers import DestinationEndpointServedVerifier, RequestAttributeReporter
from unit.scheduling.workbench import REQUEST, instance

USAGE = Usage(10, 4, 6)


def reported(expression, condition="", usage=USAGE, key=None):
    pytest.importorskip("celpy", reason="the extra 'cel' is not installed")
    attribute = {"key": key or {"name": "tokens"}, "expression": expression, "condition": condition}
    return instance(RequestAttributeReporter, attributes=[attribute]).plugin.response_metadata(REQUEST, usage, CycleState())


@pytest.mark.parametrize(
    ("expression", "condition", "number"),
    [
        ("usage.total_tokens", "", 14),
        ("double(usage.prompt_tokens) / 4.0", "", 2),
        ("usage.prompt_token_details.cached_tokens", "", 6),
        ("usage.total_tokens", "usage.completion_tokens > 4", None),
        ("usage.total_tokens - 14", "", None),
        ("'text'", "", None),
        ("1 / 0", "", None),
    ],
)
def test_reporter_evaluates_the_expression(expression, condition, number):
    assert reported(expression, condition) == (None if number is None else {"envoy.lb": {"tokens": number}})


def test_reporter_namespace_and_missing_usage():
    assert reported("usage.total_tokens", key={"namespace": "mine", "name": "n"}) == {"mine": {"n": 14}}
    assert reported("usage.total_tokens", usage=None) is None
    assert reported("has(usage.prompt_token_details) ? 1 : 2", usage=Usage(1, 1)) == {"envoy.lb": {"tokens": 2}}


def test_reporter_ignores_counts_beyond_64_bits():
    assert reported("usage.total_tokens", usage=Usage(2**64 - 1, 1)) is None
    assert reported("usage.completion_tokens", usage=Usage(1, 2**63)) is None


def test_reporter_logs_a_failing_expression_once(caplog):
    pytest.importorskip("celpy", reason="the extra 'cel' is not installed")
    plugin = instance(RequestAttributeReporter, attributes=[{"key": {"name": "n"}, "expression": "usage.nothing"}]).plugin
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert plugin.response_metadata(REQUEST, USAGE, CycleState()) is None

    assert [record.message[:21] for record in caplog.records] == ["'n' is not reported: "]


def test_reporter_refuses_invalid_cel():
    with pytest.raises(ConfigurationError, match=r"'usage\. \+' is not a CEL expression"):
        reported("usage. +")


@pytest.mark.parametrize("served", ["10.0.0.1:8000", None])
def test_verifier_reports_the_serving_endpoint(served):
    plugin = instance(DestinationEndpointServedVerifier).plugin
    headers = plugin.response_started(REQUEST, ResponseHead(200, {}, None, served), CycleState())

    assert headers == {"x-conformance-test-served-endpoint": served or "fail: missing destination endpoint served metadata"}
