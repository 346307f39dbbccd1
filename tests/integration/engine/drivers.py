"""One configuration, one pool and the same requests, decided by each way of running a picker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from click.testing import CliRunner

from endpick._proto import ext_proc_pb2 as pb
from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, Endpoint
from endpick.cli.main import main
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick.requests.model import IncomingRequest, Refused, Routed
from endpick.requests.record import document_of
from endpick.testing.host import Host, arrange, read_fixture
from endpick_lab.answers import fail
from endpick_lab.decisions import read_decisions
from endpick_lab.picker import SimulatedPicker
from endpick_lab.pool import PoolSettings, make_servers
from endpick_lab.redecide import Redecider
from endpick_lab.settings import EngineSettings
from endpick_lab.virtual_time import VirtualLoop
from integration.plugins.serving import METHOD, Picker, serving

PATH = "/v1/chat/completions"
FAILURE = {":status": "503", "content-type": "application/json", "x-envoy-upstream-service-time": "1"}
LABELS = ({"zone": "a"}, {"zone": "b"}, {"zone": "c"})
HEAD = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
"""


@dataclass(frozen=True)
class Case:
    """What is decided: a pool with these queues, then a request, after a reload or failures if there are any.

    Attributes:
        expected: The endpoint, or the sentence of the refusal.
        failing: The endpoint that answers five earlier requests with 503.
    """

    config: str
    queues: tuple[int, ...]
    expected: str
    headers: dict[str, str] = field(default_factory=dict)
    reloaded: str = ""
    failing: str = ""
    model: str = "m"
    target_model: str = "m"

    def text(self, *, reloaded: bool = False) -> str:
        config = self.reloaded if reloaded else self.config
        lists = "plugins:\n- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n"
        config = config.replace("plugins:\n", lists, 1)
        layer = "dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n"
        return HEAD + config + layer

    def plan(self, *, reloaded: bool = False) -> Plan:
        outcome = make_plan(load_config(text=self.text(reloaded=reloaded)), discover())
        assert outcome.plan is not None, outcome.diagnostics
        return outcome.plan

    def pool(self, port: int) -> bytes:
        """The endpoints with their values, for `endpick try`."""
        data = [{"waiting-queue-size": queue, "running-requests-size": 0, "kv-cache-usage": 0.1} for queue in self.queues]
        return json.dumps({"endpoints": [entry | {"data": data[number]} for number, entry in enumerate(self.entries(port))]}).encode()

    def entries(self, port: int) -> list[dict[str, object]]:
        return [
            {"name": f"e{number}", "address": f"127.0.0.{number + 2}", "port": port, "labels": labels}
            for number, labels in enumerate(LABELS[: len(self.queues)])
        ]

    def headers_of(self, port: int = 8000) -> dict[str, str]:
        return {name: value.replace("PORT", str(port)) for name, value in self.headers.items()}

    @property
    def body(self) -> bytes:
        return json.dumps({"model": self.model, "messages": [{"role": "user", "content": "hello"}]}).encode()


@dataclass(frozen=True)
class Answer:
    """A decision: the endpoint or the refusal, and the model that the server is asked for."""

    goes: str
    model: str


def answer_of(document: dict) -> Answer:
    """From a decision document."""
    if document["refusal"]:
        return Answer(document["refusal"], document["model"])
    return Answer(f"e{int(document['destinations'][0].rpartition(':')[0].rpartition('.')[2]) - 2}", document["model"])


async def served(case: Case, folder: Path) -> Answer:
    """By `endpick serve`, whose endpoints answer its scrapes."""
    async with pages(case.queues) as port:
        (folder / "config.yaml").write_text(case.text())
        entries = [entry | {"port": str(port)} for entry in case.entries(port)]
        (folder / "endpoints.yaml").write_text(json.dumps({"endpoints": entries}))
        async with serving(folder, "--decision-sampling=1", "--log-level=debug") as picker:
            await collected(picker)
            for _ in range(5 if case.failing else 0):
                await served_failure(picker, case, port)
            if case.reloaded:
                (folder / "config.yaml").write_text(case.text(reloaded=True))
                picker.reload()
                await picker.logged("configuration replaced")
            (await ask(picker, case, port)).cancel()
            return answer_of(await last_decision(picker))


async def collected(picker: Picker) -> None:
    """Wait for the first values of every endpoint."""
    url = f"http://127.0.0.1:{picker.metrics_port}/endpoints"
    async with asyncio.timeout(20), aiohttp.ClientSession() as client:
        while True:
            async with client.get(url) as response:
                endpoints = (await response.json())["endpoints"]
            if endpoints and all("waiting-queue-size" in endpoint["data"] for endpoint in endpoints):
                return
            await asyncio.sleep(0.02)


async def last_decision(picker: Picker) -> dict:
    """The record of the request `r`, which is written when it has ended."""
    url = f"http://127.0.0.1:{picker.metrics_port}/decisions/r"
    async with asyncio.timeout(20), aiohttp.ClientSession() as client:
        while True:
            async with client.get(url) as response:
                if response.status == 200:
                    return await response.json()
            await asyncio.sleep(0.02)


async def ask(picker: Picker, case: Case, port: int, request_id: str = "r"):
    call = picker.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
    names = {":path": PATH, ":method": "POST", "content-type": "application/json", "x-request-id": request_id, **case.headers_of(port)}
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)))
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=case.body, end_of_stream=True)))
    await call.read()
    await call.read()
    return call


