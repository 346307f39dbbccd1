"""`endpick sim-server`: runs one simulated model server in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click
import uvloop

from endpick.diagnostics import ExitCode
from endpick.simulation.server import serve
from endpick.simulation.settings import ROLES, EngineSettings, KvEventSettings, ServerSettings, Timing

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
def command(
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
