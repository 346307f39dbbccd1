"""Functions of the serving packages that no run of `endpick serve` enters: each run is a process of its own, under coverage."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import ClientSession, web
from coverage import CoverageData

import endpick
from reachable.exceptions import compare

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).with_name("unreached.txt")
CONFIG = Path(__file__).with_name("config.yaml")
RELUCTANT = "- {type: max-score-picker}", "- {type: max-score-picker}\n- {type: reach.clinging}\n- {type: reach.reluctant}"
"""Turns the configuration into one of which an instance starts and does not stop again, and the next does not start."""
QUEUED = (
    ("kind: EndpointPickerConfig\n", "kind: EndpointPickerConfig\nfeatureGates: [flowControl]\n"),
    (
        "- {type: utilization-detector, parameters: {queueDepthThreshold: 5}}\n",
        "- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n",
    ),
    ("- {type: queue-scorer}\n", "- {type: queue-scorer}\n- {type: endpoint-load-observer}\n"),
    ("{pluginRef: utilization-detector}}\n", "{pluginRef: concurrency-detector}, enableEviction: true, defaultRequestTTL: 1s}\n"),
)
"""Turn the configuration into one with flow control and a pool that two requests fill, and with a load that is told in answers."""
CORE = Path(endpick.__file__ or "").parent
PACKAGES = ("serve", "requests", "scheduling", "extproc", "transport", "datalayer")
PORTS = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--log-format", "json")
PLAIN = "--secure-serving=false"
SECONDS = 30.0
NO_DISCOVERY = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
METRICS = """\
vllm:num_requests_waiting{model_name="m"} 9
vllm:num_requests_running{model_name="m"} 1
vllm:gpu_cache_usage_perc{model_name="m"} 0.9
"""

STARTED: list[Run] = []
"""All of them, so that no process outlives this one, and a failure can show what each said last."""

sys.path.insert(0, str(ROOT / "tests"))


def unreached_functions() -> list[str]:
    """Complaints about functions that no run enters.

    Raises:
        ExceptionGroup: a run did not go as it should, so that nothing can be said.
    """
    with tempfile.TemporaryDirectory(prefix="endpick-reachable-") as name:
        folder = Path(name)
        asyncio.run(_all_runs(folder))
        entered = CoverageData(str(folder / ".coverage"))
        for part in folder.glob(".coverage.*"):
            data = CoverageData(str(part))
            data.read()
            entered.update(data)
        was_entered = dict(_functions_entered(lambda path: set(entered.lines(str(path)) or ())))
    missing = [name for name, done in was_entered.items() if not done]
    return compare(missing, EXCEPTIONS, "is entered by no run", was_entered)


def _functions_entered(lines_of: Callable[[Path], set[int]]) -> Iterator[tuple[str, bool]]:
    """Every function that has statements, and whether one of them ran."""
    for package in PACKAGES:
        for path in sorted((CORE / package).rglob("*.py")):
            module = ".".join((endpick.__name__, *path.relative_to(CORE).with_suffix("").parts))
            ran = lines_of(path)
            for name, own in _functions(ast.parse(path.read_text())):
                if own:
                    yield f"{module}:{name}", bool(own & ran)


def _functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, set[int]]]:
    """Each function with the lines of its own statements; none for one that has only a docstring, as methods of a protocol have."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            own = {line for statement in body for line in range(statement.lineno, (statement.end_lineno or 0) + 1)}
            for inner in ast.walk(node):
                if inner is not node and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    own -= set(range(inner.lineno, (inner.end_lineno or 0) + 1))
            yield outer + node.name, own
            yield from _functions(node, f"{outer}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{outer}{node.name}.")
        else:
            yield from _functions(node, outer)


class Run:
    """One `endpick serve` in a folder of its own."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process
        self.events: list[str] = []
        """What it logged and no `until` has taken."""
        self.said: deque[str] = deque(maxlen=15)
        """The lines it logged last."""
        self.ports: dict[str, int] = {}
        self._reading = asyncio.ensure_future(self._read())
        self._heard = asyncio.Event()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode().rstrip())
            event = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
            self.events.append(event["event"])
            if event["event"] == "serving":
                self.ports = event
            self._heard.set()
        self._heard.set()

    async def until(self, event: str) -> None:
        """Wait for a log line from now on, or for one that has been."""
        while not any(event in each for each in self.events):
            if self.process.returncode is not None or self._reading.done():
                raise RuntimeError(f"the run in {self.folder.name} ended before it said '{event}'")
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), SECONDS)
        self.events = [each for each in self.events if event not in each]

    async def reload(self, config: str, event: str) -> None:
        """Change the configuration and wait for what the run says to it."""
        (self.folder / "config.yaml").write_text(config)
        self.process.send_signal(signal.SIGHUP)
        await self.until(event)

    async def end(self) -> int:
        """Have it drain, and wait."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        status = await asyncio.wait_for(self.process.wait(), SECONDS)
        await self._reading
        return status


