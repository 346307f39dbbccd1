"""What dashboards for llm-d ask for is shown with the labels they need; and the families of KV events, which need no gateway."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from ruamel.yaml import YAML

from endpick.serve.legacy import TWINS
from integration.plugins.serving import serving
from integration.serve.test_metrics_catalogue import CATALOGUE, OF_PLUGINS, PREFIX, families

FIXTURES = Path(__file__).parents[2] / "fixtures/metrics"
ROWS = YAML(typ="safe").load(FIXTURES / "dashboards.yaml")
ABSENT = {row["name"]: row["why"] for row in YAML(typ="safe").load(FIXTURES / "absent.yaml")}
TWIN_OF = {twin.old: twin for twin in TWINS}
PRECISE = "precise-prefix-cache-producer"
CONFIG = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: token-producer}}
- {{type: {PRECISE}}}
- {{type: prefix-cache-scorer}}
"""


def asked_for(row) -> tuple[str, set[str]]:
    """The family under its present name, and the labels it has to have there."""
    twin = TWIN_OF.get(row["metric"])
    if twin is None:
        assert row["metric"].startswith(PREFIX), f"{row['metric']} is neither a present nor a former name"
        return row["metric"].removeprefix(PREFIX), set(row["labels"])
    present = {old: new for new, old in twin.labels.items()}
    assert set(row["labels"]) <= present.keys()
    return twin.new, {present[label] for label in row["labels"]}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['board']}-{row['metric']}")
def test_what_a_dashboard_asks_for_is_in_the_catalogue_that_the_page_is_compared_with(row):
    name, labels = asked_for(row)
    if name in ABSENT:
        assert ABSENT[name]
        return
    known = set(CATALOGUE[name]["labels"]) | OF_PLUGINS
    assert labels <= known


def test_no_family_is_both_there_and_absent():
    assert ABSENT.keys() & CATALOGUE.keys() == set()
    assert all(ABSENT.values())


@pytest.mark.asyncio
async def test_the_families_of_kv_events_are_shown_under_both_names(tmp_path):
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
    assert {twin.old for twin in TWINS if twin.new in expected} == {name for name in page if name.startswith("kvcache_")}
    assert {frozenset(labels) for twin in TWINS if twin.new in expected for labels in page[twin.old].labels} == {frozenset()}
