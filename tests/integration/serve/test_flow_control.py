"""A saturated pool behind a real gateway: who waits, who goes first, and what clients are told that did not go."""

from __future__ import annotations

import asyncio
import signal

import aiohttp
import pytest

from integration.serve.gateway import Gateway, running_gateway, samples, until

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- {type: round-robin-fairness-policy}
- {type: random-picker}
objectives: [{name: high, priority: 10}, {name: low, priority: -1}]
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 6}
  defaultRequestTTL: 60s
"""
SLOW_SERVERS = ("--model", "m", "--prefill-ms-per-token", "0.01", "--decode-ms", "10")
TRANSPORTS = pytest.mark.parametrize("transport", ["h2", "grpcio"])
QUEUE = "llm_d_epp_flow_control_queue_size"


async def waiting(gateway: Gateway, count: int) -> None:
    async def reached() -> bool:
        return await gateway.sample(QUEUE) == count

    await until(reached, f"{count} requests wait")


class Clients:
    """Requests in flight; the names of those that were answered, in order."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.answered: list[str] = []
        self.tasks: dict[str, asyncio.Task] = {}

    async def ask(self, name: str, *, max_tokens: int = 2, tenant: str = "", objective: str = "", **extra: object) -> tuple[int, dict]:
        headers = {"x-llm-d-inference-fairness-id": tenant, "x-llm-d-inference-objective": objective}
        body = {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": max_tokens, "ignore_eos": True, **extra}
        sent = {header: value for header, value in headers.items() if value}
        async with self.gateway.client.post("/v1/chat/completions", json=body, headers=sent) as response:
            await response.read()
            self.answered.append(name)
            return response.status, dict(response.headers)

    def begin(self, name: str, **keywords) -> asyncio.Task:
        self.tasks[name] = asyncio.ensure_future(self.ask(name, **keywords))
        return self.tasks[name]

    async def occupy(self) -> asyncio.Task:
        """Fill the one place that there is, until the client goes or the server may `go_on`."""
        self._signal_server(signal.SIGSTOP)
        task = self.begin("first")

        async def running() -> bool:
            return await self.gateway.sample("llm_d_epp_request_running") == 1

        await until(running, "a request that fills the pool")
        return task

    def go_on(self) -> None:
        """Let the model server answer what it was sent meanwhile."""
        self._signal_server(signal.SIGCONT)

    def _signal_server(self, number: signal.Signals) -> None:
        (name,) = self.gateway.stack.servers
        self.gateway.children.named(name).process.send_signal(number)


async def test_waiting_requests_go_by_priority_and_fairness(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=1, server_options=SLOW_SERVERS) as gateway:
        clients = Clients(gateway)
        await clients.occupy()
        for count, (name, keywords) in enumerate(
            [
                ("low", {"objective": "low"}),
                ("flood 1", {"tenant": "flood"}),
                ("flood 2", {"tenant": "flood"}),
                ("flood 3", {"tenant": "flood"}),
                ("trickle", {"tenant": "trickle"}),
                ("high", {"objective": "high"}),
            ],
            1,
        ):
            clients.begin(name, **keywords)
            await waiting(gateway, count)
        assert await gateway.sample("llm_d_epp_flow_control_pool_saturation", {"stage": "effective"}) == 1.0
        clients.go_on()
        assert {status for status, _ in await asyncio.gather(*clients.tasks.values())} == {200}
        assert clients.answered == ["first", "high", "flood 1", "trickle", "flood 2", "flood 3", "low"]
        assert await gateway.sample(QUEUE) == 0
        assert await gateway.sample("llm_d_epp_flow_control_requests_total", {"outcome": "Dispatched"}) == 7
        durations = "llm_d_epp_flow_control_request_queue_duration_seconds_count"
        assert await gateway.sample(durations, {"outcome": "Dispatched", "priority": "0"}) == 5


async def test_full_queues_and_expired_waits_are_refused(tmp_path):
    config = CONFIG.replace("maxRequests: 6", "maxRequests: 1")
    async with running_gateway(tmp_path, config, servers=1, server_options=SLOW_SERVERS) as gateway:
        clients = Clients(gateway)
        first = await clients.occupy()
        late = clients.begin("late")
        await waiting(gateway, 1)
        status, headers = await clients.ask("no room")
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-saturated")
        assert not late.done()
        (tmp_path / "config.yaml").write_text(config.replace("60s", "1ms"))
        gateway.children.named("endpick").process.send_signal(signal.SIGHUP)
        status, headers = await late
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "rejected-ttl-expired")
        assert not first.done()
        for outcome in ("RejectedCapacity", "EvictedTTL"):
            assert await gateway.sample("llm_d_epp_flow_control_requests_total", {"outcome": outcome}) == 1
        clients.go_on()
        assert (await first)[0] == 200


