"""Whatever discovery, scrapes and time do: requests go where a simple model says that a server is, or are refused if there is none."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from endpick.api import Endpoint
from endpick.api.keys import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.host.planning.plan import Plan
from endpick.testing.host import Host, host_of
from endpick_kubernetes.parameters import Pool, endpoints_of, read_pod, read_pool

SCRAPED = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
TOLERANCE_SECONDS = 2.0
NAMES = st.sampled_from("abcd")
IPS = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
APPS = st.sampled_from(["vllm", "vllm", "vllm", "other"])
PORTS = st.lists(st.sampled_from([8000, 8001]), min_size=1, max_size=2, unique=True)
VALUES = st.floats(allow_nan=True, allow_infinity=True)


@cache
def default_plan() -> Plan:
    default = files("endpick.config").joinpath("default.yaml").read_text()
    with host_of(default.replace("plugins:\n", "plugins:\n  - type: silent-endpoint-screener\n", 1)) as host:
        return host.plan


def pod_item(name: str, ip: str, app: str, ready: bool, going: bool) -> dict:
    metadata = {"name": name, "labels": {"app": app}, **({"deletionTimestamp": "2026-08-22T00:00:00Z"} if going else {})}
    return {"metadata": metadata, "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]}}


class RoutingAgainstModel(RuleBasedStateMachine):
    """The built-in default configuration and a screener of silent endpoints, asked between any changes of its pool."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host(default_plan())
        self.pods: dict[str, dict] = {}
        self.pool: Pool | None = None
        self.scraped: dict[tuple[str, str], float] = {}
        """When each endpoint, by name and address, was scraped last."""

    def teardown(self) -> None:
        self.host.close()

    def members(self) -> dict[str, str]:
        """Names and addresses, read from the objects in the plainest way."""
        found: dict[str, str] = {}
        for name, item in self.pods.items() if self.pool is not None else ():
            ready = item["status"]["conditions"][0]["status"] == "True" and "deletionTimestamp" not in item["metadata"]
            if ready and item["metadata"]["labels"]["app"] == "vllm":
                found |= {f"default/{name}-rank-{rank}": f"{item['status']['podIP']}:{port}" for rank, port in enumerate(self.pool.ports)}
        return found

    def allowed(self) -> set[str]:
        """Where requests may go: not to who fell silent, unless all have."""
        now, members = self.host.clock(), self.members()
        silent = {name for name, address in members.items() if now - self.scraped.get((name, address), now) > TOLERANCE_SECONDS}
        return {address for name, address in members.items() if name not in silent} or set(members.values())

    def discovered(self) -> None:
        """Report the pool, as the discovery does."""
        selected = [item for item in self.pods.values() if item["metadata"]["labels"]["app"] == "vllm"]
        pods = [pod for item in selected if (pod := read_pod(item)) is not None]
        self.host.table.replace_all(endpoints_of(pods, self.pool.ports, "default") if self.pool is not None else ())
        members = self.members()
        self.scraped = {(name, address): at for (name, address), at in self.scraped.items() if members.get(name) == address}

    @initialize()
    def there_are_pods(self) -> None:
        for number, name in enumerate("abc", 1):
            self.pods[name] = pod_item(name, f"10.0.0.{number}", "vllm", ready=True, going=False)
        self.the_pool_changes([8000])

    @rule(name=NAMES, ip=IPS, app=APPS, ready=st.booleans(), going=st.booleans())
    def a_pod_changes(self, name: str, ip: str, app: str, ready: bool, going: bool) -> None:
        self.pods[name] = pod_item(name, ip, app, ready, going and not ready)
        self.discovered()

    @rule(name=NAMES, ip=IPS)
    def a_pod_is_ready(self, name: str, ip: str) -> None:
        self.pods[name] = pod_item(name, ip, "vllm", ready=True, going=False)
        self.discovered()

    @rule(name=NAMES)
    def a_pod_is_being_deleted(self, name: str) -> None:
        if name in self.pods:
            self.pods[name]["metadata"]["deletionTimestamp"] = "2026-08-22T00:00:00Z"
            self.discovered()

    @rule(name=NAMES)
    def a_pod_is_gone(self, name: str) -> None:
        self.pods.pop(name, None)
        self.discovered()

    @rule(ports=PORTS)
    def the_pool_changes(self, ports: list[int]) -> None:
        targets = [{"number": port} for port in ports]
        self.pool = read_pool(
            {"metadata": {"name": "pool"}, "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": targets}}
        )
        self.discovered()

    @rule()
    def the_pool_is_deleted(self) -> None:
        self.pool = None
        self.discovered()

    @rule(name=NAMES, rank=st.integers(0, 1), ip=IPS, port=st.sampled_from([8000, 8001]), values=st.tuples(VALUES, VALUES, VALUES))
    def a_scrape_ends(self, name: str, rank: int, ip: str, port: int, values: tuple[float, ...]) -> None:
        """Of an endpoint that may have left, or moved, since the scrape began."""
        endpoint = Endpoint(f"default/{name}-rank-{rank}", ip, port)
        for key, value in zip(SCRAPED, values, strict=True):
            self.host.table.write(key, endpoint, value)
        if self.members().get(endpoint.name) == str(endpoint.address):
            self.scraped[endpoint.name, endpoint.address] = self.host.clock()

    @rule(values=st.tuples(VALUES, VALUES, VALUES), only=st.integers(0, 3))
    def those_that_there_are_are_scraped(self, values: tuple[float, ...], only: int) -> None:
        """All, or one of them."""
        endpoints = self.host.table.generation.endpoints
        for endpoint in endpoints[only - 1 : only] if only else endpoints:
            for key, value in zip(SCRAPED, values, strict=True):
                self.host.table.write(key, endpoint, value)
            self.scraped[endpoint.name, endpoint.address] = self.host.clock()

    @rule(silent=st.integers(1, 3), seconds=st.sampled_from([1.99, 2.01]))
    def one_falls_silent(self, silent: int, seconds: float) -> None:
        self.those_that_there_are_are_scraped((0.0, 0.0, 0.0), 0)
        self.host.clock.now += seconds
        for only in {1, 2, 3} - {silent}:
            self.those_that_there_are_are_scraped((1.0, 1.0, 0.5), only)
        self.requests_come("hello")

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.99, 2.01, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.host.clock.now += seconds

    @rule(prompt=st.sampled_from(["hello", "long " * 400]))
    def requests_come(self, prompt: str) -> None:
        for _ in range(3):
            answer, allowed = self.host.ask(prompt), self.allowed()
            assert set(answer.destinations) <= allowed
            assert bool(answer.destinations) == bool(allowed)
            assert (answer.status == 503) == (not allowed)

    @invariant()
    def the_table_holds_the_members(self) -> None:
        shown = {endpoint.name: endpoint.address for endpoint in self.host.table.generation.endpoints}
        assert shown == self.members()


TestRoutingAgainstModel = RoutingAgainstModel.TestCase
TestRoutingAgainstModel.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
