"""`dump_state` of the plugins that learn, as `GET /debug/plugins/state` shows it."""

from __future__ import annotations

import json

import pytest

from endpick.api.plugin import MAX_DUMPED
from endpick.requests.record import to_json

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: inflight-load-producer
- type: approx-prefix-cache-producer
- type: no-hit-lru-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: no-hit-lru-scorer}]
"""
LONG = "A system prompt that fills several blocks of the prefix cache. " * 20
SIZE = MAX_DUMPED + 20


@pytest.fixture
def dumped(host):
    """What each plugin has learnt from one request per endpoint of a large pool."""
    picker = host(CONFIG)
    picker.put(SIZE)
    for number in range(SIZE):
        picker.ask(f"{number} {LONG}")
    return {name: json.loads(json.dumps(to_json(one.plugin.dump_state()))) for name, one in picker.instances.items()}


def test_learnt_state_is_counted_in_full_and_listed_in_part(dumped):
    prefixes, picks = dumped["approx-prefix-cache-producer"], dumped["no-hit-lru-scorer"]
    assert prefixes["total"] > SIZE
    assert len(prefixes["endpoints"]) == len(picks["leastRecentFirst"]) == MAX_DUMPED
    assert picks["total"] == SIZE
    assert dumped["inflight-load-producer"] == {"total": 0, "endpoints": {}}, "its requests have ended"


def test_no_prompt_is_dumped(dumped):
    assert "system prompt" not in json.dumps(dumped)
