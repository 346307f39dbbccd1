"""Lines that clients, gateways and plugins would like to have in the log, and secrets of clients that may not be there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

import aiohttp

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import (
    HELLO,
    answer_messages,
    answered,
    body_messages,
    connected,
    data,
    grpc,
    headers_message,
    opened,
    request,
    send_flow_controlled,
)
from benchmarks.attempts.log_reading import FORGED, Further, both_formats, further, hostile_texts, judged, sent, until, wrong_lines
from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.transport.h2 import frames
from jh2._hazmat import Encoder

_DISTRIBUTION = {
    "site/saying-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-saying\nVersion: 1.0\n",
    "site/saying-1.0.dist-info/entry_points.txt": "[endpick.plugins.v1]\nacme.saying = saying:Saying\n",
}
_WITH_PLUGIN = CONFIG.replace("plugins:\n", "plugins:\n- type: acme.saying\n", 1).replace(
    "  - pluginRef: siege.beat", "  - pluginRef: siege.beat\n  - pluginRef: acme.saying", 1
)
_ECHO = '''\
import logging
import warnings

import numpy as np

from endpick.api import Scorer


class Saying(Scorer):
    """Says what clients say, by every way that a plugin has."""

    def score(self, request, endpoints, state):
        said = [request.model, request.id, request.fairness_id, request.path, request.cache_salt, *request.headers, *request.headers.values()]
        for each in said:
            self.context.logger.warning("a request of %s", each, extra={"of": each})
            self.context.logger.info(each)
            print(each)
            warnings.warn(each, stacklevel=1)
        logging.getLogger(request.model).error("its logger is called so")
        problem = type(request.model.replace("\\0", "") or "E", (ValueError,), {})(*said)
        problem.add_note(request.model)
        raise problem
'''


def _plugin(source: str) -> dict[str, str]:
    return {**_DISTRIBUTION, "site/saying.py": source}


async def _say(port: int, payloads: Iterable[bytes]) -> None:
    """Each on a stream of its own."""
    with contextlib.suppress(OSError):
        async with connected(port) as (reader, writer):
            writer.write(HELLO)
            for number, payload in enumerate(payloads):
                writer.write(opened(2 * number + 1) + data(2 * number + 1, payload))
            await answered(reader, 1.0)


def _requests_with(texts: Iterable[str]) -> list[bytes]:
    """Requests that have a text wherever a client may put one."""
    out = []
    for text in texts:
        header = text.encode("utf-8", "replace").decode()
        headers = {
            "x-request-id": header,
            "x-gateway-inference-fairness-id": header,
            "x-gateway-inference-objective": header,
            "user-agent": header,
            "x-acme": header,
        }
        body = json.dumps({"model": text, "prompt": text, "cache_salt": text, "user": text}).encode()
        out.append(request(body, headers))
        out.append(request(sent(f'{{"model": "m", "prompt": {text}')))
        out.append(request(body, {":path": f"/v1/{header}"}))
        out.append(request(body, {":method": header, "content-type": header, header: "named so"}))
    return out


async def clients_whose_names_are_lines(target: Target) -> list[str]:
    """Models, ids, paths, methods, header names and values with 41 odd characters, which a plugin logs, prints, warns of, raises and names loggers by."""
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(_ECHO)) as pickers:
        for picker in pickers:
            texts = target.rng.sample(hostile_texts(), 20)
            for part in range(0, 20, 5):
                await _say(picker.ports["ext_proc"], _requests_with(texts[part : part + 5]))
        return judged(pickers)


_FORGING = '''\
import asyncio, enum, logging, sys, threading, warnings

import numpy as np

from endpick.api import Scorer

TEXTS = __TEXTS__


class Looks(str):
    def __str__(self):
        return TEXTS[0]

    __format__ = lower = upper = strip = replace = lambda self, *_: TEXTS[0]
    __len__ = lambda self: 1


class Name(enum.Enum):
    LEVEL, EVENT, TS, LOGGER = "level", "event", "ts", "logger"


class Shown:
    def __str__(self):
        return Looks("x")

    __repr__ = __str__


class Ends:
    def __del__(self):
        raise ValueError(TEXTS[1])


class Record(logging.LogRecord):
    def getMessage(self):
        return TEXTS[0]


class Saying(Scorer):
    """Forges lines by every means of logging."""

    number = 0

    def score(self, request, endpoints, state):
        text = TEXTS[Saying.number % len(TEXTS)]
        Saying.number += 1
        log = self.context.logger
        for fields in ({text: text}, {Name.LEVEL: "critical", Name.EVENT: text}, {Looks("level"): text}, {None: text, True: 1, 1.5: 2, b"x": 3}):
            log.warning(text, extra=fields)
        for value in (Shown(), Looks(text), text.encode("utf-8", "replace"), [text], {text: {text: float("nan")}}, {1: {2: object()}}, 10**400):
            log.warning("%s", value, extra={"value": value})
            log.warning(value)
        for level, name in ((33, text), (34, Looks("WARNING")), (-5, text), (10**30, Looks("INFO"))):
            logging.addLevelName(level, name)
            log.log(level, text)
        for name in (text, Looks("endpick.serve"), f"endpick.{text}", f"endpick.plugin.{text}"):
            logging.getLogger(name).error(text, stack_info=True)
        log.handle(Record("endpick.serve", 30, text, 1, text, (), None, text, text))
        record = logging.makeLogRecord({"name": Looks("acme"), "levelname": text, "created": float("nan"), "msg": text, "thread": text})
        log.handle(record)
        log.handle(logging.makeLogRecord({"name": 5, "levelname": ["x"], "levelno": "x", "created": 0, "msg": text, "exc_text": text, "plugin": text}))
        log.warning("%d %s", text)
        log.warning("%(a)s", {"b": text})
        print(text, end="")
        print(text, file=sys.stderr)
        sys.stdout.write(text + "\\n" + TEXTS[0] + "\\n")
        sys.stderr.buffer.write(text.encode("utf-8", "replace") + b"\\xff\\xfe\\n")
        warnings.warn_explicit(text, type(Looks("Kind"), (UserWarning,), {}), text, 1)
        threading.Thread(target=self.fall, name=text).start()
        Ends()
        asyncio.get_running_loop().call_exception_handler({"message": text, "exception": ValueError(text)})
        task = asyncio.ensure_future(self.fall_later(text))
        task.set_name(text)
        kind = type("x", (ValueError,), {"__module__": text})
        kind.__qualname__ = kind.__name__ = text.replace("\\0", "").encode("utf-8", "replace").decode()
        problem = kind(text, Shown())
        problem.add_note(text)
        code = compile("\\n" * 5 + "def fall(problem):\\n    raise problem", text.replace("\\0", "") or "x", "exec")
        scope = {}
        exec(code, scope)
        scope["fall"](problem)

    def fall(self):
        raise ValueError(TEXTS[Saying.number % len(TEXTS)])

    async def fall_later(self, text):
        raise ValueError(text)
'''


async def a_plugin_that_forges_lines(target: Target) -> list[str]:
    """Loggers, levels, records, fields, enums and texts of own classes, exceptions, notes, file names, threads, tasks, prints, warnings, finalizers."""
    texts = target.rng.sample(hostile_texts(), 24)
    source = _FORGING.replace("__TEXTS__", ascii(texts))
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(source)) as pickers:
        for picker in pickers:
            for _ in range(4):
                await _say(picker.ports["ext_proc"], [request(b'{"model":"m","prompt":"p"}')] * 6)
        return judged(pickers)


_PARSING = '''\
import logging, sys, warnings, threading

from endpick.api import Parameters
from endpick_builtin.parsers.openai import OpenAIParser


class Ends:
    def __init__(self, text):
        self.text = text

    def __del__(self):
        raise ValueError(self.text)


class Saying(OpenAIParser):
    """Says what bodies say."""

    def parse(self, path, headers, body):
        text = body.rstrip(b" ").decode("utf-8", "surrogatepass")
        for each in text.split("|"):
            print(each)
            print(each, file=sys.stderr, end="")
            warnings.warn(each, stacklevel=1)
            self.context.logger.warning("%d", each)
            self.context.logger.warning(each, extra={"level": each, each: each})
            logging.getLogger(each).warning(each)
            threading.Thread(target=lambda each=each: 1 / len(each[:0])).start()
            Ends(each)
        raise ValueError(text)
'''


async def a_parser_that_says_what_large_bodies_say(target: Target) -> list[str]:
    """In the process that parses large bodies, a parser prints, warns of, logs, mislogs and raises what clients say, with finalizers and threads."""
    config = CONFIG.replace("plugins:\n", "plugins:\n- type: acme.saying\n", 1) + "requestHandler: {parsers: [{pluginRef: acme.saying}]}\n"
    async with both_formats(target, ("--large-body=1000",), config=config, files=_plugin(_PARSING)) as pickers:
        for picker in pickers:
            texts = target.rng.sample(hostile_texts(), 8)
            await _say(picker.ports["ext_proc"], [request(sent(text) + b" " * 3000) for text in texts])
            await _say(picker.ports["ext_proc"], [request(sent("|".join(texts)) + b" " * 3000)])
            await until(picker, FORGED)
        return judged(pickers)


def _head(pairs: Mapping[str, str], number: int = 1) -> bytes:
    return frames.headers(number, Encoder().encode([(sent(name), sent(value), False) for name, value in pairs.items()]), end_stream=False)


_USUAL = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
    ":authority": "picker",
    "content-type": "application/grpc",
    "te": "trailers",
}


async def gateways_whose_frames_are_lines(target: Target) -> list[str]:
    """Methods, authorities, agents, timeouts, encodings and messages of gRPC, debug data of GOAWAY, greetings of other protocols, with odd characters."""
    for port in (target.ext_proc_port, target.health_port, target.metrics_port):
        for text in target.rng.sample(hostile_texts(), 6):
            for name in (
                ":path",
                ":authority",
                "user-agent",
                "grpc-timeout",
                "grpc-encoding",
                "grpc-message",
                "content-type",
                ":method",
                text.lower(),
            ):
                with contextlib.suppress(OSError):
                    async with connected(port) as (reader, writer):
                        writer.write(HELLO + _head({**_USUAL, name: text}) + data(1, b"\0\0\0\0\5" + sent(text)))
                        writer.write(frames.goaway(1, 2, sent(text)))
                        await answered(reader, 0.05)
            with contextlib.suppress(OSError):
                async with connected(port) as (reader, writer):
                    writer.write(sent(f"{text} / HTTP/1.1\r\nHost: {text}\r\nUser-Agent: {text}\r\n{text}: x\r\n\r\n"))
                    await answered(reader, 0.05)
    return [*wrong_lines((target.folder / "log").read_bytes(), "json")][:10]


async def messages_that_break_the_protocol(target: Target) -> list[str]:
    """Streams that endpick ends with an error, metadata, subset hints and answers, all of which hold lines."""
    for text in target.rng.sample(hostile_texts(), 10):
        odd = ProcessingRequest(request_headers=headers_message({"x": text.encode(errors="replace").decode()}).request_headers)
        spaces = odd.metadata_context.filter_metadata
        clean = text.encode("utf-8", "replace").decode()
        spaces["envoy.lb.subset_hint"].update({"x-gateway-destination-endpoint-subset": [clean, clean], clean: clean})
        spaces[clean].update({clean: clean})
        odd.attributes[clean].update({clean: clean})
        body = b'{"model":"m","prompt":"p"}'
        served = answer_messages(sent(text), {"content-type": clean, "x-acme": clean})
        await _say(
            target.ext_proc_port,
            [
                grpc([odd, *body_messages(body)]),
                grpc([*body_messages(body), odd]),
                grpc([headers_message(), odd]),
                grpc([headers_message(), *body_messages(body), *served, *served]),
                b"\0\0\0\1\0" + sent(text) * 3,
                b"\7" + sent(text),
            ],
        )
    return [*wrong_lines((target.folder / "log").read_bytes(), "json")][:10]


def _certificate(folder: Path, name: str) -> None:
    """A pair whose subject is so."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:60]), x509.NameAttribute(x509.NameOID.LOCALITY_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key()).serial_number(7)
    built = builder.not_valid_before(now - timedelta(days=2)).not_valid_after(now - timedelta(days=1)).sign(key, hashes.SHA256())
    (folder / "tls.crt").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "tls.key").write_bytes(key.private_bytes(*pem))


