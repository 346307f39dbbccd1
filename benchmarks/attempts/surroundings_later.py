"""Surroundings that change while a second picker serves: its limits, its ports, and files that never stop growing."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import HELLO, connected, data, opened, request
from benchmarks.attempts.second import PLAIN, Second, asked, command_of, probed, refused, second
from benchmarks.extproc.plan import ON_LOOPBACK, endpoints_file

_LONGEST_SECONDS = 30.0
_LARGE = request(b'{"model":"m","messages":[' + b'{"role":"user","content":"x"},' * 12_000 + b'{"role":"user","content":"x"}]}')
_LOWERED = (
    (resource.RLIMIT_NOFILE, 0, "descriptors"),
    (resource.RLIMIT_NOFILE, 3, "descriptors"),
    (resource.RLIMIT_NPROC, 1, "threads"),
    (resource.RLIMIT_FSIZE, 0, "files"),
    (resource.RLIMIT_STACK, 65_536, "stack"),
    (resource.RLIMIT_MEMLOCK, 0, "locked memory"),
    (resource.RLIMIT_SIGPENDING, 0, "signals"),
    (resource.RLIMIT_AS, -1, "address space"),
)


async def limits_that_are_lowered(target: Target) -> Iterable[str]:
    """What a second picker may have (descriptors, threads, files, stack, signals, memory) is lowered below what it has, and raised."""
    found: list[str] = []
    for kind, limit, name in _LOWERED:
        async with second(target, "--drain-timeout=0s") as made:
            made.logs_whole_lines = kind != resource.RLIMIT_FSIZE
            before = resource.prlimit(made.picker.process.pid, kind)
            open_files = _open_files(made)
            now = {0: 0, 3: open_files + 3, -1: _address_space(made) + (64 << 20)}.get(limit, limit)
            async with connected(made.picker.ext_proc_port) as (reader, writer):
                writer.write(HELLO)
                await reader.read(100)
                resource.prlimit(made.picker.process.pid, kind, (now, before[1]))
                (made.picker.folder / "config.yaml").write_text(CONFIG.replace("weight: 2", "weight: 3"))
                made.signal(signal.SIGHUP)
                served = 0
                for number in range(20):
                    writer.write(opened(1 + 2 * number) + data(1 + 2 * number, PLAIN))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            served += b"x-gateway-destination-endpoint" in await reader.read(65_536)
                    await asyncio.sleep(0.02)
                if not served:
                    made.told.append("of 20 requests on a connection that was there none was answered")
                await asyncio.gather(*(asked(made.picker.ext_proc_port, seconds=2) for _ in range(20)))
                resource.prlimit(made.picker.process.pid, kind, before)
            await asyncio.sleep(1.2)
            made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(10)], "once all was allowed again")
            if b" 200 " not in await probed(made.picker.metrics_port):
                made.told.append("a probe was not answered once all was allowed again")
            made.signal(signal.SIGTERM)
            await made.ended(_LONGEST_SECONDS)
        found += [f"{name} ({limit}): {each}" for each in made.told]
    return found


def _open_files(made: Second) -> int:
    return len([*Path(f"/proc/{made.picker.process.pid}/fd").iterdir()])


def _address_space(made: Second) -> int:
    return int(Path(f"/proc/{made.picker.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()


async def two_on_the_same_ports(target: Target) -> Iterable[str]:
    """Others are started on the ports of a second picker, which serves on; it is killed, and its successor serves on them at once."""
    async with second(target, "--drain-timeout=0s") as made:
        ports = (made.picker.ext_proc_port, made.picker.health_port, made.picker.metrics_port)
        flags = [f"--{name}={port}" for name, port in zip(("grpc-port", "grpc-health-port", "metrics-port"), ports, strict=True)]
        command = [*command_of(target)[:5], *(each for each in ON_LOOPBACK if "port" not in each), *flags]
        for more in ([], ["--reuse-port=true"], ["--metrics-port=0"], ["--metrics-port=0", "--grpc-health-port=0"]):
            other = await _started(command + more, made)
            with suppress(TimeoutError):
                async with asyncio.timeout(15):
                    code = await other.wait()
                    if code != 5:
                        made.told.append(f"one that was started on ports that are taken ended with {code}")
            if other.returncode is None:
                made.told.append("one that was started on ports that are taken did not end")
                other.kill()
                await other.wait()
            made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(5)], "while others wanted the ports")
        made.ends_with = (-signal.SIGKILL,)
        with ExitStack() as held:
            clients = [await asyncio.open_connection("127.0.0.1", ports[0]) for _ in range(50)]
            for _, writer in clients:
                held.callback(writer.transport.abort)
                writer.write(HELLO + opened(1))
            await asyncio.sleep(0.1)
            made.signal(signal.SIGKILL)
            await made.ended(5)
            made.picker.exit_code = -signal.SIGKILL
            next_one = await _started(command, made)
            answers = []
            for _ in range(100):
                if await asked(ports[0], seconds=1):
                    break
                await asyncio.sleep(0.1)
            answers = [await asked(ports[0]) for _ in range(20)]
            made.told += refused(answers, "by the successor of one that was killed")
            next_one.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(20):
                    if await next_one.wait():
                        made.told.append(f"the successor ended with {next_one.returncode}")
            except TimeoutError:
                next_one.kill()
                made.told.append("the successor did not end")
    return made.told


async def _started(command: list[str], made: Second) -> asyncio.subprocess.Process:
    log = (made.picker.folder / "other.log").open("a")
    environment = {**os.environ, "SIEGE_TIMELINE": "/dev/null", "PYTHONPATH": str(made.picker.folder / "site") + ":" + str(Path.cwd())}
    return await asyncio.create_subprocess_exec(*command, cwd=made.picker.folder, stdout=log, stderr=log, env=environment)


async def files_that_never_stop_growing(target: Target) -> Iterable[str]:
    """Configuration and endpoints of a second picker grow without end, are 50 GB of nothing, shrink while they are read, beside SIGHUPs."""
    async with second(target, "--drain-timeout=0s", "--watch-config") as made:
        config, endpoints = made.picker.folder / "config.yaml", made.picker.folder / "endpoints.yaml"
        good = endpoints_file(12, target.model_server_port)
        answers = []
        for kind in ("grow", "sparse", "shrink", "flood"):
            busy = asyncio.create_task(_kept_busy(kind, (config, CONFIG), (endpoints, good)))
            for _ in range(10):
                made.signal(signal.SIGHUP)
                answers.append(await asked(made.picker.ext_proc_port))
                await asyncio.sleep(0.15)
            if b" 200 " not in await probed(made.picker.metrics_port):
                made.told.append(f"a probe was not answered while files {kind}")
            busy.cancel()
            await asyncio.gather(busy, return_exceptions=True)
        made.told += refused(answers, "while files grew")
        config.write_text(CONFIG.replace("weight: 2", "weight: 7"))
        endpoints.write_text(good + f'- {{name: later, address: 127.0.99.9, port: "{target.model_server_port}"}}\n')
        await asyncio.sleep(4)
        log = (made.picker.folder / "log").read_text()
        if "default/later" not in log:
            made.told.append("what the files say in the end was not read")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def _kept_busy(kind: str, *files: tuple[Path, str]) -> None:
    while True:
        for path, text in files:
            if kind == "grow":
                with path.open("a") as file:
                    file.write("# and more of it\n" * 500)
            elif kind == "sparse":
                with path.open("r+b") as file:
                    file.truncate(50 << 30)
            elif kind == "shrink":
                path.write_text(text * 5)
                with path.open("r+b") as file:
                    file.truncate(len(text) // 2)
                path.write_text(text)
            else:
                for number in range(50):
                    other = path.with_name(f"{path.name}.{number}")
                    other.write_text(text)
                    other.rename(path)
        await asyncio.sleep(0.005)


ATTEMPTS = (
    Attempt(limits_that_are_lowered),
    Attempt(two_on_the_same_ports),
    Attempt(files_that_never_stop_growing),
)
