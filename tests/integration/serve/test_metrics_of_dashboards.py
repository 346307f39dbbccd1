"""What dashboards for llm-d ask for is shown with the labels they need; and the families of KV events, which need no gateway."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

import yaml_files
from endpick.serve.legacy import OLD_NAMES
from integration.plugins.serving import serving
from integration.serve.test_metrics_catalogue import CATALOGUE, OF_PLUGINS, PREFIX, families

pytestmark = pytest.mark.long

FIXTURES = Path(__file__).parents[2] / "fixtures/metrics"
ROWS = yaml_files.load(FIXTURES / "dashboards.yaml")
ABSENT = {row["name"]: row["why"] for row in yaml_files.load(FIXTURES / "absent.yaml")}
OLD_NAME_OF = {name.old: name for name in OLD_NAMES}
PRECISE = "precise-prefix-cache-producer"
CONFIG = f"""\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: token-producer}}
- {{type: {PRECISE}}}
- {{type: prefix-cache-scorer}}
"""


def asked_for(row) -> tuple[str, set[str]]:
    """The family under its present name, and the labels it has to have there."""
    old_name = OLD_NAME_OF.get(row["metric"])
    if old_name is None:
        assert row["metric"].startswith(PREFIX), f"{row['metric']} is neither a present nor a former name"
        return row["metric"].removeprefix(PREFIX), set(row["labels"])
    present = {old: new for new, old in old_name.labels.items()}
    assert set(row["labels"]) <= present.keys()
    return old_name.new, {present[label] for label in row["labels"]}


def test_queries_of_dashboards_are_in_the_catalogue():
    for row in ROWS:
        name, labels = asked_for(row)
        assert name in ABSENT or labels <= set(CATALOGUE[name]["labels"]) | OF_PLUGINS, row


def test_no_family_is_both_there_and_absent():
    assert ABSENT.keys() & CATALOGUE.keys() == set()
    assert all(ABSENT.values())


@pytest.mark.asyncio
async def test_kv_event_metrics_have_both_names(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    async with serving(tmp_path, "--endpoints", "endpoints.yaml", "--legacy-metrics") as picker:
        url = f"http://127.0.0.1:{picker.metrics_port}/metrics"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            text = await response.text()
    shown, page = families(text, PREFIX), families(text, "")
    expected = {name: row for name, row in CATALOGUE.items() if row["when"] == PRECISE}
    assert len(expected) == 12
    for name, row in expected.items():
        assert name in shown, f"{name} is not shown"
        assert shown[name].type == row["type"]
        if row["labels"]:
            continue  # a sample for each publisher, and none before one is dialled again
        assert shown[name].labels == {frozenset(OF_PLUGINS)}
        if "buckets" in row:
            assert shown[name].bounds == set(map(float, row["buckets"]))
    assert {name.old for name in OLD_NAMES if name.new in expected} == {name for name in page if name.startswith("kvcache_")}
    assert {frozenset(labels) for name in OLD_NAMES if name.new in expected for labels in page[name.old].labels} == {frozenset()}
