"""How many lines others can have written: by what they get wrong, and by what plugins repeat of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.attempts.bodies import EVERY_PARSER, REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import answer_messages, body_messages, grpc, headers_message, request, trailers_message
from benchmarks.attempts.kept import beside
from benchmarks.attempts.second import asked, refused, second
from benchmarks.attempts.streams import exchanged
from benchmarks.siege.beat import install_plugin
from endpick._proto.ext_proc_pb2 import ProcessingRequest

_SHORT = b'{"model":"m","prompt":"p"}'
_ANSWER = answer_messages(b"{}", {"content-type": "application/json"})
_MOST_LINES = 60
"""Of one kind, within the seconds of an attempt: what is told twice a minute for each of a few reasons."""
_MOST_BYTES = 1 << 20
_ECHOING = '''\
from contextlib import suppress

from endpick.api import PreRequest, ResponseObserver


class Echoing(PreRequest, ResponseObserver):
    """Hands on what a client sent in headers that belong to a connection, or whose names no gateway takes."""

    def before_request(self, request, result, headers, state):
        for name in ("te", "connection", "x(y)", "x/y", "keep-alive"):
            with suppress(ValueError):
                headers.set(name, request.headers.get("x-say", "nothing"))
        headers.remove("transfer-encoding")

    def response_started(self, request, head, state):
        said = request.headers.get("x-say", "nothing")
        return {"upgrade": said, ":status": said, f":x{said[:9]}": "1", "x-fine": "1"}
'''


def written(log: Path) -> list[str]:
    """What is wrong with how much stands in a log."""
    lines = log.read_text(errors="replace").splitlines()
    kinds = Counter(_kind(line) for line in lines)
    found = [f"{count} lines of one kind: {kind}" for kind, count in kinds.items() if count > _MOST_LINES]
    size = log.stat().st_size
    return [*found, *([f"the log has {size >> 10} KiB, in {len(lines)} lines"] if size > _MOST_BYTES else [])]


def _kind(line: str) -> str:
    """The first words of what a line tells, and who tells it."""
    try:
        told = json.loads(line)
    except ValueError:
        return line[:40]
    return f"{told.get('logger')}: {' '.join(str(told.get('event')).split()[:4])}"


async def headers_that_no_gateway_takes(target: Target) -> Iterable[str]:
    """A plugin of a second picker sets headers of connections, and ones that are none, to what 1200 clients say, 11 KB each."""
    site = target.folder / "echoing"
    if not site.exists():
        install_plugin(site, "acme.echoing", "Echoing", _ECHOING)
    files = {f"site/{path.relative_to(site)}": path.read_text() for path in site.rglob("*") if path.is_file()}
    async with second(target, config=beside("- type: acme.echoing\n"), files=files) as made:
        for _ in range(3):
            payloads = [request(_SHORT, {"x-say": f"{target.rng.random()}" * 600}) + grpc(_ANSWER) for _ in range(100)]
            await asyncio.gather(*(exchanged(made.picker.ext_proc_port, payloads) for _ in range(4)))
        made.told += refused([await asked(made.picker.ext_proc_port)], "while a plugin set odd headers")
        made.told += written(made.picker.folder / "log")
    return made.told


def _mistakes(target: Target) -> Sequence[bytes]:
    """One stream for each way in which a gateway or its client can be wrong."""
    number = target.rng.randrange(1 << 30)
    head, body, trailers = headers_message(), body_messages(_SHORT), trailers_message()
    watching = headers_message()
    watching.observability_mode = True
    moded = [headers_message() for _ in range(2)]
    moded[0].protocol_config.request_body_mode = number % 64  # type: ignore[assignment]
    moded[1].protocol_config.response_body_mode = 6 + number  # type: ignore[assignment]
    orders = [
        [head, head],
        [head, trailers, *body],
        [*body, head],
        [head, *body, *_ANSWER, *_ANSWER],
        [head, *body, trailers, trailers],
        [watching, *body],
        *([each, *body] for each in moded),
        [ProcessingRequest()],
        [trailers],
        [_ANSWER[0], head, *body],
    ]
    bodies = [
        b"{",
        b"[%d]" % number,
        b'{"model":%d,"prompt":"p"}' % number,
        b'{"model":"m","prompt":[%d]}' % -number,
        b'{"model":"%s","prompt":"p"}' % (b"m" * 2000),
        b'{"model":"m","messages":%d}' % number,
        b'{"model":"m","prompt":[' + b'"",' * 5000 + b'""]}',
    ]
    paths = ("/v1/completions", "/v1/chat/completions", f"/v{number}/completions", "/generate", f"/{number}", "/v1/messages")
    asked_for = [request(each, {":path": target.rng.choice(paths), REWRITE: f"r{number}"}) for each in bodies]
    junk = [b"\0\0\0\0\5" + number.to_bytes(5, "big"), b"\1\0\0\0\0", b"\0" + number.to_bytes(4, "big"), b"\x07" * 9]
    return [*map(grpc, orders), *asked_for, *junk]


async def mistakes_of_every_kind_by_the_thousand(target: Target) -> Iterable[str]:
    """Twenty-two mistakes of gateways and clients, each with numbers of its own, two hundred times each: few lines tell of them."""

    async def some() -> None:
        for _ in range(10):
            await exchanged(target.ext_proc_port, [each for _ in range(5) for each in _mistakes(target)], 3.0)

    await asyncio.gather(*(some() for _ in range(4)))
    return written(target.folder / "log")


ATTEMPTS = (
    Attempt(headers_that_no_gateway_takes),
    Attempt(mistakes_of_every_kind_by_the_thousand, config=EVERY_PARSER),
)
