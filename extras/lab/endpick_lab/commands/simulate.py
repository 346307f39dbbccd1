"""`endpick simulate`: tries configurations on a trace, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from endpick.api.plugin import parse_duration
from endpick.cli.console import FORMAT_OPTION, fail, json_text, plan_or_exit, print_diagnostics
from endpick.cli.options import Count, Option, Value, takes
from endpick.diagnostics import ExitCode
from endpick.diagnostics.tables import table
from endpick.engine.instances import StartRefused
from endpick_lab.compare import ORACLE, Progress, Scenario, compare, path_of, with_regret
from endpick_lab.decisions import DecisionsError, holds_decisions, read_decisions
from endpick_lab.figures import Figures, SimulateOutput
from endpick_lab.fleet import FleetSettings
from endpick_lab.report import html_report
from endpick_lab.settings import PROFILES
from endpick_lab.trace import TraceError


def _seconds(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError("it must be longer than 0")
    return seconds


def _sync(text: str) -> float | None:
    return None if text in ("0", "0s", "0ms") else _seconds(text)


_PERIOD = Value("duration", _seconds)
TRACE_OPTION = click.option(
    "--trace",
    required=True,
    type=click.Path(path_type=Path),
    help="Mooncake's JSON lines, Azure's CSV, recorded decisions, or a YAML workload.",
)


@dataclass(frozen=True)
class ScenarioOptions:
    """The options that `simulate` and `tune` share."""

    trace: Path = Path()  # from `TRACE_OPTION`, which has no default
    servers: Annotated[int, click.IntRange(1, 1000), Option("Simulated model servers.")] = 8
    kv_blocks: Annotated[Count, Option("KV cache of each, in blocks of the trace (Mooncake: 512 tokens).")] = 4000
    profile: Annotated[str, click.Choice(list(PROFILES)), Option("Speed of the servers.")] = "a100-8b"
    rate_scale: Annotated[float, click.FloatRange(min=0, min_open=True), Option("Requests come so many times as fast.")] = 1.0
    until: Annotated[float | None, _PERIOD, Option("Leave out requests that arrive later, such as 600s.", metavar="DURATION")] = None
    seed: Annotated[int, Option("The same seed gives the same output.")] = 1
    pickers: Annotated[int, click.IntRange(1, 100), Option("Pickers, each with a random share of the requests.")] = 1
    sync: Annotated[
        float | None,
        Value("duration", _sync),
        Option("How often they exchange what they learn; 0: never.", metavar="DURATION", default="50ms"),
    ] = 0.05
    loss: Annotated[float, click.FloatRange(0, 1), Option("Share of their messages that is lost.")] = 0.0

    def scenario(self, slo_ttft: float | None = None, slo_tpot: float | None = None) -> Scenario:
        """Return the scenario of these options; objectives are in seconds."""
        return Scenario(
            self.trace,
            self.servers,
            self.kv_blocks,
            self.rate_scale,
            float("inf") if self.until is None else self.until,
            self.seed,
            PROFILES[self.profile],
            slo_ttft_seconds=slo_ttft,
            slo_tpot_seconds=slo_tpot,
            fleet=FleetSettings(self.pickers, self.sync, self.loss),
        )


@dataclass(frozen=True)
class SimulateOptions(ScenarioOptions):
    """The options of `simulate` alone."""

    slo_ttft: Annotated[float | None, _PERIOD, Option("Objective for the time to first token.", metavar="DURATION")] = None
    slo_tpot: Annotated[float | None, _PERIOD, Option("Objective for the time per output token.", metavar="DURATION")] = None
    html: Annotated[Path | None, Option("Write a report with plots here; needs endpick[simulate].")] = None
    record: Annotated[Path | None, Option("Write the decisions of the first CONFIG here, for `endpick replay`.")] = None


OUTPUTS = {"simulate": SimulateOutput}


@click.command("simulate", context_settings={"show_default": True})
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG...")
@TRACE_OPTION
@takes(SimulateOptions)
@FORMAT_OPTION
def command(configs: tuple[str, ...], options: SimulateOptions, output: Literal["text", "json"]) -> None:
    """Try configurations on a trace, in virtual time, and compare how long requests take.

    CONFIG is a file; `default` is what endpick does without one, `llm-d` what llm-d does, and `oracle` a policy that knows the state
    of every server. The plugins are the real ones, the model servers are simulated: continuous batching, chunked prefill, a prefix
    cache and preemption.

    Requests of a trace with equal timestamps are spread up to the next one. A configuration that falls behind the load is reported as
    saturated, without times.
    """
    for config in configs:
        if config != ORACLE:
            plan_or_exit(path_of(config), as_json=output == "json")
    html, record = options.html, options.record
    if html is not None and not html.absolute().parent.is_dir():
        fail(f"{html} cannot be written: there is no such directory")
    trace, scenario = options.trace, options.scenario(options.slo_ttft, options.slo_tpot)
    with explained_failures(trace):
        arrivals = len(scenario.load()[0])
        if holds_decisions(trace):
            print_diagnostics(read_decisions(trace).warnings, [])
        if record is not None:
            _write(record, str)
        with progress_bars(configs, arrivals) as progress:
            compared = with_regret(compare(configs, scenario, progress, record))
    figures = [result.figures for result in compared]
    tables = _tables(figures)
    title = f"{trace.name}: {arrivals} requests, {scenario.servers} servers of {scenario.kv_blocks} blocks, seed {scenario.seed}"
    if html is not None:
        _write(html, lambda: html_report(title, tables, compared))
    if output == "json":
        click.echo(json_text(SimulateOutput(version=1, trace=trace.name, seed=scenario.seed, results=figures)), nl=False)
    else:
        tables_text = "\n".join(table(headers, rows) for headers, rows in tables)
        click.echo(f"{title}; times in seconds\n\n{tables_text}{_remarks(figures)}", nl=False)


@contextmanager
def explained_failures(trace: Path) -> Iterator[None]:
    """Report the errors that a simulation can raise, and end the process with their exit status."""
    try:
        yield
    except DecisionsError as refusal:
        print_diagnostics([refusal.diagnostic], [])
        sys.exit(refusal.diagnostic.code.exit_code)
    except TraceError as mistake:
        raise click.UsageError(f"{trace} cannot be used: {mistake}") from mistake
    except StartRefused as refusal:
        click.echo(f"error: {refusal}", err=True)
        sys.exit(ExitCode.PLUGIN_UNUSABLE)
    except OSError as error:
        fail(f"{trace} cannot be read: {error.strerror or error}")
    except KeyboardInterrupt:
        click.echo("interrupted: nothing is reported", err=True)
        sys.exit(ExitCode.INTERRUPTED)


@contextmanager
def progress_bars(names: Sequence[str], total: int) -> Iterator[Progress]:
    """Show a bar for each name on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks = [bars.add_task(name, total=total) for name in names]
        yield lambda number, done: bars.update(tasks[number], completed=done)


