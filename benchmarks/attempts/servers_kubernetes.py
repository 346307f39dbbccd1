"""An API server of Kubernetes that lies: lists, watches, objects, statuses, leases; and replicas that hear different truths."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import zlib

import aiohttp

from benchmarks.attempts.api_server import (
    CHUNKED,
    EXPIRED,
    LEASES,
    OBJECTIVES,
    PODS,
    REWRITES,
    ApiServer,
    Asked,
    Lie,
    answer,
    api_server,
    chunk,
    config,
    event,
    good_pods,
    kubeconfig,
    listed,
    lying,
    pod,
)
from benchmarks.attempts.catalogue import Attempt, Run, Target
from benchmarks.attempts.gateway import MEBIBYTE


def _expires(asked: Asked, writer: asyncio.StreamWriter) -> bool:
    """Whether it was a watch, which has ended so that all is listed again."""
    if asked.watches:
        writer.write(CHUNKED + EXPIRED)
    return asked.watches


async def lists_without_end(target: Target) -> list[str]:
    """Every list but the first has no last page: empty pages, 500 Pods, 4096 Pods, or 12 MB of them."""
    bodies = [
        listed([], **{"continue": "more"}),
        listed(good_pods() + [pod(f"p{number}", "10.1.2.3") for number in range(500)], **{"continue": "more"}),
        listed([pod(f"p{number}", "10.1.2.3") for number in range(4096)], **{"continue": "c" * 100_000}),
        listed([pod(f"p{number}", "10.1.2.3", annotations={"a": "b" * 3000}) for number in range(4000)], **{"continue": "more"}),
    ]

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.before and not asked.watches:
            writer.write(answer(bodies[asked.before % len(bodies)]))
            return True
        return _expires(asked, writer)

    return await lying(target, lie)


async def pages_of_60_mb(target: Target) -> list[str]:
    """Lists of all collections at once are pages of 60 MB: blanks, brackets, one text, numbers, escapes, objects of a megabyte.

    The truth stands at their end: an API server that says that there are no Pods is believed.
    """
    fillings = (b" ", b"[", b"1,", b'{"a":1},', b'"\\u0061",', b'{"metadata":{"name":"' + b"n" * MEBIBYTE + b'"}},')

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.before and not asked.watches:
            filling = target.rng.choice(fillings)
            writer.write(CHUNKED + chunk(b'{"metadata":{},"items":['))
            piece = chunk(filling * (2 * MEBIBYTE // len(filling)))
            for _ in range(29):
                writer.write(piece)
                await writer.drain()
            truth = json.dumps(json.loads(ApiServer(target.model_server_port, lie).truth(asked))["items"]).encode()
            writer.write(chunk((truth[1:-1] or b"{}") + b"]}") + b"0\r\n\r\n")
            return True
        return _expires(asked, writer)

    return await lying(target, lie)


async def labels_by_the_thousand(target: Target) -> list[str]:
    """Pages of 500 Pods that all count, each with 3000 labels, short or of characters of four bytes; 20,000 Pods in all."""

    def page_of(number: int, *, wide: bool) -> bytes:
        labels = {f"{index:x}": "" for index in range(3000)} if not wide else {f"l{index}": "\U0001f999" * 60 for index in range(250)}
        pods = [pod(f"p{number}-{index}", f"10.1.{number % 250}.{index % 250}", labels=labels) for index in range(500)]
        return listed(good_pods() + pods, **{"continue": "more"})

    bodies = [page_of(index, wide=index % 2 == 1) for index in range(4)]

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path == PODS and asked.before and not asked.watches:
            body = bodies[asked.before % 4]
            writer.write(answer(body.replace(b'"name": "p', b'"name": "p%d-' % asked.before)))
            return True
        return asked.path == PODS and _expires(asked, writer)

    return await lying(target, lie)


async def pools_that_flip(target: Target) -> list[str]:
    """4096 Pods beside the good ones are others in each list, then all lose and win readiness, and change their labels, in a watch."""

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path != PODS or not asked.before:
            return False
        if not asked.watches:
            others = [pod(f"p{asked.before}-{number}", f"10.1.{number // 250}.{number % 250}") for number in range(4096)]
            writer.write(answer(listed(good_pods() + others)))
            return True
        writer.write(CHUNKED)
        for turn in range(4):
            lines = []
            for number in range(4096):
                one = pod(f"p{asked.before}-{number}", f"10.1.{number // 250}.{number % 250}", labels={"turn": str(turn)})
                if target.rng.random() < 0.5:
                    one["status"] = {"podIP": "10.1.2.3"}
                lines.append(event(one))
            writer.write(chunk(b"".join(lines)))
            await writer.drain()
        writer.write(EXPIRED)
        return True

    return await lying(target, lie)


async def lines_of_watches(target: Target) -> list[str]:
    """5000 Pods are known, and watches send floods of bookmarks, empty lines, events of no kind, of megabytes, in depth, halves."""
    known = [pod(f"p{number}", "10.1.2.3") for number in range(5000)]
    lines = (
        event({"metadata": {}}, "BOOKMARK"),
        b"\n",
        b" \n",
        event({"metadata": {"name": "p1"}}, "DELETED"),
        event(pod("p2", "10.1.2.4")),
        b"{}\n",
        b'{"type":"ADDED","object":1}\n',
        event({"kind": "Secret"}, "\U0001f999"),
        event(pod("big", "10.1.2.5", annotations={"a": "x" * MEBIBYTE})),
        b'{"type":"ADDED","object":' + b"[" * 60_000 + b"\n",
        event({"code": "410"}, "ERROR"),
        event({"code": 2**70, "message": "\x1b[2J\n" * 100}, "ERROR"),
    )

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if not asked.watches and asked.path == PODS and asked.before:
            writer.write(answer(listed(good_pods() + known)))
            return True
        if not asked.watches or asked.path != PODS:
            return False
        writer.write(CHUNKED)
        line = lines[asked.before % len(lines)]
        for _ in range(20):
            writer.write(chunk(line * max(1, 300_000 // len(line))))
            await writer.drain()
        writer.write(chunk(b"{" * 100) + b"0\r\n\r\n" if target.rng.random() < 0.5 else EXPIRED)
        return True

    return await lying(target, lie)


async def statuses_and_what_is_no_answer(target: Target) -> list[str]:
    """429, 500, 401, 410, redirects, with Retry-After of years; gzip that unpacks to 900 MB or lies; other types; noise; no answer."""
    bomb = zlib.compress(b" " * (900 * MEBIBYTE), 9)
    message = json.dumps({"message": "\x1b[2J\nlevel=critical \u202e" * 100}).encode()
    answers = (
        answer(message, "429 Many", b"Retry-After: 99999999999\r\n"),
        answer(message, "503 Busy", b"Retry-After: 31536000\r\n"),
        answer(message, "500 \xc3\xa4\x1b[2J"),
        answer(b"[" * MEBIBYTE, "401 Who"),
        answer(message, "410 Gone"),
        answer(message, "404 None"),
        answer(message, "422 No"),
        answer(b"", "302 Found", b"Location: http://169.254.169.254/\r\n"),
        answer(b"", "200 OK"),
        answer(b"[]"),
        answer(b'{"metadata":[],"items":{}}'),
        answer(b'{"metadata":{"resourceVersion":1e999,"continue":[]},"items":[1]}'),
        answer(b"<html>", kind=b"text/html"),
        answer(bomb, headers=b"Content-Encoding: deflate\r\n"),
        answer(b"lies", headers=b"Content-Encoding: gzip\r\n"),
        answer(b"{}", headers=b"X: \xff\xfe\r\nSet-Cookie: " + b"a" * 5000 + b"\r\n"),
        answer(b"{}", kind=b"application/json; charset=utf-17"),
        answer(b"{}", kind=b"\xff\xff/\xfe"),
        b"HTTP/1.1 103 Early\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        CHUNKED + b"5;" + b"x" * MEBIBYTE,
        CHUNKED + b"0\r\nX: " + b"x" * MEBIBYTE,
        target.rng.randbytes(100_000),
        b"",
    )

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path == LEASES or not (asked.before or asked.watches):
            return False
        writer.write(target.rng.choice(answers))
        await writer.drain()
        if target.rng.random() < 0.5:
            writer.close()
        return True

    return await lying(target, lie)


async def rules_by_the_thousand(target: Target) -> list[str]:
    """4000 objectives and rewrites whose priorities, weights and names are absurd, and which all change with each list and watch."""

    def objects(path: str, turn: int) -> list[dict[str, object]]:
        meta = [{"name": f"o{number}", "resourceVersion": str(turn), "creationTimestamp": "x" * 60} for number in range(4000)]
        if path == OBJECTIVES:
            priorities = [2**31, -(2**63), 10**300, 0, None, "1", True, []]
            return [{"metadata": one, "spec": {"poolRef": {"name": "pool"}, "priority": target.rng.choice(priorities)}} for one in meta]
        models = [{"model": {"value": f"m{turn}-{number}"}} for number in range(10)]
        targets = [{"modelRewrite": f"t{number}", "weight": 10**18} for number in range(10)]
        rules = [{"matches": models, "targets": targets}]
        return [{"metadata": one, "spec": {"poolRef": {"name": "pool"}, "rules": rules}} for one in meta]

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path not in (OBJECTIVES, REWRITES):
            return False
        made = objects(asked.path, asked.before)
        if not asked.watches:
            writer.write(answer(listed(made)))
            return True
        writer.write(CHUNKED + chunk(b"".join(map(event, made))))
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.write(EXPIRED)
        return True

    return await lying(target, lie)


_ELECTION = ", leaderElection: true"
_HASTY = _ELECTION + ", leaseDuration: 2s, renewDeadline: 1s, retryPeriod: 200ms"


async def _second(target: Target, name: str) -> tuple[asyncio.subprocess.Process, int]:
    """Another replica, which logs to a file of its own, and the port of its probes."""
    place = target.folder / name
    place.mkdir(exist_ok=True)
    (place / "config.yaml").write_text(config(_HASTY))
    (place / "kubeconfig").write_text(kubeconfig(token="two"))
    options = ["--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false"]
    command = [sys.executable, "-m", "endpick", "serve", "config.yaml", *options, "--log-format=json", "--drain-timeout=1s"]
    path = os.pathsep.join([str(target.folder / "site"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "SIEGE_TIMELINE": str(place / "timeline")}
    with (place / "log").open("w") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, cwd=place, env=environment)
    while process.returncode is None:
        for line in (place / "log").read_text(errors="replace").splitlines():
            if '"serving"' in line and (port := json.loads(line).get("metrics_port")):
                return process, int(port)
        await asyncio.sleep(0.1)
    raise RuntimeError((place / "log").read_text(errors="replace"))


async def _probed(port: int, until: float) -> list[str]:
    """Any answer to a probe will do: a replica that stands by says so."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2)) as session:
        while time.monotonic() < until:
            try:
                async with session.get(f"http://127.0.0.1:{port}/healthz") as health:
                    await health.read()
            except (TimeoutError, aiohttp.ClientError) as problem:
                found.append(f"a probe of the second replica got no answer: {type(problem).__name__}")
            await asyncio.sleep(0.1)
    return found


