"""`{{ cookiecutter.plugin_type }}`: reads a number for the whole pool from a file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from endpick.api import Duration, Parameters, PluginContext, PollingPoolSource, Unavailable
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the source."""

    path: Annotated[str, Field(min_length=1, description="File with the number.")] = "number.txt"
    interval: Annotated[Duration, Field(gt=0, description="Time between two reads.")] = 10.0


@dataclass(frozen=True, slots=True)
class {{ cookiecutter.__payload }}:
    """The content of the file."""

    value: float


class {{ cookiecutter.__class }}(PollingPoolSource[{{ cookiecutter.__parameters }}, {{ cookiecutter.__payload }}]):
    """Reads the file at an interval. While it cannot be read, plugins see the last number and its age."""

    default_collectors = ("{{ cookiecutter.__collector_type }}",)

    def __init__(self, name: str, parameters: {{ cookiecutter.__parameters }}, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval

    async def poll_pool(self) -> {{ cookiecutter.__payload }}:
        """Read the file once; endpick waits up to `timeout_seconds`, and retries soon after a failure."""
        path = self.parameters.path
        try:
            return {{ cookiecutter.__payload }}(float(await asyncio.to_thread(Path(path).read_text)))
        except (OSError, ValueError) as problem:
            raise Unavailable(f"cannot read a number from {path}: {problem}") from problem
