"""Lines that servers, files and operators would like to have in the log, and secrets of operators that may not be there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.log_reading import FORGED, both_formats, hostile_texts, judged, sent, until

Answer = Callable[[str], bytes]
"""What a server says to a request line."""


@asynccontextmanager
async def _server(answer: Answer) -> AsyncIterator[int]:
    """Its port, on every address of 127/8."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while asked := await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer(asked.split(b"\r\n")[0].decode(errors="replace")))
                await writer.drain()
        writer.close()

    serving = await asyncio.start_server(converse, "0.0.0.0")
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        serving.close()


def _http(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), headers, body)


def _page(text: str) -> bytes:
    label = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    names = f"# HELP vllm:num_requests_waiting {text}\n# TYPE {text} gauge\n{text} 1\n"
    lora = f'vllm:lora_requests_info{{max_lora="{label}",running_lora_adapters="{label}",waiting_lora_adapters="{label}"}} {text}\n'
    cache = f'vllm:cache_config_info{{block_size="{label}",num_gpu_blocks="{label}",cache_dtype="{label}"}} {text}\n'
    return sent(f'{names}{lora}{cache}vllm:num_requests_waiting{{model_name="{label}"}} {text}\nvllm:kv_cache_usage_perc {text}\n')


async def model_servers_whose_answers_are_lines(target: Target) -> list[str]:
    """Reasons, headers, redirects, encodings, names, labels and values of pages, lists of models, and answers that are no HTTP."""
    texts = iter(target.rng.sample(hostile_texts(), len(hostile_texts())) * 1000)

    def answer(_: str) -> bytes:
        text = next(texts)
        flat = sent(text).replace(b"\r", b"").replace(b"\n", b"")
        models = json.dumps({"data": [{"id": text, "parent": text}, text, {text: text}]}).encode()
        return target.rng.choice(
            [
                _http(_page(text)),
                _http(models),
                _http(b"", b"500 " + flat),
                _http(b"", b"302 Found", b"Location: " + flat + b"\r\n"),
                _http(sent(text), headers=b"Content-Encoding: " + flat + b"\r\n"),
                _http(sent(text), headers=b"Content-Encoding: gzip\r\n"),
                _http(sent(text), headers=flat + b": x\r\n"),
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent(text) + b"\r\n",
                b"HTTP/1.1 200 OK\r\nContent-Length: " + flat + b"\r\n\r\n",
                sent(text) + b"\r\n\r\n",
            ]
        )

    async with _server(answer) as port:
        rows = [{"name": f"e{number}", "address": f"127.0.100.{number + 1}", "port": str(port)} for number in range(12)]
        config = CONFIG.replace("plugins:\n", "plugins:\n- type: models-data-source\n", 1)
        files = {"endpoints.yaml": json.dumps({"endpoints": rows})}
        async with both_formats(target, config=config, files=files) as pickers:
            await asyncio.sleep(3)
            return judged(pickers, "metrics-data-source")


def _endpoints(text: str) -> bytes:
    """Entries that are wrong in many ways, and one that is right, with a text in every place."""
    wrong = [
        {"name": text, "address": text, "port": text},
        {"name": text, "address": "127.0.0.1", "port": "1", "labels": {text: text}},
        {"name": "a", "address": "127.0.0.1", "port": "1", text: text},
        {"name": "b", "namespace": text, "address": "127.0.0.1", "port": "2", "labels": text},
        {text: text},
        text,
    ]
    return json.dumps({"endpoints": wrong, text: text}).encode()


async def endpoint_files_that_hold_lines(target: Target) -> list[str]:
    """Names, namespaces, addresses, ports, labels and keys of endpoints, as JSON, as YAML and as neither, in a file that is watched."""
    async with both_formats(target) as pickers:
        for text in target.rng.sample(hostile_texts(), 4):
            for content in (
                _endpoints(text),
                sent(f"endpoints: {text}"),
                sent(f'endpoints: ["{text}", *{text}]'),
                sent(text),
                b"- \xff\xfe" + sent(text),
                _endpoints(text),
            ):
                for picker in pickers:
                    (picker.folder / "next").write_bytes(content)
                    (picker.folder / "next").rename(picker.folder / "endpoints.yaml")
                await asyncio.sleep(0.4)  # it is looked at some times a second
        for picker in pickers:
            await until(picker, FORGED)
        return judged(pickers)