async def _two_replicas(target: Target, lie: Lie) -> list[str]:
    """A second picker beside the first, and whether its probes were answered, its log is one, and it ends."""
    async with api_server(target, lie) as server:
        process, port = await _second(target, f"second-{time.monotonic_ns()}")
        try:
            found = await _probed(port, target.until - 2)
            if process.returncode is not None:
                return [*found, f"the second replica ended with {process.returncode}"]
            process.terminate()
            code = await asyncio.wait_for(process.wait(), 20)
            if code:
                found.append(f"the second replica ended with {code}")
        except TimeoutError:
            found.append("the second replica did not end within 20 s")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        logs = [log.read_text(errors="replace") for log in target.folder.glob("second-*/log")]
        faults = [line[:300] for log in logs for line in log.splitlines() if "traceback" in line.lower() or '"critical"' in line]
        return [*found, *faults, *server.hot()]


def _lease(holder: str, **more: object) -> dict[str, object]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 2, "renewTime": str(time.time()), "leaseTransitions": 1, **more}
    name = "epp-default-pool.llm-d.ai"
    return {"metadata": {"name": name, "resourceVersion": str(time.monotonic_ns())}, "spec": spec}


async def replicas_that_hear_different_truths(target: Target) -> list[str]:
    """Two replicas: the first is told that it leads; the second that it does too, that no replica does, or another one each time."""

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.path != LEASES and not asked.path.startswith(LEASES):
            if asked.token == "two" and asked.path == PODS and not asked.watches:
                writer.write(answer(listed([pod(f"other-{asked.before}", "10.9.9.9")])))
                return True
            return asked.token == "two" and _expires(asked, writer)
        if asked.method != "GET":
            code = "200 OK" if asked.token == "one" else target.rng.choice(("200 OK", "409 Conflict", "500 No", "404 None"))
            writer.write(answer(asked.body, code))
            return True
        if asked.token == "one":
            return False
        told = target.rng.choice(([], [_lease("")], [_lease(f"thief-{asked.before}")], [_lease("first")]))
        if not asked.watches:
            writer.write(answer(listed(told)))
        else:
            writer.write(CHUNKED + chunk(b"".join(map(event, told)) * 1000) + EXPIRED)
        return True

    return await _two_replicas(target, lie)


