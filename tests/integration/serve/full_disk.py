"""Serves from a disk of 256 KiB, in a mount namespace of its own, and fills it; prints what became of requests meanwhile and afterwards.

unshare --mount python -m integration.serve.full_disk FOLDER
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import grpc

from integration.plugins.serving import OPTIONS, Picker

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- {type: random-picker}
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
"""
ENDPOINTS = 'endpoints:\n- {{name: {name}, address: 127.0.0.1, port: "{port}"}}\n'


def fill(disk: Path) -> int:
    """Write until there is no room; how much there was."""
    descriptor, written = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY), 0
    for size in (4096, 1):
        with suppress(OSError):
            while True:
                written += os.write(descriptor, b"x" * size)
    os.close(descriptor)
    return written


def fill_last_page(file: Path) -> None:
    """Append up to the end of the page that the file has already: a few lines would find room there, however full the disk is."""
    with file.open("ab", buffering=0) as opened:
        opened.write(b"\n" * (-file.stat().st_size % os.sysconf("SC_PAGE_SIZE")))


def rewrite(file: Path, content: str) -> bool:
    """Write a file anew, in its place: without room it is empty afterwards, or half of it is there."""
    try:
        file.write_text(content)
    except OSError:
        return False
    return True


async def started(disk: Path) -> tuple[asyncio.subprocess.Process, dict[str, object]]:
    """A picker that has only this disk: for its log, its configuration, its endpoints and its temporary files."""
    with (disk / "log").open("ab") as log:
        (disk / "tmp").mkdir()
        environment = {**os.environ, "TMPDIR": str(disk / "tmp")}
        command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS, "--watch-config")
        process = await asyncio.create_subprocess_exec(*command, cwd=disk, env=environment, stdout=log, stderr=log)
    async with asyncio.timeout(40):
        while not (found := [line for line in (disk / "log").read_text().splitlines() if '"event":"serving"' in line]):  # noqa: ASYNC110 - written by another process
            await asyncio.sleep(0.05)
    return process, json.loads(found[0])


async def asked(picker: Picker, count: int = 20) -> list[tuple[str, int]]:
    """Where so many requests are sent."""
    return [await asyncio.wait_for(picker.ask(request_id=f"r{number}"), 20) for number in range(count)]


async def tried(disk: Path) -> dict[str, object]:
    """What became of it all."""
    (disk / "config.yaml").write_text(CONFIG)
    (disk / "endpoints.yaml").write_text(ENDPOINTS.format(name="a", port=1))
    process, ports = await started(disk)
    told: dict[str, object] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['ext_proc_port']}") as channel:
        picker = Picker(process, channel, int(str(ports["metrics_port"])))
        (disk / "tmp").rmdir()  # as those do who clean up
        told["room"] = fill(disk)
        fill_last_page(disk / "log")
        told["while_full"] = sorted(set(await asked(picker)))
        told["endpoints_written"] = rewrite(disk / "endpoints.yaml", ENDPOINTS.format(name="b", port=2) * 200)
        told["config_written"] = rewrite(disk / "config.yaml", CONFIG + "#" * 5000)
        picker.reload()
        async with asyncio.timeout(30):
            reloads = "endpick_config_reloads_total"
            while not sum((await picker.samples(reloads)).values()):  # noqa: ASYNC110 - counted by another process
                await asyncio.sleep(0.05)
        told["after_halves"] = sorted(set(await asked(picker)))
        told["health_while_full"] = (await picker.health())[0]
        (disk / "filler").unlink()
        told["written_again"] = rewrite(disk / "config.yaml", CONFIG) and rewrite(
            disk / "endpoints.yaml", ENDPOINTS.format(name="b", port=2)
        )
        async with asyncio.timeout(30):
            while await picker.ask() != ("127.0.0.1:2", 0):  # noqa: ASYNC110 - read by another process
                await asyncio.sleep(0.05)
        told["after"] = sorted(set(await asked(picker)))
        before = (disk / "log").stat().st_size
        picker.reload()
        async with asyncio.timeout(30):
            while (disk / "log").stat().st_size == before:  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.05)
        told["health"] = (await picker.health())[0]
    process.terminate()
    told["ended"] = await asyncio.wait_for(process.wait(), 40)
    return told


if __name__ == "__main__":
    place = Path(sys.argv[1]) / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    print(json.dumps(asyncio.run(tried(place))))
