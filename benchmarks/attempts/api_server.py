"""An API server of Kubernetes that tells the truth about twelve Pods until an attempt has it lie; as a module it never does."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from benchmarks.attempts.catalogue import CONFIG, Target
from benchmarks.attempts.picker import ENDPOINTS
from benchmarks.attempts.posing import serving

HOST, PORT = "127.0.91.7", 20_443
"""Known before there is a picker, which has to be told."""
PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
OBJECTIVES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferenceobjectives"
REWRITES = "/apis/llm-d.ai/v1alpha2/namespaces/default/inferencemodelrewrites"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_DISCOVERY = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}"
_MOST_PER_SECOND = 40.0
"""Of one path. A server that has just started is asked some fifteen times a second, for seconds."""


def config(more: str = "") -> str:
    """Of a picker that follows the API server; `more` are parameters of its discovery."""
    parameters = f"poolName: pool, kubeconfig: kubeconfig, watchTimeout: 1s, longestPause: 200ms{more}"
    return CONFIG.replace(_DISCOVERY, f"- {{name: endpoints, type: kubernetes-discovery, parameters: {{{parameters}}}}}")


def kubeconfig(scheme: str = "http", token: str = "one") -> str:
    cluster = {"server": f"{scheme}://{HOST}:{PORT}", **({"insecure-skip-tls-verify": True} if scheme == "https" else {})}
    return json.dumps(
        {
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and how often the like was asked before."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    body: bytes
    before: int

    @property
    def watches(self) -> bool:
        return "watch" in self.query


Lie = Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]]
"""Answers instead of the truth; False leaves it to the truth."""


@dataclass
class ApiServer:
    """What it knows, and what it was asked."""

    model_server_port: int
    lie: Lie
    asked: Counter[tuple[str, bool, str]] = field(default_factory=Counter)
    lease: dict[str, object] | None = None
    began: float = field(default_factory=time.monotonic)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Have a connection of HTTP/1.1."""
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, url, *_ = head.split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = self.note(method, url, headers.get("authorization", ""), body)
            if not await self.lie(asked, writer):
                if asked.watches:
                    await _quiet(asked, writer)
                else:
                    writer.write(answer(self.truth(asked)))
            await writer.drain()

    def note(self, method: str, url: str, authorization: str, body: bytes = b"") -> Asked:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        key = (parts.path, "watch" in query, authorization)
        before = self.asked[key]
        self.asked[key] += 1
        return Asked(method, parts.path, query, authorization.removeprefix("Bearer "), body, before)

    def truth(self, asked: Asked) -> bytes:
        """A list, or what a write has made."""
        if asked.method != "GET":
            self.lease = json.loads(asked.body)
            self.lease["metadata"] = {**self.lease["metadata"], "resourceVersion": str(time.monotonic_ns())}  # type: ignore[dict-item]
            return json.dumps(self.lease).encode()
        match asked.path:
            case _ if asked.path == PODS:
                return listed(good_pods())
            case _ if asked.path == POOLS:
                return listed([self.pool()])
            case _ if asked.path == LEASES and self.lease is not None:
                return listed([self.lease])
        return listed([])

    def pool(self) -> dict[str, object]:
        ports = [{"number": self.model_server_port}]
        return {"metadata": {"name": "pool"}, "spec": {"selector": {"matchLabels": {"app": "m"}}, "targetPorts": ports}}

    def hot(self) -> Iterable[str]:
        """What was asked for too often."""
        seconds = max(3.0, time.monotonic() - self.began)
        for (path, watches, token), count in self.asked.items():
            if count / seconds > _MOST_PER_SECOND:
                yield f"{path} was {'watched' if watches else 'asked for'} {count / seconds:.0f} times a second by {token!r}"


async def _quiet(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A watch on which nothing happens, to its end."""
    writer.write(CHUNKED)
    await asyncio.sleep(float(asked.query.get("timeoutSeconds", "1")))
    writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def api_server(target: Target, lie: Lie, tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    """One that lies."""
    server = ApiServer(target.model_server_port, lie)
    async with serving(server.serve, tls, PORT, HOST):
        yield server


async def lying(target: Target, lie: Lie, tls: ssl.SSLContext | None = None) -> list[str]:
    """Lie until the time is up; says what was asked for too often."""
    async with api_server(target, lie, tls) as server:
        await asyncio.sleep(max(1.0, target.seconds_left()))
        return list(server.hot())


def pod(name: str, ip: str, **more: object) -> dict[str, object]:
    """One that is ready; `more` is of its metadata."""
    status = {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"app": "m"}, **more}, "status": status}


def good_pods() -> list[dict[str, object]]:
    return [pod(f"good-{number}", f"127.0.100.{100 + number}") for number in range(ENDPOINTS)]


def listed(items: list[dict[str, object]], **metadata: str) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7", **metadata}, "items": items}).encode()


def answer(body: bytes, status: str = "200 OK", headers: bytes = b"", kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n" % (status.encode(), kind, headers, len(body))
    return head + body


def event(content: dict[str, object], kind: str = "MODIFIED") -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


EXPIRED = chunk(event({"code": 410, "reason": "Expired", "message": "too old"}, "ERROR")) + b"0\r\n\r\n"
"""The rest of a watch after which all is listed again."""


async def _honest(_asked: Asked, _writer: asyncio.StreamWriter) -> bool:
    return False


async def _tell_the_truth(model_server_port: int) -> None:
    async with serving(ApiServer(model_server_port, _honest).serve, None, PORT, HOST):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_tell_the_truth(int(sys.argv[1])))
