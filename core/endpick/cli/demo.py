"""`endpick demo`: compares prefix-aware with random routing on real traffic."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import NoReturn

import click

from endpick.cli.console import plan_or_exit
from endpick.diagnostics import ExitCode
from endpick.simulation.demo.processes import ChildFailed
from endpick.simulation.demo.runner import Configuration, DemoSettings, built_in, run_demo, why_unfit
from endpick.simulation.demo.saturated import SaturatedSettings, run_saturated
from endpick.simulation.demo.stack import EnvoyNotFoundError, find_envoy


@click.command("demo", context_settings={"show_default": True})
@click.option("--config", help="Try this configuration instead of prefix-aware routing.")
@click.option("--duration", type=click.FloatRange(min=4), default=30.0, help="Seconds of load, both halves together.")
@click.option("--rate", type=click.FloatRange(min=1, max=100), default=20.0, help="Requests per second.")
@click.option("--servers", type=click.IntRange(min=1, max=16), default=4, help="Simulated model servers.")
@click.option("--seed", type=int, default=1, help="Same seed, same chats.")
@click.option("--saturated", type=click.Path(path_type=Path), help="Overload the servers, and draw the effect of flow control here.")
def command(config: str | None, duration: float, rate: float, servers: int, seed: int, saturated: Path | None) -> None:
    """Route real traffic through Envoy to simulated model servers.

    The same chats run twice: with prefix-aware routing and with random routing. Everything runs on free ports of
    127.0.0.1 and ends by itself; Ctrl-C ends it early.

    With --saturated, two tenants send 1.5 times the load that two servers can answer, at three priorities, once
    with flow control and once without. Only --duration and --seed apply.

    A configuration given by --config finds the model servers with a file-discovery of the path endpoints.yaml.

    Exit code 0: no request failed.
    """
    tried = built_in("prefix-aware") if config is None else _own(config)
    try:
        envoy = find_envoy(os.environ, Path.cwd())
    except EnvoyNotFoundError as error:
        _fail(str(error))
    if saturated is None:
        demo = run_demo(DemoSettings(envoy, duration, rate, servers, seed, tried), sys.stdout)
    else:
        demo = run_saturated(SaturatedSettings(envoy, duration, seed=seed), sys.stdout, saturated)
    sys.exit(asyncio.run(run_until_done_or_interrupted(demo)))


async def run_until_done_or_interrupted(running: Coroutine[None, None, bool]) -> ExitCode:
    """Run a demo; the first SIGINT or SIGTERM stops all child processes and ends it."""
    demo = asyncio.ensure_future(running)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:  # a second signal must not interrupt stopping the children
            interrupted = True
            demo.cancel()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, interrupt)
    try:
        return ExitCode.OK if await demo else ExitCode.FAILED
    except asyncio.CancelledError:
        click.echo("interrupted; all child processes are stopped", err=True)
        return ExitCode.INTERRUPTED
    except (ChildFailed, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return ExitCode.FAILED


def _own(path: str) -> Configuration:
    plan = plan_or_exit(path, as_json=False)
    unfit = why_unfit(plan)
    if unfit is not None:
        _fail(f"{path}: {unfit}")
    return Configuration(Path(path).stem, plan.config.source.text)


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(ExitCode.FAILED)
