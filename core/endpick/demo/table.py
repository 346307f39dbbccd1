"""The live table of the demo: redrawn in place on a terminal, a line now and then anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from endpick.demo.stats import EndpointStats

Rows = Mapping[str, EndpointStats | None]
"""State by endpoint name; None for an endpoint that does not answer."""

_CLEAR_LINE = "\x1b[2K"


class LiveTable:
    """Shows successive states of the endpoints on a stream."""

    def __init__(self, stream: TextIO, *, plain_interval_seconds: float = 5.0) -> None:
        self._stream = stream
        self._in_place = stream.isatty()
        self._plain_interval_seconds = plain_interval_seconds
        self._drawn_lines = 0
        self._next_plain_seconds = plain_interval_seconds

    def show(self, title: str, elapsed_seconds: float, rows: Rows) -> None:
        """Show the state `elapsed_seconds` into the load."""
        if self._in_place:
            self._redraw(table_lines(title, elapsed_seconds, rows))
        elif elapsed_seconds >= self._next_plain_seconds:
            self._next_plain_seconds = elapsed_seconds + self._plain_interval_seconds
            self._stream.write(plain_line(title, elapsed_seconds, rows) + "\n")
            self._stream.flush()

    def _redraw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn_lines}A" if self._drawn_lines else ""
        self._stream.write(up + "".join(f"{_CLEAR_LINE}{line}\n" for line in lines))
        self._stream.flush()
        self._drawn_lines = len(lines)


def table_lines(title: str, elapsed_seconds: float, rows: Rows) -> list[str]:
    """A title, a header, and a line per endpoint."""
    width = max((len(name) for name in rows), default=0)
    header = f"  {'endpoint':{max(width, 8)}}{'requests':>10}{'running':>9}{'queue':>7}{'KV use':>8}{'prefix hits':>13}"
    lines = [f"{title}  {elapsed_seconds:.0f} s", header]
    for name, stats in rows.items():
        start = f"  {name:{max(width, 8)}}"
        if stats is None:
            lines.append(f"{start}  does not answer")
            continue
        kv, hits = f"{stats.kv_cache_usage * 100:.0f} %", f"{stats.prefix_hit_ratio * 100:.0f} %"
        lines.append(f"{start}{stats.requests:>10}{stats.running:>9}{stats.waiting:>7}{kv:>8}{hits:>13}")
    return lines


def plain_line(title: str, elapsed_seconds: float, rows: Rows) -> str:
    """The same in one line, for logs."""
    parts = [
        f"{name} down"
        if stats is None
        else f"{name} {stats.requests} requests, queue {stats.waiting}, KV {stats.kv_cache_usage * 100:.0f} %,"
        f" hits {stats.prefix_hit_ratio * 100:.0f} %"
        for name, stats in rows.items()
    ]
    return f"{title} {elapsed_seconds:.0f} s: " + "; ".join(parts)