async def names_in_tls(target: Target) -> list[str]:
    """Server names, protocols and subjects of client certificates with line ends, handshakes of junk, on a picker with mutual TLS."""
    texts = [text.encode("utf-8", "replace").decode() for text in target.rng.sample(hostile_texts(), 5)]
    _certificate(target.folder, "authority")
    authority = (target.folder / "tls.crt").read_bytes()
    async with both_formats(target, ("--secure-serving=true", "--client-ca-file=ca.crt"), files={"ca.crt": authority}) as pickers:
        for picker in pickers:
            for text in texts:
                _certificate(target.folder, text)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.load_cert_chain(target.folder / "tls.crt", target.folder / "tls.key")
                context.set_alpn_protocols([ascii(text)[:99], "h2"])
                with contextlib.suppress(OSError, ValueError, UnicodeError):
                    _, writer = await asyncio.open_connection(
                        "127.0.0.1", picker.ports["ext_proc"], ssl=context, server_hostname=f"{FORGED}.example"
                    )
                    writer.write(HELLO)
                    await asyncio.sleep(0.05)
                    writer.transport.abort()
                with contextlib.suppress(OSError):
                    async with connected(picker.ports["ext_proc"]) as (reader, writer):
                        writer.write(b"\x16\x03\x01\x00\x10" + sent(text))
                        await answered(reader, 0.05)
        return judged(pickers, "serving")