async def _all_runs(folder: Path) -> None:
    from reachable.entry_points import install

    install(folder / "packages")
    (folder / "coveragerc").write_text(
        f"[run]\nparallel = true\ndata_file = {folder}/.coverage\nsource =\n" + "".join(f"    {CORE / each}\n" for each in PACKAGES)
    )
    try:
        async with _model_server() as port, asyncio.timeout(2 * SECONDS), asyncio.TaskGroup() as runs:
            for run in (_plain, _queued, _watched, _crowded, _other_transport, _tls, _refused):
                runs.create_task(run(folder, port))
    except (ExceptionGroup, TimeoutError) as problems:
        for each in STARTED:
            problems.add_note(f"{each.folder.name}, status {each.process.returncode}, said last:\n  " + "\n  ".join(each.said))
        raise
    finally:
        for each in STARTED:
            with suppress(ProcessLookupError):
                each.process.kill()
            await each.process.wait()


async def _start(folder: Path, name: str, model_server: int, *options: str, config: str | None = None) -> Run:
    place = folder / name
    place.mkdir()
    (place / "config.yaml").write_text(config or CONFIG.read_text())
    (place / "endpoints.yaml").write_text(_endpoints(model_server, "a", "b"))
    path = os.pathsep.join((str(folder / "packages"), str(ROOT / "tools"), str(ROOT / "core"), str(ROOT / "builtin_plugins")))
    command = ("-m", "coverage", "run", f"--rcfile={folder}/coveragerc", "-m", "endpick", "serve", "config.yaml", *PORTS, *options)
    environment = {**os.environ, "PYTHONPATH": path}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=place, env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, limit=2**20
    )
    STARTED.append(Run(place, process))
    return STARTED[-1]


def _endpoints(port: int, *names: str) -> str:
    return "endpoints:\n" + "".join(f'- {{name: {name}, address: 127.0.0.{at}, port: "{port}"}}\n' for at, name in enumerate(names, 1))