@TRANSPORTS
async def test_a_client_that_leaves_makes_room_at_once(tmp_path, transport):
    config = CONFIG.replace("maxRequests: 6", "maxRequests: 1")
    options = ("--transport", transport)
    async with running_gateway(tmp_path, config, servers=1, server_options=SLOW_SERVERS, options=options) as gateway:
        clients = Clients(gateway)
        await clients.occupy()
        leaves = clients.begin("leaves")
        await waiting(gateway, 1)
        leaves.cancel()
        await waiting(gateway, 0)
        assert await gateway.sample("llm_d_epp_flow_control_queue_bytes") == 0
        assert await gateway.sample("llm_d_epp_flow_control_requests_total", {"outcome": "EvictedContextCancelled"}) == 1
        follows = clients.begin("next")
        await waiting(gateway, 1)
        clients.go_on()
        assert (await follows)[0] == 200
        assert "leaves" not in clients.answered


async def test_request_waits_for_the_first_endpoint(tmp_path):
    async with running_gateway(tmp_path, CONFIG, servers=1, server_options=SLOW_SERVERS) as gateway:
        clients = Clients(gateway)
        pool = gateway.endpoints_file.read_text()
        gateway.endpoints_file.write_text("endpoints: []\n")

        async def empty() -> bool:
            return await gateway.sample("llm_d_epp_ready_endpoints") == 0

        await until(empty, "an empty pool")
        waits = clients.begin("waits")
        await waiting(gateway, 1)
        gateway.endpoints_file.write_text(pool)
        assert (await waits)[0] == 200


async def test_waiting_requests_survive_reload_and_end_at_shutdown(tmp_path):
    options = ("--drain-timeout", "1h")
    async with running_gateway(tmp_path, CONFIG, servers=1, server_options=SLOW_SERVERS, options=options) as gateway:
        clients = Clients(gateway)
        first = await clients.occupy()
        kept = clients.begin("kept", tenant="a")
        await waiting(gateway, 1)
        told = clients.begin("reported", tenant="a")
        await waiting(gateway, 2)
        picker = gateway.children.named("endpick").process
        (tmp_path / "config.yaml").write_text(CONFIG.replace("maxRequests: 6", "maxRequests: 9"))
        picker.send_signal(signal.SIGHUP)

        async def reloaded() -> bool:
            return await gateway.sample("endpick_config_reloads_total", {"outcome": "applied"}) == 1

        await until(reloaded, "the new configuration")
        first.cancel()
        await waiting(gateway, 1)
        picker.send_signal(signal.SIGTERM)

        async def draining() -> bool:
            return await gateway.sample("endpick_phase", {"phase": "draining"}) == 1

        await until(draining, "the drain time")
        assert not told.done()
        picker.send_signal(signal.SIGTERM)
        status, headers = await told
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (503, "rejected-shutting-down")
        clients.go_on()
        assert (await kept)[0] == 200


EVICTING = CONFIG.replace("flowControl:\n", "flowControl:\n  enableEviction: true\n")


@TRANSPORTS
async def test_sheddable_request_in_flight_is_evicted(tmp_path, transport):
    options = ("--transport", transport)
    async with running_gateway(tmp_path, EVICTING, servers=1, server_options=SLOW_SERVERS, options=options) as gateway:
        clients = Clients(gateway)
        sheddable = clients.begin("sheddable", objective="low", max_tokens=3000)

        async def running() -> bool:
            return await gateway.sample("llm_d_epp_request_running") == 1

        await until(running, "a request that fills the pool")
        status, _ = await clients.ask("important")
        assert status == 200
        status, headers = await sheddable
        assert (status, headers["x-llm-d-request-dropped-reason"]) == (429, "evicted")
        assert clients.answered == ["sheddable", "important"]
        assert await gateway.sample("llm_d_epp_flow_control_revocations_issued_total", {"priority": "-1"}) == 1
        assert await gateway.sample("llm_d_epp_flow_control_revocations_total", {"outcome": "confirmed"}) == 1


@TRANSPORTS
async def test_sheddable_streamed_response_is_evicted(tmp_path, transport):
    options = ("--transport", transport)
    async with running_gateway(tmp_path, EVICTING, servers=1, server_options=SLOW_SERVERS, options=options) as gateway:
        body = {"model": "m", "messages": [{"role": "user", "content": "long"}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
        headers = {"x-llm-d-inference-objective": "low"}
        async with gateway.client.post("/v1/chat/completions", json=body, headers=headers) as sheddable:
            assert sheddable.status == 200
            await sheddable.content.readline()
            status, _ = await Clients(gateway).ask("important")
            assert status == 200
            with pytest.raises(aiohttp.ClientError):
                await sheddable.read()
        assert await gateway.sample("llm_d_epp_flow_control_revocations_total", {"outcome": "confirmed"}) == 1
        for url in gateway.stack.servers.values():
            running = [sample.value for sample in await samples(f"{url}/metrics") if sample.name == "vllm:num_requests_running"]
            assert running == [0]