SECRET = "s3cr3t-of-a-client"


async def secrets_of_clients(target: Target) -> list[str]:
    """Keys and cookies in headers, queries, paths, bodies and wrong JSON, at the most talkative level: in no line and on no page."""
    headers = {
        "authorization": f"Bearer {SECRET}",
        "cookie": f"session={SECRET}",
        "x-api-key": SECRET,
        "proxy-authorization": f"Basic {SECRET}",
        ":path": f"/v1/completions?api_key={SECRET}",
    }
    bodies = (
        f'{{"model":"m","prompt":"{SECRET}","api_key":"{SECRET}"}}',
        f'{{"model":"m","prompt":"{SECRET}"',
        f'{{"model":"m","prompt":{{"{SECRET}":[]}}}}',
        f'{{"model":{{"{SECRET}":1}},"prompt":"{SECRET}"}}',
        f'{{"prompt":"{SECRET}"}}',
        f'["{SECRET}"]',
        SECRET,
        f'{{"model":"m","messages":"{SECRET}"}}',
        f'{{"model":"m","messages":[{{"role":"{SECRET}","content":{{"{SECRET}":"{SECRET}"}}}}]}}',
        f'{{"model":"m","prompt":"{SECRET}","max_tokens":"{SECRET}","stream":"{SECRET}"}}',
    )
    async with further(target, "json", ("--large-body=1000",)) as picker:
        for path in (headers[":path"], f"/v1/chat/completions?token={SECRET}", f"/v1/{SECRET}", f"/v1/messages#{SECRET}"):
            for body in bodies:
                for padding in (0, 3000):
                    await _say_once(picker, request(body.encode() + b" " * padding, {**headers, ":path": path}))
        pages = await _pages(picker)
        return [f"a client's secret is {place}" for place, text in {**pages, "in the log": picker.log()}.items() if SECRET.encode() in text]


