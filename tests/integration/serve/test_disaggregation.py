"""Requests in stages, from Envoy through `endpick serve` to simulated servers that prefill, encode and decode."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from endpick.host.discovery import discover
from integration.serve.disaggregated import IMAGE, decisions, disaggregated_gateway, served_by, with_discovery, work_of
from integration.serve.gateway import samples, until

CONFIGS = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data")) / "epp-configs"
LONG = "What is the meaning of a very long question? " * 40
INSTALLED = {one.type for one in discover()}

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
UNKNOWN = {"x-llm-d-epp-profile": "encode"}

pytestmark = [pytest.mark.asyncio, pytest.mark.long]


def sample(name: str) -> dict:
    """One of llm-d's configurations, with endpoints from a file."""
    path = CONFIGS / f"{name}.yaml"
    if not path.exists():
        pytest.skip("needs llm-d's sample configurations; set ENDPICK_TEST_DATA")
    document = YAML(typ="safe").load(path)
    missing = sorted({plugin["type"] for plugin in document["plugins"]} - INSTALLED)
    if missing:
        pytest.skip(f"{name} needs types that are not built in: {', '.join(missing)}")
    return with_discovery(document)


@pytest.mark.parametrize("name", ["pd-epp-config", "sim-pd-epp-config"])
async def test_a_long_prompt_is_prefilled_elsewhere_until_it_is_cached(tmp_path: Path, name: str) -> None:
    async with disaggregated_gateway(tmp_path, sample(name), ["prefill", "decode"]) as gateway:
        first = await served_by(gateway, LONG)
        again = await served_by(gateway, LONG)
        short = await served_by(gateway, "Hi")

        assert first == {"decode": "sim-1", "prefill": "sim-0"}
        assert again == short == {"decode": "sim-1"}
        await until(lambda: _is(work_of(gateway), {"sim-0": 1, "sim-1": 3}), "the servers have counted their requests")
        assert await decisions(gateway) == {"prefill-decode": 1, "decode-only": 2}


async def test_stages_that_a_client_asks_for_do_not_run(tmp_path: Path) -> None:
    async with disaggregated_gateway(tmp_path, sample("pd-epp-config"), ["prefill", "decode"]) as gateway:
        prefill = gateway.stack.servers["sim-0"].removeprefix("http://")

        smuggled = await served_by(gateway, "Hi", {"x-prefiller-host-port": prefill, "x-encoder-hosts-ports": prefill})

        assert smuggled == {"decode": "sim-1"}
        await until(lambda: _is(work_of(gateway), {"sim-1": 1}), "the server has counted its request")


async def test_images_are_encoded_elsewhere_and_long_prompts_prefilled(tmp_path: Path) -> None:
    async with disaggregated_gateway(tmp_path, sample("sim-e-p-d-epp-config"), ["encode", "prefill", "decode"]) as gateway:
        text = {"type": "text", "text": LONG}

        assert await served_by(gateway, [text, IMAGE]) == {"decode": "sim-2", "prefill": "sim-1", "encode": "sim-0"}
        assert await served_by(gateway, "Other words. " * 90) == {"decode": "sim-2", "prefill": "sim-1"}
        assert await served_by(gateway, "Hi") == {"decode": "sim-2"}
        assert await decisions(gateway) == {"encode-prefill-decode": 1, "prefill-decode": 1, "decode-only": 1}


async def test_images_are_encoded_by_another_server(tmp_path: Path) -> None:
    async with disaggregated_gateway(tmp_path, sample("sim-e-pd-epp-config"), ["encode", "prefill-decode"]) as gateway:
        assert await served_by(gateway, [{"type": "text", "text": "Look"}, IMAGE]) == {"decode": "sim-1", "encode": "sim-0"}
        assert await served_by(gateway, LONG) == {"decode": "sim-1"}
        assert await decisions(gateway) == {"encode-decode": 1, "decode-only": 1}


async def test_without_servers_for_a_stage_decode_does_the_work(tmp_path: Path) -> None:
    async with disaggregated_gateway(tmp_path, sample("sim-e-p-d-epp-config"), ["decode"]) as gateway:
        assert await served_by(gateway, [{"type": "text", "text": LONG}, IMAGE]) == {"decode": "sim-0"}
        assert await decisions(gateway) == {"decode-only": 1}


