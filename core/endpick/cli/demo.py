"""`endpick demo`: watch prefix-aware routing beat random, on real traffic."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from endpick.cli.console import plan_or_exit
from endpick.demo.envoy import EnvoyNotFoundError, find_envoy
from endpick.demo.processes import ChildFailed
from endpick.demo.runner import DemoSettings, run_demo
from endpick.demo.trial import Configuration, built_in, why_unfit
from endpick.diagnostics import ExitCode


@click.command("demo", context_settings={"show_default": True})
@click.option("--config", help="Try this configuration instead of prefix-aware routing.")
@click.option("--duration", type=click.FloatRange(min=4), default=30.0, help="Seconds of load, both halves together.")
@click.option("--rate", type=click.FloatRange(min=1, max=100), default=20.0, help="Requests per second.")
@click.option("--servers", type=click.IntRange(min=1, max=16), default=4, help="Simulated model servers.")
@click.option("--seed", type=int, default=1, help="Same seed, same chats.")
def command(config: str | None, duration: float, rate: float, servers: int, seed: int) -> None:
    """Route real traffic through Envoy to simulated model servers.

    The same chats run twice: once sent where their prefix is cached, once sent anywhere. Everything runs on this
    machine, on ports of 127.0.0.1 that the system chooses, and ends by itself; Ctrl-C ends it early.

    A configuration of your own finds the model servers with a file-discovery whose path is endpoints.yaml.

    Exit code 0 means that no request failed.
    """
    tried = built_in("prefix-aware") if config is None else _own(config)
    try:
        settings = DemoSettings(find_envoy(os.environ, Path.cwd()), duration, rate, servers, seed, tried)
    except EnvoyNotFoundError as error:
        _fail(str(error))
    sys.exit(asyncio.run(run_until_done_or_interrupted(settings)))


async def run_until_done_or_interrupted(settings: DemoSettings) -> ExitCode:
    """Run the demo on standard output; a first SIGINT or SIGTERM stops all children and ends it."""
    demo = asyncio.ensure_future(run_demo(settings, sys.stdout))
    interrupted = False

    def interrupt() -> None:
        """Only the first signal counts: a second one must not cut short the stopping of the children."""
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            demo.cancel()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, interrupt)
    try:
        return ExitCode.OK if await demo else ExitCode.FAILED
    except asyncio.CancelledError:
        click.echo("interrupted; everything that was started has been stopped", err=True)
        return ExitCode.INTERRUPTED
    except (ChildFailed, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return ExitCode.FAILED


def _own(path: str) -> Configuration:
    """The visitor's configuration; what is wrong with it shows before anything is started."""
    plan = plan_or_exit(path, as_json=False)
    unfit = why_unfit(plan)
    if unfit is not None:
        _fail(f"{path}: {unfit}")
    return Configuration(Path(path).stem, plan.config.source.text)


def _fail(message: str) -> NoReturn:
    click.echo(f"error: {message}", err=True)
    sys.exit(ExitCode.FAILED)
