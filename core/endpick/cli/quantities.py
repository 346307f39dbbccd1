"""Click types for durations and sizes."""

from __future__ import annotations

import re

import click


class Duration(click.ParamType[float]):
    """A duration such as `50ms` or `1m30s`, converted to seconds."""

    name = "duration"

    def __init__(self, *, positive: bool = False) -> None:
        """`positive` refuses zero."""
        self._positive = positive

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail with exit code 2."""
        from endpick.api.duration import parse_duration

        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except ValueError:
            self.fail(f"'{value}' is not a duration; write for example 50ms or 1m30s", param, ctx)
        if seconds < 0 or (self._positive and not seconds):
            self.fail(f"'{value}' is too short; write for example 50ms or 1m30s", param, ctx)
        return seconds


_BYTES = re.compile(r"(?<=[0-9kKMGTPEi])B$")


def _without_unit(text: str) -> str:
    """`10MiB` as a Kubernetes quantity; K means 1000, like k."""
    plain = _BYTES.sub("", text.strip())
    return f"{plain[:-1]}k" if plain.endswith("K") else plain


class Quantity(click.ParamType[int]):
    """A size such as `16Mi`, `1k`, `16MiB` or `25MB`, converted to a whole number of at least 1."""

    name = "quantity"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse, or fail with exit code 2."""
        from endpick.config.model import parse_quantity

        if isinstance(value, int):
            return value
        try:
            quantity = parse_quantity(_without_unit(str(value)))
        except ValueError:
            self.fail(f"'{value}' is not a quantity; write for example 16Mi or 500k", param, ctx)
        if quantity < 1:
            self.fail(f"'{value}' is too little; write for example 16Mi or 500k", param, ctx)
        return quantity


DURATION = Duration()
POSITIVE_DURATION = Duration(positive=True)
QUANTITY = Quantity()
