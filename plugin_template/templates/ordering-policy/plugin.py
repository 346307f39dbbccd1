"""`{{ cookiecutter.plugin_type }}`: serves small requests first."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import OrderingPolicy, SortKey, WaitingRequest
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Granularity of sizes."""

    step_bytes: Annotated[
        int, Field(alias="stepBytes", ge=1, description="Sizes are compared in steps of so many bytes.")
    ] = 1024


class {{ cookiecutter.__class }}(OrderingPolicy[{{ cookiecutter.__parameters }}]):
    """Serves the smallest request of a flow first, in steps of `stepBytes`; equal sizes in order of arrival.

    A large request waits for as long as small ones come, or until its time to live is over.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """Sort key of a request: the smallest is served first."""
        return (waiting.request.size_bytes // self.parameters.step_bytes,)