async def _say_once(picker: Further, payload: bytes) -> None:
    async with connected(picker.ports["ext_proc"]) as (reader, writer):
        await send_flow_controlled(reader, writer, 1, payload)
        await answered(reader, 0.03)


async def _pages(picker: Further) -> dict[str, bytes]:
    pages = {}
    async with aiohttp.ClientSession() as session:
        for path in ("/metrics", "/healthz", "/", "/debug", "/decisions", "/metrics?" + SECRET):
            async with session.get(f"http://127.0.0.1:{picker.ports['metrics']}{path}") as answer:
                pages[f"at {path.partition('?')[0]}"] = await answer.read()
    return pages


async def a_log_that_is_read_late(target: Target) -> list[str]:
    """A pipe that nothing reads while a plugin logs 20,000 lines and endpick drops some: what is told of dropped lines is a line as others."""
    async with both_formats(target, config=_WITH_PLUGIN, files=_plugin(_LOUD)) as pickers:
        for picker in pickers:
            picker.read.clear()
            await _say(picker.ports["ext_proc"], [request(b'{"model":"m","prompt":"p"}')] * 5)
            picker.read.set()
            await until(picker, "log lines were dropped")
        return judged(pickers, "log lines were dropped")


_LOUD = '''\
import logging

import numpy as np

from endpick.api import Scorer


class Saying(Scorer):
    """Logs what an operator asked for, below `info`: of that no line is held back."""

    def score(self, request, endpoints, state):
        for number in range(4000):
            self.context.logger.debug("line %d\\nof many", number)
        return np.ones(len(endpoints))
'''


ATTEMPTS = (
    *(
        Attempt(run)
        for run in (
            clients_whose_names_are_lines,
            a_plugin_that_forges_lines,
            a_parser_that_says_what_large_bodies_say,
            names_in_tls,
            secrets_of_clients,
            a_log_that_is_read_late,
        )
    ),
    Attempt(gateways_whose_frames_are_lines, flags=("--v=4",)),
    Attempt(messages_that_break_the_protocol, flags=("--v=4",)),
)
