"""Which series of a metrics page is meant: `name` or `name{label=value, …}`, as llm-d writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?:\"([^\"\\]*)\"|'([^'\\]*)'|((?!~)[^\s,{}=\"']+))\s*"
_SPEC = re.compile(rf"\s*({_NAME})\s*(?:\{{\s*((?:{_LABEL}(?:,\s*{_LABEL})*,?\s*)?)\}}\s*)?")
_LABELS = re.compile(_LABEL)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric and the labels its series must have; further labels do not matter."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = ",".join(f'{label}="{value}"' for label, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


def parse_spec(text: str) -> MetricSpec | None:
    """Read a spec; None for empty text, which means that the engine has no such metric.

    Quotes around values are optional and `=` is the only comparison.

    Raises:
        ValueError: the text is no spec.
    """
    if not text.strip():
        return None
    match = _SPEC.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' names no metric; write `name` or `name{{label=value}}`")
    labels = _LABELS.findall(match[2] or "")
    return MetricSpec(match[1], {label: double or single or bare for label, double, single, bare in labels})


def _checked(text: str) -> str:
    parse_spec(text)
    return text


SpecText: TypeAlias = Annotated[str, AfterValidator(_checked), Field(examples=["vllm:num_requests_waiting", "name{label=value}"])]
"""A parameter that holds a spec; empty for none."""
