"""What the demo prints: the comparison and the live table."""

from __future__ import annotations

import io
import math

import pytest

from endpick_lab.demo.load import ChatOutcome
from endpick_lab.demo.runner import EndpointStats, LiveTable, render_report, summarize

BUSY = EndpointStats(requests=12, running=3, waiting=2, kv_cache_usage=0.5, prefix_hit_ratio=0.875)


def outcomes(ttft_ms: list[float], cached: int, server: str = "sim-0") -> list[ChatOutcome]:
    return [ChatOutcome("chat", server, ms / 1000, 1.0, prompt_tokens=100, cached_tokens=cached) for ms in ttft_ms]


def test_a_summary_counts_answers_errors_and_cached_tokens():
    failed = [ChatOutcome("chat", None, None, 1.0, error="503 no"), ChatOutcome("chat", "sim-1", 0.4, 1.0, error="cut off")]
    summary = summarize([*outcomes([100, 200, 300], cached=80), *failed, failed[0]])
    assert (summary.requests, summary.failed) == (6, 3)
    assert summary.errors == (("503 no", 2), ("cut off", 1))
    assert summary.ttft_seconds[0] == pytest.approx(0.25)
    assert summary.prefix_hit_ratio == pytest.approx(0.8)
    assert summary.served == (("sim-0", 3),)


def test_a_load_without_answers_has_no_percentiles():
    summary = summarize([])
    assert all(math.isnan(seconds) for seconds in summary.ttft_seconds)
    assert summary.prefix_hit_ratio == 0.0


def test_the_report_gives_ratios_first_then_figures():
    ours, theirs = summarize(outcomes([50] * 9 + [400], cached=90)), summarize(outcomes([200] * 10, cached=30))
    assert render_report(("prefix-aware", ours), ("random-picker", theirs)) == (
        "prefix-aware against random-picker, same load:\n"
        "  time to first token p50  4.0 x shorter\n"
        "  time to first token p90  2.4 x shorter\n"
        "  time to first token p99  1.8 x longer\n"
        "  prompt tokens from cache  3.0 x as many\n"
        "\n"
        "               requests  failed   TTFT p50   TTFT p90   TTFT p99  prefix hits   served by\n"
        "prefix-aware         10       0      50 ms      85 ms     369 ms         90 %   sim-0:10\n"
        "random-picker        10       0     200 ms     200 ms     200 ms         30 %   sim-0:10\n"
    )


def test_the_report_names_what_failed():
    failed = summarize([ChatOutcome("chat", None, None, 1.0, error="503 no endpoint")] * 3)
    text = render_report(("prefix-aware", failed), ("random-picker", summarize(outcomes([1], cached=0))))
    assert "time to first token p50  not comparable: no answers" in text
    assert "failed requests:\n  3 x under prefix-aware: 503 no endpoint\n" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_table_is_redrawn_over_itself():
    stream = Terminal()
    table = LiveTable(stream)
    table.show("prefix-aware", 1.0, {"sim-0": BUSY, "sim-1": None})
    first = stream.getvalue()
    table.show("prefix-aware", 2.0, {"sim-0": BUSY, "sim-1": None})
    assert first.replace("\x1b[2K", "") == (
        "prefix-aware  1 s\n"
        "  endpoint  requests  running  queue  KV use  prefix hits\n"
        "  sim-0           12        3      2    50 %         88 %\n"
        "  sim-1     does not answer\n"
    )
    assert stream.getvalue()[len(first) :].startswith("\x1b[4A\x1b[2Kprefix-aware  2 s\n")


def test_live_table_prints_plain_lines_without_a_terminal():
    stream = io.StringIO()
    table = LiveTable(stream, plain_interval_seconds=5.0)
    for elapsed in range(12):
        table.show("random-picker", float(elapsed), {"sim-0": BUSY, "sim-1": None})
    line = "sim-0 12 requests, queue 2, KV 50 %, hits 88 %; sim-1 down"
    assert stream.getvalue() == f"random-picker 5 s: {line}\nrandom-picker 10 s: {line}\n"