@asynccontextmanager
async def _model_server() -> AsyncIterator[int]:
    async def page(_: web.BaseRequest) -> web.Response:
        return web.Response(text=METRICS)

    runner = web.ServerRunner(web.Server(page), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _plain(folder: Path, model_server: int) -> None:
    """The default transport without TLS: all traffic, every kind of reload, a changing pool, and a drain with a stream that stays."""
    import grpc.aio

    from reachable import traffic

    limits = ("--max-request-body", "20k", "--large-body", "10k", "--decision-sampling", "1")
    limits = (*limits, "--drain-timeout", "500ms", "--finish-timeout", "500ms")
    shown = ("--enable-grpc-stream-metrics", "--emit-endpoint-scores", "--legacy-metrics=true")
    run = await _start(folder, "plain", model_server, PLAIN, *limits, "--grpc-keepalive-time", "300ms", *shown)
    await run.until("serving")
    config = (run.folder / "config.yaml").read_text()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{run.ports['ext_proc_port']}") as channel:
        await traffic.every_dialect(channel)
        await traffic.every_refusal(channel)
        await traffic.health_and_reflection(channel)
        await traffic.bad_http2(run.ports["ext_proc_port"])
        await run.reload(config.replace("weight: 2", "weight: 3"), "configuration replaced")
        await run.reload(config.replace("weight: 2", "wieght: 2"), "configuration refused")
        await run.reload(config.replace("name: second", "name: vetoed"), "configuration refused")
        await run.reload(config.replace(*RELUCTANT), "configuration refused")
        changed = config.replace("watchFile: true", "watchFile: false").replace("queueDepthThreshold: 5", "queueDepthThreshold: 6")
        await run.reload(changed.replace("{name: reach.hooks}", ""), "configuration replaced")
        await run.reload(config, "configuration replaced")
        (run.folder / "endpoints.yaml").write_text(_endpoints(model_server, "a"))
        async with ClientSession() as client:
            for page in ("metrics", "healthz"):
                async with client.get(f"http://127.0.0.1:{run.ports['metrics_port']}/{page}") as response:
                    await response.text()
        staying = channel.stream_stream(traffic.EXT_PROC_PATH)()
        await staying.write(traffic.request_headers())
        watching = traffic.watch_readiness(channel)
        await watching.read()
        await asyncio.sleep(1.2)  # the file of endpoints is read once a second
        status = await run.end()
    _expect(run, status, 0)


async def _queued(folder: Path, model_server: int) -> None:
    """Requests that wait for their turn: let go, timed out, left by their clients, and sent on in place of less important ones."""
    import grpc.aio

    from reachable import traffic

    config = CONFIG.read_text()
    for as_it_is, queued in QUEUED:
        assert as_it_is in config, as_it_is
        config = config.replace(as_it_is, queued, 1)
    run = await _start(folder, "queued", model_server, PLAIN, "--large-body", "10k", "--finish-timeout", "500ms", config=config)
    await run.until("serving")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{run.ports['ext_proc_port']}") as channel:
        await traffic.every_way_of_waiting(channel)
    _expect(run, await run.end(), 0)


async def _watched(folder: Path, model_server: int) -> None:
    """A configuration that is read again because its file changed; circuits that open at once, and a loop that soon stands still."""
    import grpc.aio

    from reachable import traffic

    wary = ("--circuit-faults", "1", "--circuit-cool-down", "50ms", "--plugin-time-budget", "20ms", "--stall-limit", "50ms")
    wary = (*wary, "--decision-sampling", "1")
    run = await _start(folder, "watched", model_server, PLAIN, "--watch-config", "--enable-grpc-stream-metrics", *wary)
    await run.until("serving")
    config = run.folder / "config.yaml"
    config.write_text(config.read_text().replace("weight: 2", "weight: 3"))
    await run.until("configuration replaced")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{run.ports['ext_proc_port']}") as channel:
        for _ in range(3):
            await traffic.faults(channel)
        await traffic.much_structure(channel)
        await traffic.long_bodies(channel)
    _expect(run, await run.end(), 0)


async def _crowded(folder: Path, model_server: int) -> None:
    """More connections than there is room for, and clients of the metrics port that do not come to the point."""
    import grpc.aio

    from reachable import traffic

    few = ("--grpc-max-connections", "2", "--metrics-max-connections", "2", "--metrics-max-request", "1k", "--metrics-idle-timeout", "20s")
    run = await _start(folder, "crowded", model_server, PLAIN, *few, "--grpc-max-envelope-size", "1k")
    await run.until("serving")
    held = [await asyncio.open_connection("127.0.0.1", run.ports[f"{name}_port"]) for name in ("ext_proc", "metrics") for _ in range(4)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{run.ports['ext_proc_port']}") as channel:
        await traffic.ask(channel, [traffic.request_headers({"x-long": "x" * 5000})])
    await traffic.bad_http1(run.ports["metrics_port"])
    last = await asyncio.open_connection("127.0.0.1", run.ports["metrics_port"])
    await asyncio.sleep(1.2)  # connections are looked at once a second
    _expect(run, await run.end(), 0)
    for _, writer in (*held, last):
        writer.close()


async def _other_transport(folder: Path, model_server: int) -> None:
    """The reference transport, with TLS and a certificate that is renewed."""
    await _with_tls(folder, model_server, "grpcio")


async def _tls(folder: Path, model_server: int) -> None:
    """The default transport with TLS and a certificate that is renewed, then broken."""
    await _with_tls(folder, model_server, "h2")


async def _with_tls(folder: Path, model_server: int, transport: str) -> None:
    import grpc.aio

    from endpick.transport.tls import make_self_signed
    from reachable import traffic

    certificates = folder / f"certificates-{transport}"
    certificates.mkdir()

    def renew() -> bytes:
        certificate, key = make_self_signed()
        (certificates / "tls.key").write_bytes(key)
        (certificates / "tls.crt").write_bytes(certificate)
        return certificate

    root = renew()
    run = await _start(
        folder,
        f"tls-{transport}",
        model_server,
        "--cert-path",
        str(certificates),
        "--transport",
        transport,
        "--drain-timeout",
        "500ms",
        "--finish-timeout",
        "1s",
    )
    await run.until("serving")
    port = run.ports["ext_proc_port"]
    for turn in range(2):
        if turn:
            root = renew()
            await asyncio.sleep(1.2)  # the server looks once a second
        async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root)) as channel:
            await traffic.every_dialect(channel)
            await traffic.every_refusal(channel)
            await traffic.health_and_reflection(channel)
            await traffic.long_bodies(channel)
        await traffic.plain_text_at_tls(port)
    (certificates / "tls.key").write_text("no key")
    await asyncio.sleep(1.2)
    with suppress(OSError):
        await traffic.plain_text_at_tls(port)
    async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root)) as channel:
        watch = channel.stream_stream(traffic.EXT_PROC_PATH)()
        await watch.write(traffic.request_headers())
        await asyncio.sleep(0.1)
        _expect(run, await run.end(), 0)


async def _refused(folder: Path, model_server: int) -> None:
    """Starts that are refused: no discovery, no certificate, a port in use, and a plugin that does not start."""
    config = CONFIG.read_text()
    starts = {
        "no-discovery": ((PLAIN,), NO_DISCOVERY),
        "no-certificate": (("--cert-path", "."), config),
        "port-in-use": (("--grpc-port", str(model_server)), config),
        "reluctant": ((PLAIN,), config.replace(*RELUCTANT)),
    }
    for name, (options, text) in starts.items():
        run = await _start(folder, name, model_server, *options, config=text)
        _expect(run, await asyncio.wait_for(run.process.wait(), SECONDS), 3 if name == "no-discovery" else 5)


def _expect(run: Run, status: int, expected: int) -> None:
    if status != expected:
        raise RuntimeError(f"the run in {run.folder.name} ended with status {status}, not {expected}")
