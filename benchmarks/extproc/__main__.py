"""Measure ext_proc alone, both transports in one run: python -m benchmarks.extproc."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.extproc.load import Load, resident_mebibytes, run
from benchmarks.extproc.messages import Conversation, conversations
from benchmarks.extproc.served import SESSIONS, Served, contestants, served
from benchmarks.model_server import model_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extproc", description=__doc__)
    parser.add_argument(
        "--session",
        choices=SESSIONS,
        default="trivial",
        help="echo: transport only; trivial: one endpoint; plan: endpick serve",
    )
    parser.add_argument("--config", type=Path, help="for plan: a configuration that reads endpoints.yaml; default: llm-d's default profile")
    parser.add_argument("--endpoints", type=int, default=16, help="for plan: how many")
    parser.add_argument(
        "--load", choices=("phased", "h2load"), default="phased", help="phased: as Envoy talks; h2load: all messages at once"
    )
    parser.add_argument("--transports", default=",".join(contestants()), help="which, in this order; ratios are to the last (%(default)s)")
    parser.add_argument("--only", default="", help="conversations whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows per server and conversation, round robin")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8, help="per client")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    options = parser.parse_args()
    if options.load == "h2load" and shutil.which("h2load") is None:
        parser.error("h2load is not installed: apt-get install nghttp2-client")
    chosen = [conversation for conversation in conversations() if options.only in conversation.name]
    with ExitStack() as stack:
        port = stack.enter_context(model_server(options.load_core))
        servers = [
            stack.enter_context(served(transport, options.session, options.server_core, port, options.endpoints, options.config))
            for transport in options.transports.split(",")
        ]
        measure(servers, chosen, options)
        report(servers, chosen)
    return int(any(sample.failed for server in servers for samples in server.samples.values() for sample in samples))


def measure(servers: Sequence[Served], chosen: Sequence[Conversation], options: argparse.Namespace) -> None:
    """Short windows in turn, so that whatever else the machine does hits every server alike."""
    load = Load(options.seconds, options.clients, options.streams, options.load_core)
    for conversation in chosen:
        for _ in range(options.rounds):
            for server in servers:
                sample = run(options.load, server.port, server.pid, conversation, options.session, load)
                server.samples.setdefault(conversation.name, []).append(sample)


def report(servers: Sequence[Served], chosen: Sequence[Conversation]) -> None:
    reference = servers[-1]
    print("| conversation | transport | x " + reference.name + " | CPU µs/request | req/s | p50 ms | p99 ms | failed | RSS MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for conversation in chosen:
        for server in servers:
            samples = server.samples[conversation.name]
            latencies = sorted(latency for sample in samples for latency in sample.latencies_ms) or [0.0]
            ratio = statistics.median(
                other.cpu_microseconds / sample.cpu_microseconds
                for sample, other in zip(samples, reference.samples[conversation.name], strict=True)
            )
            rate = statistics.median(sample.requests / sample.seconds for sample in samples)
            failed = sum(sample.failed for sample in samples)
            print(
                f"| {conversation.name} | {server.name} | {ratio:.1f} | {server.cpu(conversation.name):.1f} | {rate:.0f} "
                f"| {quantile(latencies, 0.5):.2f} | {quantile(latencies, 0.99):.2f} | {failed} | {resident_mebibytes(server.pid):.0f} |"
            )
    report_chunks(servers, chosen)


def report_chunks(servers: Sequence[Served], chosen: Sequence[Conversation]) -> None:
    """What a streamed chunk costs: the conversation with chunks less the one without, divided."""
    plain = chosen[0]
    for conversation in chosen:
        if conversation.chunks and plain is not conversation:
            for server in servers:
                cost = (server.cpu(conversation.name) - server.cpu(plain.name)) / conversation.chunks
                print(f"{server.name}: {cost:.1f} µs CPU per streamed chunk ({conversation.name} less {plain.name})")


def quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


if __name__ == "__main__":
    sys.exit(main())