async def test_cached_only_request_gets_412_until_cached(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": LONG}], "max_tokens": 2}
    async with disaggregated_gateway(tmp_path, sample("pd-epp-config"), ["prefill", "decode"]) as gateway:
        statuses = []
        for prefer in ("respond-async, If-Available", "respond-async", "if-available"):
            async with gateway.client.post("/v1/chat/completions", json=body, headers={"prefer": prefer}) as response:
                await response.read()
                statuses.append(response.status)

        assert statuses == [412, 200, 200]


async def test_the_sidecar_of_a_host_gets_requests_for_all_its_ranks(tmp_path: Path) -> None:
    document = sample("dp-epp-config")
    (handler,) = (plugin for plugin in document["plugins"] if plugin["type"] == "data-parallel-profile-handler")

    def at_the_sidecar(servers):
        handler["parameters"]["primaryPort"] = int(servers["sim-0"].rpartition(":")[2])
        return document

    async with disaggregated_gateway(tmp_path, at_the_sidecar, ["decode", ""]) as gateway:
        answered = Counter([(await served_by(gateway, f"Question {number}"))["decode"] for number in range(20)])

        forwarded = [sample.value for sample in await samples(f"{gateway.stack.servers['sim-0']}/metrics") if is_forwarding(sample)]
        assert answered.keys() == {"sim-0", "sim-1"}
        assert forwarded == [answered["sim-1"]]


def is_forwarding(sample) -> bool:
    return sample.name == "sim:remote_stages_total" and sample.labels == {"stage": "rank", "outcome": "ok"}


async def test_prefill_first_prefills_short_prompts_too(tmp_path: Path) -> None:
    profiles = [{"name": role, "plugins": [{"pluginRef": f"{role}-filter"}]} for role in ("prefill", "decode")]
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            {"type": "disagg-profile-handler", "parameters": {"stageOrder": "prefill-first"}},
        ],
        "schedulingProfiles": profiles,
    }
    async with disaggregated_gateway(tmp_path, with_discovery(document), ["prefill", "decode"]) as gateway:
        assert await served_by(gateway, "Hi") == {"decode": "sim-1", "prefill": "sim-0"}


async def test_a_header_names_the_stage_that_a_coordinator_wants(tmp_path: Path) -> None:
    profiles = [{"name": role, "plugins": [{"pluginRef": f"{role}-filter"}]} for role in ("prefill", "decode")]
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": "prefill-filter"}, {"type": "decode-filter"}, {"type": "header-profile-handler"}],
        "schedulingProfiles": profiles,
    }
    async with disaggregated_gateway(tmp_path, with_discovery(document), ["prefill", "decode"]) as gateway:
        assert await served_by(gateway, "Hi", {"x-llm-d-epp-profile": "prefill"}) == {"decode": "sim-0"}
        assert await served_by(gateway, "Hi") == {"decode": "sim-1"}
        async with await gateway.chat("Hi") as known, gateway.client.post("/v1/chat/completions", json=BODY, headers=UNKNOWN) as unknown:
            assert (known.status, unknown.status) == (200, 429)


async def test_a_configuration_of_the_former_handlers_does_the_same(tmp_path: Path) -> None:
    document = sample("pd-epp-config")
    document["plugins"] = [plugin for plugin in document["plugins"] if plugin["type"] != "disagg-profile-handler"]
    document["plugins"][:0] = [{"type": "pd-profile-handler"}, {"type": "prefill-header-handler"}]
    async with disaggregated_gateway(tmp_path, document, ["prefill", "decode"]) as gateway:
        assert await served_by(gateway, LONG) == {"decode": "sim-1", "prefill": "sim-0"}
        assert await served_by(gateway, LONG, {"x-prefiller-host-port": "127.0.0.1:1"}) == {"decode": "sim-1"}
        assert await decisions(gateway, "llm_d_epp_pd_decision_total") == {"prefill-decode": 1, "decode-only": 1}


async def _is(counted, expected) -> bool:
    return dict(await counted) == expected
