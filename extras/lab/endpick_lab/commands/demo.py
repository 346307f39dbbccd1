"""`endpick demo` and `endpick sim-server`: real traffic through Envoy, and one simulated model server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import NoReturn

import click
import uvloop

from endpick.cli.console import plan_or_exit
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
        _fail(f"{error}\nhelp: {error.help}")
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


_ENGINE = EngineSettings()
_AT_LEAST_ONE = click.IntRange(min=1)


@click.command("sim-server", context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0 for any free port.")
@click.option("--name", default="sim", help="Sent as x-served-by with every response.")
@click.option("--model", default="sim-model", help="Name of the base model.")
@click.option("--lora", "adapters", multiple=True, metavar="NAME", help="Offer a LoRA adapter; repeat for more.")
@click.option("--max-loras", type=_AT_LEAST_ONE, default=4, help="Adapters in one batch, if any are offered.")
@click.option("--max-num-seqs", type=_AT_LEAST_ONE, default=_ENGINE.max_num_seqs, help="Requests in one batch.")
@click.option("--max-num-batched-tokens", type=_AT_LEAST_ONE, default=_ENGINE.max_num_batched_tokens, help="Tokens in one step.")
@click.option("--kv-blocks", type=_AT_LEAST_ONE, default=_ENGINE.kv_blocks, help="Blocks in the KV cache.")
@click.option("--block-size", type=_AT_LEAST_ONE, default=_ENGINE.block_size, help="Tokens in a KV block.")
@click.option("--max-model-len", type=_AT_LEAST_ONE, default=_ENGINE.max_model_len, help="Tokens of prompt and answer.")
@click.option("--prefill-ms-per-token", type=float, default=0.1, help="Time to compute one prompt token.")
@click.option("--decode-ms", type=float, default=10.0, help="Time of a decode step with a single request.")
@click.option("--jitter", type=float, default=0.0, help="Vary each step by up to this fraction.")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Stage of disaggregated serving. A decode server sends prefill and encode requests to the servers named in request headers.",
)
@click.option("--kv-events", metavar="ADDRESS", help="Publish KV events: bind to tcp://*:5557, or connect to an address without a *.")
@click.option("--kv-events-replay", metavar="ADDRESS", default="", help="Address at which past KV events can be requested.")
@click.option("--seed", type=int, default=0, help="Random seed of answers and jitter.")
def sim_server(
    host: str,
    port: int,
    name: str,
    model: str,
    adapters: tuple[str, ...],
    max_loras: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    kv_blocks: int,
    block_size: int,
    max_model_len: int,
    prefill_ms_per_token: float,
    decode_ms: float,
    jitter: float,
    role: str | None,
    kv_events: str | None,
    kv_events_replay: str,
    seed: int,
) -> None:
    """Run one simulated model server.

    It speaks the OpenAI API and reports vLLM's metrics. It queues, batches and caches prefixes with the timing of a vLLM
    instance, and answers random words.
    """
    try:
        timing = Timing(prefill_seconds_per_token=prefill_ms_per_token / 1000, decode_seconds=decode_ms / 1000, jitter=jitter)
        engine = EngineSettings(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_blocks=kv_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_loras=max_loras if adapters else 0,
            timing=timing,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    publishing = None if kv_events is None else KvEventSettings(kv_events, kv_events_replay)
    settings = ServerSettings(host, port, name, model, adapters, engine, seed, role or "", publishing)
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