async def served_failure(picker: Picker, case: Case, port: int) -> None:
    call = await ask(picker, case, port, "earlier")
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in FAILURE.items()])
    await call.write(pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers)))
    await call.read()
    await call.write(pb.ProcessingRequest(response_body=pb.HttpBody(body=b"{}", end_of_stream=True)))
    await call.read()
    await call.done_writing()


@asynccontextmanager
async def pages(queues: Sequence[int]):
    """A metrics page at 127.0.0.2, .3 and so on, each with its queue; yields their port."""

    async def page(request: web.Request) -> web.Response:
        queue = queues[int(request.host.partition(":")[0].rpartition(".")[2]) - 2]
        values = {"num_requests_waiting": queue, "num_requests_running": 0, "kv_cache_usage_perc": 0.1}
        return web.Response(text="".join(f'vllm:{name}{{model_name="m"}} {value}\n' for name, value in values.items()))

    application = web.Application()
    application.router.add_get("/metrics", page)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def tried(case: Case, folder: Path) -> Answer:
    """By `endpick try`."""
    (folder / "config.yaml").write_text(case.text(reloaded=bool(case.reloaded)))
    (folder / "pool.json").write_bytes(case.pool(8000))
    (folder / "request.json").write_bytes(case.body)
    options = [f"--header={name}:{value}" for name, value in case.headers_of().items()]
    files = ["--request", str(folder / "request.json"), "--endpoints", str(folder / "pool.json")]
    result = CliRunner().invoke(main, ["try", str(folder / "config.yaml"), *files, *options, "--format", "json"])
    assert result.exit_code == 0, result.output
    return answer_of(json.loads(result.stdout))


def hosted(case: Case, _folder: Path) -> Answer:
    """By `endpick.testing.Host`."""
    with Host(case.plan()) as host:
        arrange(host, read_fixture(case.pool(8000)))
        for _ in range(5 if case.failing else 0):
            explanation, exchange = host.begin(case.body, headers=case.headers_of())
            assert exchange is not None
            fail(exchange, FAILURE, explanation.destinations[0], "")
        if case.reloaded:
            host.replace(case.plan(reloaded=True))
        return answer_of(document_of(host.send(case.body, headers=case.headers_of()).record))


def simulated(case: Case, _folder: Path) -> Answer:
    """By the picker of `endpick simulate`, in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_simulated(case, loop))
    finally:
        loop.close()


async def _simulated(case: Case, loop: VirtualLoop) -> Answer:
    log = Records()
    servers = make_servers(PoolSettings(len(case.queues), EngineSettings()), loop, 1)
    simulation = SimulatedPicker(case.plan(), servers, loop, 1, decisions=log)
    await simulation.start()
    picker = simulation.picker
    fixture = read_fixture(case.pool(8000))
    picker.table.replace_all(Endpoint(f"default/{entry.name}", entry.address, entry.port, entry.labels) for entry in fixture.endpoints)
    for endpoint, queue in zip(picker.table.generation.endpoints, case.queues, strict=True):
        for key, value in ((WAITING_QUEUE_SIZE, queue), (RUNNING_REQUESTS_SIZE, 0), (KV_CACHE_USAGE, 0.1)):
            picker.table.write(key, endpoint, float(value))

    async def decide() -> Routed | Refused:
        headers = {":path": PATH, ":method": "POST", "content-type": "application/json", "x-request-id": "r", **case.headers_of()}
        decided = loop.create_future()
        simulation.decide(IncomingRequest(headers, case.body, None, loop.time()), decided.set_result)
        return await decided

    for _ in range(5 if case.failing else 0):
        routed = await decide()
        assert isinstance(routed, Routed)
        fail(routed.exchange, FAILURE, routed.destinations[0], "")
    if case.reloaded:
        await picker.replace(await picker.prepare(case.plan(reloaded=True)))
    decision = await decide()
    if isinstance(decision, Routed):
        fail(decision.exchange, FAILURE, decision.destinations[0], "")
    await simulation.stop()
    return answer_of(log.documents[-1])


class Records:
    """A `DecisionLog` that keeps documents."""

    def __init__(self) -> None:
        self.documents: list[dict] = []

    def begin(self, request, plan):
        from endpick.requests.record import DecisionRecord, Why

        return DecisionRecord.of(request, plan, Why.SAMPLED)

    def finish(self, record):
        self.documents.append(document_of(record))


RECORDING = "plugins:\n- {type: queue-scorer}\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"


def replayed(case: Case, folder: Path) -> Answer:
    """By `endpick replay`: the requests were recorded with a configuration that only knows queues."""
    recording = Case(RECORDING, case.queues, "")
    documents = []
    with Host(recording.plan()) as host:
        arrange(host, read_fixture(recording.pool(8000)))
        for number in range(6 if case.failing else 1):
            host.clock.now += 0.01
            arrange(host, read_fixture(recording.pool(8000)))
            explanation, exchange = host.begin(case.body, headers=case.headers_of())
            assert exchange is not None
            fail(exchange, FAILURE, explanation.destinations[0], "")
            explanation.record.outcome = None if number == 5 else explanation.record.outcome
            documents.append(document_of(explanation.record) | {"model": case.target_model, "why": "sampled"})
    log = folder / "decisions.jsonl"
    log.write_text("".join(json.dumps(document) + "\n" for document in documents))
    redecider = Redecider(case.plan(), 1)
    with redecider.host:
        if case.reloaded:
            redecider.host.replace(case.plan(reloaded=True))
        last = list(redecider.decide(read_decisions(log)))[-1]
    return Answer(last.reason if last.now is None else last.now.name.removeprefix("default/"), case.target_model)
