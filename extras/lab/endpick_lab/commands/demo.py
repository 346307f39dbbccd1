"""`endpick demo` and `endpick sim-server`: real traffic through Envoy, and one simulated model server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click
import uvloop

from endpick.cli.console import fail, plan_or_exit
from endpick.cli.options import Count, Option, Port, takes
from endpick.diagnostics import ExitCode
from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import ChildFailed
from endpick_lab.demo.runner import Configuration, DemoSettings, built_in, run_demo, why_unfit
from endpick_lab.demo.saturated import SaturatedSettings, run_saturated
from endpick_lab.server import serve
from endpick_lab.settings import ROLES, EngineSettings, KvEventSettings, ServerSettings, Timing


@click.command("demo", context_settings={"show_default": True})
@click.option("--config", help="Try this configuration instead of prefix-aware routing.")
@click.option("--duration", type=click.FloatRange(min=4), default=30.0, help="Seconds of load, both halves together.")
@click.option("--rate", type=click.FloatRange(min=1, max=100), default=20.0, help="Requests per second.")
@click.option("--servers", type=click.IntRange(min=1, max=16), default=4, help="Simulated model servers.")
@click.option("--seed", type=int, default=1, help="Same seed, same chats.")
@click.option("--saturated", type=click.Path(path_type=Path), help="Overload the servers, and draw the effect of flow control here.")
def demo(config: str | None, duration: float, rate: float, servers: int, seed: int, saturated: Path | None) -> None:
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
        fail(f"{error}\nhelp: {error.help}")
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
        fail(f"{path}: {unfit}")
    return Configuration(Path(path).stem, plan.config.source.text)


_ENGINE = EngineSettings()


@dataclass(frozen=True)
class ServerOptions:
    """The options of `endpick sim-server`."""

    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[Port, Option("Port to listen on; 0 for any free port.")] = 8000
    name: Annotated[str, Option("Sent as x-served-by with every response.")] = "sim"
    model: Annotated[str, Option("Name of the base model.")] = "sim-model"
    adapters: Annotated[tuple[str, ...], Option("Offer a LoRA adapter; repeat for more.", "lora", metavar="NAME")] = ()
    max_loras: Annotated[Count, Option("Adapters in one batch, if any are offered.")] = 4
    max_num_seqs: Annotated[Count, Option("Requests in one batch.")] = _ENGINE.max_num_seqs
    max_num_batched_tokens: Annotated[Count, Option("Tokens in one step.")] = _ENGINE.max_num_batched_tokens
    kv_blocks: Annotated[Count, Option("Blocks in the KV cache.")] = _ENGINE.kv_blocks
    block_size: Annotated[Count, Option("Tokens in a KV block.")] = _ENGINE.block_size
    max_model_len: Annotated[Count, Option("Tokens of prompt and answer.")] = _ENGINE.max_model_len
    prefill_ms_per_token: Annotated[float, Option("Time to compute one prompt token.")] = 0.1
    decode_ms: Annotated[float, Option("Time of a decode step with a single request.")] = 10.0
    jitter: Annotated[float, Option("Vary each step by up to this fraction.")] = 0.0
    role: Annotated[
        str | None,
        click.Choice(ROLES),
        Option(
            "Stage of disaggregated serving. A decode server sends prefill and encode requests to the servers named in request headers."
        ),
    ] = None
    kv_events: Annotated[
        str | None, Option("Publish KV events: bind to tcp://*:5557, or connect to an address without a *.", metavar="ADDRESS")
    ] = None
    kv_events_replay: Annotated[str, Option("Address at which past KV events can be requested.", metavar="ADDRESS")] = ""
    seed: Annotated[int, Option("Random seed of answers and jitter.")] = 0


@click.command("sim-server", context_settings={"show_default": True})
@takes(ServerOptions)
def sim_server(options: ServerOptions) -> None:
    """Run one simulated model server.

    It speaks the OpenAI API and reports vLLM's metrics. It queues, batches and caches prefixes with the timing of a vLLM
    instance, and answers random words.
    """
    try:
        engine = EngineSettings(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            kv_blocks=options.kv_blocks,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
            max_loras=options.max_loras if options.adapters else 0,
            timing=Timing(options.prefill_ms_per_token / 1000, options.decode_ms / 1000, jitter=options.jitter),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    publishing = None if options.kv_events is None else KvEventSettings(options.kv_events, options.kv_events_replay)
    settings = ServerSettings(
        options.host, options.port, options.name, options.model, options.adapters, engine, options.seed, options.role or "", publishing
    )
    sys.exit(uvloop.run(_serve_until_stopped(settings)))


async def _serve_until_stopped(settings: ServerSettings) -> ExitCode:
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    try:
        server = await serve(settings)
    except ImportError as error:
        click.echo(f"error: --kv-events needs {error.name}, which is not installed", err=True)
        click.echo("help: pip install endpick-kv-events", err=True)
        return ExitCode.FAILED
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        click.echo(f"error: cannot listen on {settings.host}:{settings.port}: {reason}", err=True)
        click.echo("help: choose another --host or --port; --port 0 takes a free one", err=True)
        return ExitCode.FAILED
    click.echo(f"{settings.name} serves {settings.model} on http://{server.address}")
    await stop.wait()
    await server.close()
    return ExitCode.OK
