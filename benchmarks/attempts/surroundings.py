"""Surroundings of a second picker: files that Kubernetes swaps, environments, limits and descriptors that it is started with."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.connections_tls import authority, certified, clients
from benchmarks.attempts.second import asked, probed, refused, second
from benchmarks.extproc.plan import endpoints_file

_LONGEST_SECONDS = 30.0
_MOUNTED = ("config.yaml", "endpoints.yaml", "tls.crt", "tls.key", "ca.crt")


class Mount:
    """A folder as kubelet mounts a ConfigMap or a Secret: each file leads through `..data`, which a rename replaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir(exist_ok=True)

    def swap(self, files: Mapping[str, str], keeps: bool) -> None:
        """Another generation; the one before goes at once unless it is kept, whoever is reading it."""
        self._count += 1
        before = self.folder.joinpath("..data").resolve() if self._count > 1 else None
        now = self.folder / f"..generation_{self._count}"
        now.mkdir()
        for name, text in files.items():
            (now / name).write_text(text)
        (self.folder / "..data_tmp").symlink_to(now.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        if before is not None and not keeps:
            shutil.rmtree(before)


async def mounts_that_are_swapped(target: Target) -> Iterable[str]:
    """Configuration, endpoints, certificate and authority of a second picker are links that swap every 30 ms, beside SIGHUPs and TLS."""
    rng, place = target.rng, target.folder / "mount"
    shutil.rmtree(place, ignore_errors=True)
    mount = Mount(place)

    def generation() -> dict[str, str]:
        pair = certified("endpick", authority())
        config = CONFIG.replace("path: endpoints.yaml", f"path: {place / 'endpoints.yaml'}")
        return {
            "config.yaml": config.replace("weight: 2", f"weight: {rng.choice((1, 2, 'none', 3))}"),
            "endpoints.yaml": endpoints_file(rng.choice((3, 8, 12)), target.model_server_port),
            "tls.crt": pair.chain_pem,
            "tls.key": pair.key_pem,
            "ca.crt": authority().chain_pem,
        }

    mount.swap({**generation(), "config.yaml": CONFIG}, keeps=False)
    flags = ("--watch-config", "--secure-serving=true", f"--cert-path={place}", f"--client-ca-file={place / 'ca.crt'}")
    async with second(target, *flags) as made:
        link = made.picker.folder / "config.yaml"
        link.unlink()
        link.symlink_to(place / "config.yaml")
        right = clients()["right"]
        swapping = asyncio.create_task(_swap_on(mount, generation, made.picker.process.pid, rng.choice((True, False))))
        answers = []
        for _ in range(25):
            answers += await asyncio.gather(*(asked(made.picker.ext_proc_port, right) for _ in range(3)))
            await asyncio.sleep(0.05)
        swapping.cancel()
        await asyncio.gather(swapping, return_exceptions=True)
        made.told += refused(answers, "while what is mounted was swapped")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def _swap_on(mount: Mount, generation: object, pid: int, keeps: bool) -> None:
    assert callable(generation)
    while True:
        mount.swap(await asyncio.to_thread(generation), keeps)
        os.kill(pid, signal.SIGHUP)
        await asyncio.sleep(0.03)


_ENVIRONMENTS = (
    "export PYTHONWARNINGS=error PYTHONDEVMODE=1",
    "export PYTHONASYNCIODEBUG=1 PYTHONPROFILEIMPORTTIME=",
    "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii:strict",
    'exec 8>&2 2>/dev/null; export LC_ALL=tr_TR.ISO-8859-9; exec 2>&8 8>&-; export ODD=$\'\\xff\\n{"level": "critical"}\'',
    "export TMPDIR=/nonexistent HOME=/nonexistent XDG_CACHE_HOME=/proc/1; unset USER LOGNAME",
    "export http_proxy=http://127.0.0.1:1 https_proxy=http://127.0.0.1:1 all_proxy=socks5://127.0.0.1:1 NO_PROXY=",
    "export SSL_CERT_FILE=/dev/zero SSL_CERT_DIR=/dev/zero SSLKEYLOGFILE=/nonexistent/keys OPENSSL_CONF=/dev/null",
    "export TZ=:/dev/zero",
    "export TZ=$(printf 'x%.0s' {1..90000})",
    "export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 PYTHONMALLOC=malloc MALLOC_ARENA_MAX=1",
    "export PROMETHEUS_MULTIPROC_DIR=/nonexistent PROMETHEUS_DISABLE_CREATED_SERIES=nonsense",
    "export PROMETHEUS_MULTIPROC_DIR=$PWD",
    "export AIOHTTP_NO_EXTENSIONS=1 PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python UVLOOP_NONSENSE=1",
    "export GRPC_POLL_STRATEGY=poll GRPC_TRACE=all GRPC_DNS_RESOLVER=native NAMESPACE=$'\\n' POD_NAME=$'\\x1b[2J'",
    "for i in {1..3000}; do export V$i=$i; done",
    "exec <&-",
    "exec </dev/zero 5<>/dev/null 9<>/dev/null 250<>/dev/null",
    "umask 0777",
    "ulimit -c 0 -s 256 -l 0",
    "ulimit -n 90",
    "ulimit -u 40 2>/dev/null",
    "trap '' HUP INT CHLD ALRM PIPE URG",
)


async def surroundings_at_the_start(target: Target) -> Iterable[str]:
    """Eight second pickers with odd environments, locales, folders, proxies, descriptors, limits or signals: asked, reloaded, ended."""
    found: list[str] = []
    for before in target.rng.sample(_ENVIRONMENTS, 8):
        try:
            told = await _served_in(target, before)
        except RuntimeError as problem:  # it did not start, and says why
            told = [str(problem)[-400:]]
        found += [f"{before[:60]!r}: {each}" for each in told]
    return found


async def _served_in(target: Target, before: str) -> list[str]:
    async with second(target, before=before) as made:
        made.signal(signal.SIGHUP)
        made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(3)], "in odd surroundings")
        if b" 200 " not in await probed(made.picker.metrics_port):
            made.told.append("a probe was not answered in odd surroundings")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


_LOOSE = tuple(
    each
    for each in signal.valid_signals()
    if each
    not in (
        *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS, signal.SIGQUIT),
    )
)


async def every_other_signal(target: Target) -> Iterable[str]:
    """Six of the signals that ask neither for a stop nor for a dump of memory: alarms, timers, and those of real time, twenty times."""
    found = []
    for number in target.rng.sample(_LOOSE, 6):
        async with second(target) as made:
            for _ in range(20):
                made.signal(number)
            if not await asked(made.picker.ext_proc_port):
                found.append(f"after signal {int(number)} requests are not answered")
            made.signal(signal.SIGTERM)
            await made.ended(_LONGEST_SECONDS)
        found += [f"signal {int(number)}: {each}" for each in made.told]
    return found


ATTEMPTS = (
    Attempt(mounts_that_are_swapped),
    Attempt(surroundings_at_the_start),
    Attempt(every_other_signal),
)
