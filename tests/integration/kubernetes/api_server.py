"""A fake API server over real sockets: collections to list and watch, with the failures of a real one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
NEW = "/apis/llm-d.ai/v1alpha2/namespaces/default"
OLD = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/default"
RULES = tuple(f"{group}/{kind}" for group in (NEW, OLD) for kind in ("inferenceobjectives", "inferencemodelrewrites"))
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

Answer = Callable[[web.Request], web.StreamResponse | None]


@dataclass
class Asked:
    """A request."""

    path: str
    query: Mapping[str, str]
    token: str
    at: float  # of `time.monotonic`

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query


@dataclass
class Watch:
    """An open watch."""

    path: str
    query: Mapping[str, str]
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None ends it, an empty line cuts the connection


class ApiServer:
    """Objects by path and name, one version counter, a history that can be compacted."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict]] = {path: {} for path in (PODS, POOLS, *RULES, LEASES)}
        self.history: list[tuple[int, str, str, dict, dict | None]] = []
        self.version = 100
        self.compacted = 0  # a watch from before this version is Expired
        self.asked: list[Asked] = []
        self.watches: list[Watch] = []
        self.instead: Answer = lambda _request: None  # replaces the answer unless None
        self.mute = False  # watches deliver no events
        self.page_objects: int | None = None  # maximum objects per page
        self.url = ""

    def put(self, path: str, name: str, **content: object) -> None:
        """Create or replace an object."""
        before = self.objects[path].get(name)
        self.version += 1
        metadata = {"name": name, "namespace": "default", "resourceVersion": str(self.version), **content.pop("metadata", {})}
        self._happened(path, name, {"metadata": metadata, **content}, before)

    def delete(self, path: str, name: str) -> None:
        """Drop an object."""
        before = self.objects[path].pop(name)
        self.version += 1
        self._record("DELETED", path, {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}, before)

    def bookmark(self, path: str) -> None:
        """Send the current version to every watch of a path."""
        self.say(path, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}})

    def say(self, path: str, *events: object) -> None:
        """Send events, or raw bytes, to every open watch of a path."""
        for watch in self.watches:
            if watch.path == path:
                for event in events:
                    watch.lines.put_nowait(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")

    def end_watches(self, path: str, *, cut: bool = False) -> None:
        """End every open watch of a path cleanly, or by cutting its connection."""
        for watch in self.watches:
            if watch.path == path:
                watch.lines.put_nowait(b"" if cut else None)

    def lists(self, path: str) -> int:
        """Number of lists of a path; pages count once."""
        return sum(1 for asked in self.asked if asked.path == path and not asked.is_watch and "continue" not in asked.query)

    def watched(self, path: str) -> list[str]:
        """The versions from which a path was watched."""
        return [asked.query["resourceVersion"] for asked in self.asked if asked.path == path and asked.is_watch]

    def _happened(self, path: str, name: str, after: dict, before: dict | None) -> None:
        self.objects[path][name] = after
        self._record("ADDED" if before is None else "MODIFIED", path, after, before)

    def _record(self, kind: str, path: str, after: dict, before: dict | None) -> None:
        self.history.append((self.version, path, kind, after, before))
        for watch in self.watches if not self.mute else ():
            self._send(watch, path, kind, after, before)

    def _send(self, watch: Watch, path: str, kind: str, after: dict, before: dict | None) -> None:
        """Send an event to a watch; an object that no longer matches its selectors is DELETED for it."""
        if watch.path != path:
            return
        was, is_ = before is not None and matches(watch.query, before), kind != "DELETED" and matches(watch.query, after)
        if was or is_:
            sent = ("MODIFIED" if was else "ADDED") if is_ else "DELETED"
            watch.lines.put_nowait(json.dumps({"type": sent, "object": after}).encode() + b"\n")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(Asked(request.path, dict(request.query), token, time.monotonic()))
        instead = self.instead(request)
        if instead is not None:
            return instead
        if request.method == "PATCH":
            return self._label(request.path.rpartition("/")[2], (await request.json())["metadata"]["labels"])
        if request.method != "GET":
            return self._write(await request.json(), create=request.method == "POST")
        if request.path not in self.objects:
            return status(404, "NotFound")
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _label(self, name: str, changes: dict[str, str | None]) -> web.Response:
        """Merge labels into those of a Pod; None removes one."""
        if name not in self.objects[PODS]:
            return status(404, "NotFound")
        known = self.objects[PODS][name]
        labels = {key: value for key, value in {**known["metadata"].get("labels", {}), **changes}.items() if value is not None}
        self.put(PODS, name, **{**known, "metadata": {"labels": labels}})
        return web.json_response(self.objects[PODS][name])

    def _write(self, item: dict, *, create: bool) -> web.Response:
        """Create or replace a lease; 409 if its version has changed."""
        name, known = item["metadata"]["name"], self.objects[LEASES].get(item["metadata"]["name"])
        if create != (known is None) or (known and known["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]):
            return status(409, "Conflict")
        if item["spec"].get("holderIdentity") == "" or item["spec"]["leaseDurationSeconds"] <= 0:
            return status(422, "Invalid")
        self.put(LEASES, name, spec=item["spec"])
        return web.json_response(self.objects[LEASES][name], status=201 if create else 200)

    def _list(self, request: web.Request) -> web.Response:
        items = [item for item in self.objects[request.path].values() if matches(request.query, item)]
        begin = int(request.query.get("continue", "0"))
        end = begin + min(int(request.query.get("limit", 500)), self.page_objects or 500)
        rest = str(end) if end < len(items) else ""
        return web.json_response({"metadata": {"resourceVersion": str(self.version), "continue": rest}, "items": items[begin:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        begin = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if begin < self.compacted:
            await response.write(json.dumps({"type": "ERROR", "object": gone()}).encode() + b"\n")
            return response
        watch = Watch(request.path, dict(request.query))
        for version, path, kind, after, before in self.history if not self.mute else ():
            if version > begin:
                self._send(watch, path, kind, after, before)
        self.watches.append(watch)
        try:
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while (line := await watch.lines.get()) is not None:
                    if not line and request.transport is not None:
                        request.transport.abort()
                        return response
                    await response.write(line)
        except TimeoutError:
            pass
        finally:
            self.watches.remove(watch)
        return response


def gone() -> dict:
    return {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def status(code: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A Status object with this code."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": f"{reason}: as the test wants it"}
    return web.Response(body=json.dumps(body), status=code, headers={"Content-Type": "application/json", **(headers or {})})


def matches(query: Mapping[str, str], item: dict) -> bool:
    """True if an object matches the selectors, which are equalities here."""
    labels = item["metadata"].get("labels", {})
    wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(label) == value for label, value in wanted.items()) and name in ("", item["metadata"]["name"])


def pool(server: ApiServer, *ports: int, labels: Mapping[str, str] | None = None, name: str = "pool") -> None:
    """Create or change an InferencePool."""
    targets = [{"number": port} for port in ports or (8000,)]
    server.put(POOLS, name, spec={"selector": {"matchLabels": labels or {"app": "vllm"}}, "targetPorts": targets})


def pod(server: ApiServer, name: str, ip: str, *, ready: bool = True, **metadata: object) -> None:
    """Create or change a Pod."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    server.put(PODS, name, metadata={"labels": {"app": "vllm"}, **metadata}, status={"podIP": ip, "conditions": conditions})


@asynccontextmanager
async def serving(server: ApiServer, port: int = 0) -> AsyncIterator[str]:
    """Serve on a loopback port; yields the URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await server.handle(request)  # looked up late: tests replace it

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server.url
    finally:
        for watch in tuple(server.watches):
            watch.lines.put_nowait(b"")
        await runner.cleanup()


def kubeconfig(path: Path, url: str, **user: object) -> Path:
    """Write a kubeconfig file."""
    content = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    path.write_text(json.dumps(content))
    return path