async def leases_that_are_none(target: Target) -> list[str]:
    """A second replica finds leases stolen, given back at every write, without end, negative, of years to come, of megabytes, of others."""
    specs: tuple[dict[str, object], ...] = (
        {"leaseDurationSeconds": -1},
        {"leaseDurationSeconds": 2**40},
        {"leaseDurationSeconds": "1"},
        {"leaseTransitions": 2**31 - 1},
        {"leaseTransitions": 10**300},
        {"renewTime": "9999-12-31T23:59:59.999999Z"},
        {"renewTime": {"a": []}},
        {"acquireTime": "x" * MEBIBYTE},
        {"holderIdentity": "\x1b[2J\n" * 100_000},
        {"holderIdentity": 7},
    )

    async def lie(asked: Asked, writer: asyncio.StreamWriter) -> bool:
        if asked.token == "one" or not asked.path.startswith(LEASES):
            return False
        lease = _lease(f"thief-{target.rng.randrange(3)}", **target.rng.choice(specs))
        if asked.watches:
            writer.write(CHUNKED)
            for _ in range(50):
                writer.write(chunk(event(_lease(f"thief-{target.rng.random()}")) + event(lease, "DELETED")))
            await writer.drain()
            await asyncio.sleep(target.rng.choice((0, 0.5)))
            writer.write(b"0\r\n\r\n")
        elif asked.method == "GET":
            writer.write(answer(listed([lease] * target.rng.choice((0, 1, 1000 if len(str(lease)) < 1000 else 1)))))
        else:
            writer.write(answer(json.dumps(lease).encode(), target.rng.choice(("200 OK", "201 OK", "409 No", "418 Tea"))))
        return True

    return await _two_replicas(target, lie)


def _attempt(run: Run, more: str = "") -> Attempt:
    return Attempt(run, config=config(more), files={"kubeconfig": kubeconfig()}, until_serving="benchmarks.attempts.api_server")


ATTEMPTS = (
    _attempt(lists_without_end),
    _attempt(pages_of_60_mb),
    _attempt(labels_by_the_thousand),
    _attempt(pools_that_flip),
    _attempt(lines_of_watches),
    _attempt(statuses_and_what_is_no_answer),
    _attempt(rules_by_the_thousand),
    _attempt(replicas_that_hear_different_truths, _ELECTION),
    _attempt(leases_that_are_none),
)