def _tables(figures: Sequence[Figures]) -> list[tuple[list[str], list[list[str]]]]:
    times = ["CONFIG", "TTFT MEAN", "P50", "P90", "P99", "TPOT MEAN", "E2E MEAN", "P50", "P90"]
    others = ["CONFIG", "REQ/S", "TOKENS/S", "HITS", "IMBALANCE", "PREEMPTED", "FAILED", "IN SLO", "REGRET", "SYNC B/REQ"]
    return [(times, [_times(row) for row in figures]), _without_empty(others, [_others(row) for row in figures])]


def _times(figures: Figures) -> list[str]:
    ttft, tpot, e2e = figures["ttft_seconds"], figures["tpot_seconds"], figures["e2e_seconds"]
    if ttft is None or e2e is None:
        return [figures["config"], "saturated" if figures["saturated"] else "none served", *[""] * 7]
    first = [f"{seconds:.3f}" for seconds in (ttft["mean"], ttft["p50"], ttft["p90"], ttft["p99"])]
    whole = [f"{seconds:.2f}" for seconds in (e2e["mean"], e2e["p50"], e2e["p90"])]
    return [figures["config"], *first, "" if tpot is None else f"{tpot['mean']:.4f}", *whole]


def _others(figures: Figures) -> list[str]:
    attained, regret = figures["slo_attainment"], figures["regret"]
    return [
        figures["config"],
        f"{figures['requests_per_second']:.2f}",
        f"{figures['output_tokens_per_second']:.0f}",
        f"{figures['hit_rate']:.1%}",
        f"{figures['imbalance']:.2f}",
        str(figures["preemptions"]),
        str(figures["failed"]),
        "" if attained is None else f"{attained:.1%}",
        "" if regret is None else f"{regret:+.1%}",
        f"{figures['bytes_exchanged'] / figures['requests']:.0f}" if figures["bytes_exchanged"] else "",
    ]


def _without_empty(headers: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    shown = [number for number in range(len(headers)) if any(row[number] for row in rows)]
    return [headers[number] for number in shown], [[row[number] for number in shown] for row in rows]


def _remarks(figures: Sequence[Figures]) -> str:
    lines = [f"{row['config']}: {count} requests {problem}\n" for row in figures for problem, count in row["problems"].items()]
    lines += [f"{row['config']}: not simulated: {', '.join(row['not_simulated'])}\n" for row in figures if row["not_simulated"]]
    return "\n" + "".join(lines) if lines else ""


def _write(file: Path, report: Callable[[], str]) -> None:
    try:
        file.write_text(report(), encoding="utf-8")
    except ImportError:
        fail("plots need matplotlib\nhelp: pip install 'endpick[simulate]'")
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror or error}")