async def configurations_that_hold_lines(target: Target) -> list[str]:
    """Keys, values, comments, anchors, types, names and parameters of configurations, read again on SIGHUP."""
    async with both_formats(target) as pickers:
        for text in target.rng.sample(hostile_texts(), 6):
            quoted = json.dumps(text)
            for config in (
                CONFIG + f"{quoted}: {quoted}\n",
                CONFIG.replace("type: queue-scorer", f"type: {quoted}"),
                CONFIG.replace("type: queue-scorer", f"type: queue-scorer\n  parameters: {{{quoted}: {quoted}}}"),
                CONFIG.replace("type: queue-scorer", f"type: queue-scorer\n  name: {quoted}\n  from: {quoted}"),
                CONFIG.replace("weight: 2", f"weight: {quoted}", 1),
                CONFIG + f"# {text}\n*{text}\n",
                CONFIG + f"x: !{text} &{text} [\n",
                text,
            ):
                for picker in pickers:
                    (picker.folder / "config.yaml").write_bytes(sent(config))
                    picker.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.25)
        for picker in pickers:
            (picker.folder / "config.yaml").write_text(CONFIG)
        return judged(pickers)


_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "http://{server}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
"""
_WITHOUT_DISCOVERY = CONFIG.partition("dataLayer:")[0].replace(
    "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n", ""
)


def _objects(text: str, line: str) -> bytes:
    """A list or a watch of objects that have the text in every place."""
    named = {"name": text, "namespace": text, "resourceVersion": text, "uid": text, "labels": {text: text}, "annotations": {text: text}}
    ready = {"phase": text, "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True", "reason": text, "message": text}]}
    pool = {
        "metadata": {**named, "name": "pool"},
        "spec": {"selector": {"matchLabels": {text: text}}, "targetPorts": [{"number": text}, {"number": 1}]},
    }
    pod = {"metadata": named, "spec": {"nodeName": text}, "status": ready}
    other = {
        "metadata": named,
        "spec": {
            "priority": text,
            "poolRef": {"name": text},
            "rules": [{"matches": text}],
            "holderIdentity": text,
            "leaseDurationSeconds": text,
        },
    }
    items = [pool, pod, {**pod, "metadata": {**named, "name": "good"}}, other, text, {text: text}]
    if "watch=1" in line:
        events = [{"type": kind, "object": item} for kind in ("ADDED", "MODIFIED", "ERROR", text) for item in items]
        events.append({"type": "ERROR", "object": {"kind": "Status", "code": 500, "reason": text, "message": text}})
        return _http(b"".join(json.dumps(event).encode() + b"\n" for event in events) + sent(text) + b"\n")
    if "/leases/" in line:
        return _http(
            json.dumps(
                {
                    "metadata": {**named, "resourceVersion": "1"},
                    "spec": {"holderIdentity": text, "leaseDurationSeconds": 15, "renewTime": text},
                }
            ).encode()
        )
    return _http(json.dumps({"kind": text, "metadata": {"resourceVersion": text, "continue": ""}, "items": items, **pool}).encode())


async def an_api_server_whose_messages_are_lines(target: Target) -> list[str]:
    """Reasons, messages and Status of errors, names, labels, versions, leases, holders and events of an API server that wants the log."""
    texts = iter(target.rng.sample(hostile_texts(), len(hostile_texts())) * 1000)

    def answer(line: str) -> bytes:
        text = next(texts)
        flat = sent(text).replace(b"\r", b"").replace(b"\n", b"")
        status = json.dumps({"kind": "Status", "reason": text, "message": text, "code": 403}).encode()
        refusals = [_http(status, b"403 " + flat), _http(sent(text), b"500 " + flat), _http(status, b"410 Gone"), sent(text) + b"\r\n\r\n"]
        return target.rng.choice([*refusals, *[_objects(text, line)] * 4])

    async with _server(answer) as port:
        files = {"kube.yaml": _KUBECONFIG.format(server=f"127.0.0.1:{port}", token="t")}
        flags = (
            "--kubeconfig=kube.yaml",
            "--pool-name=pool",
            "--pool-namespace=n",
            "--ha-enable-leader-election",
            "--discovery-timeout=5s",
        )
        async with both_formats(target, flags, config=_WITHOUT_DISCOVERY, files=files, seconds=6) as pickers:
            await asyncio.sleep(2)
            return judged(pickers)


async def name_servers_whose_answers_are_lines(target: Target) -> list[str]:
    """Aliases and targets of services whose labels hold line ends, escapes and dots, and answers that are none."""
    texts = [sent(text) for text in target.rng.sample(hostile_texts(), 30)]

    class Server(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.DatagramTransport", transport)

        def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
            text = target.rng.choice(texts)[:60]
            name = bytes([len(text)]) + text + b"\0"
            kind = int.from_bytes(data[-4:-2], "big")
            record = name if kind == 5 else b"\0\1\0\1\0\7" + name
            wrong = target.rng.choice([33, 5, kind])
            content = record if wrong != 5 else name
            answer = b"\xc0\x0c" + wrong.to_bytes(2, "big") + b"\0\1\0\0\0\0" + len(content).to_bytes(2, "big") + content
            head = data[:2] + target.rng.choice([b"\x81\x80", b"\x81\x83", b"\x81\x82"]) + b"\0\1\0\1\0\0\0\0"
            whole = head + data[12:] + answer
            self.transport.sendto(target.rng.choice([whole, data[:2] + text, whole[: len(whole) - 20]]), address)

    loop = asyncio.get_running_loop()
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listening.bind(("127.0.0.1", 0))
    transport, _ = await loop.create_datagram_endpoint(Server, sock=listening)
    discovery = (
        "- name: endpoints\n  type: dns-discovery\n  parameters: {hostname: _http._tcp.pool.example, records: SRV, shortestInterval: 50ms, "
        f'nameserver: "127.0.0.1", nameserverPort: {listening.getsockname()[1]}}}\n'
    )
    config = CONFIG.replace("- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n", discovery)
    try:
        async with both_formats(target, ("--discovery-timeout=4s",), config=config, seconds=5) as pickers:
            await asyncio.sleep(2)
            return judged(pickers, "dns-discovery")
    finally:
        transport.close()


SECRET = "s3cr3t-of-an-operator"


async def secrets_of_operators(target: Target) -> list[str]:
    """Users and keys in URLs of sources, renderers and predictors, and tokens of kubeconfigs, while servers fail: in no line of the log."""
    found = []
    async with _server(lambda _: _http(b"", b"500 no")) as port:
        host = f"127.0.0.1:{port}"
        urls = (
            f"http://user:{SECRET}@{host}/pool.json",
            f"http://{host}/pool.json?key={SECRET}",
            f"http://{SECRET}@{host}/x?key={SECRET}#{SECRET}",
        )
        for url in urls:
            for plugin in (
                f"- {{type: http-pool-source, parameters: {{url: '{url}'}}}}\n",
                f"- {{type: token-producer, parameters: {{modelName: m, vllm: {{url: '{url}'}}}}}}\n",
                f"- {{type: predicted-latency-producer, parameters: {{predictionServerUrl: '{url}', trainingServerUrl: '{url}'}}}}\n",
            ):
                found += await _with_secret(target, plugin, {"PREDICTION_SERVER_URL": url, "TRAINING_SERVER_URL": url})
        for token, server in (
            (SECRET, host),
            (f"{SECRET}\\n", host),
            (SECRET, f"user:{SECRET}@{host}"),
            (SECRET, f"{host}/?token={SECRET}"),
        ):
            files = {"kube.yaml": _KUBECONFIG.format(server=server, token=token)}
            flags = ("--kubeconfig=kube.yaml", "--pool-name=pool", "--pool-namespace=n", "--discovery-timeout=1s")
            async with both_formats(target, flags, config=_WITHOUT_DISCOVERY, files=files, seconds=2) as pickers:
                found += [
                    f"a kubeconfig's secret is in the log: {_line(picker.log())}" for picker in pickers if SECRET.encode() in picker.log()
                ]
    return found


async def _with_secret(target: Target, plugin: str, environment: Mapping[str, str]) -> list[str]:
    """Started with it, or, where that is refused, given it by a reload."""
    config = CONFIG.replace("plugins:\n", f"plugins:\n{plugin}", 1)
    async with both_formats(target, environment=environment) as pickers:
        for picker in pickers:
            (picker.folder / "config.yaml").write_text(config)
            picker.process.send_signal(signal.SIGHUP)
            await until(picker, "configuration re", 3)
        await asyncio.sleep(1)
        return [
            f"a secret of {plugin.split(',', maxsplit=1)[0]} is in the log: {_line(picker.log())}"
            for picker in pickers
            if _secret_in(picker.log())
        ]


def _secret_in(log: bytes) -> bool:
    return SECRET.encode() in log or base64.b64encode(SECRET.encode())[:12] in log


def _line(log: bytes) -> str:
    return next((line.decode(errors="replace")[:400] for line in log.splitlines() if _secret_in(line)), "")


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        model_servers_whose_answers_are_lines,
        endpoint_files_that_hold_lines,
        configurations_that_hold_lines,
        an_api_server_whose_messages_are_lines,
        name_servers_whose_answers_are_lines,
        secrets_of_operators,
    )
)
