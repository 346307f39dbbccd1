"""`{{ cookiecutter.plugin_type }}`: serves small requests first."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import OrderingPolicy, SortKey, WaitingRequest
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the policy."""

    step_bytes: Annotated[
        int, Field(alias="stepBytes", ge=1, description="Sizes are compared in steps of this many bytes.")
    ] = 1024


class {{ cookiecutter.__class }}(OrderingPolicy[{{ cookiecutter.__parameters }}]):
    """Serve the smallest request of a flow first; of equals, in steps of `stepBytes`, the oldest.

    A large request waits while small ones arrive, or until its time to live expires.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """Return the sort key: the smallest goes first."""
        return (waiting.request.size_bytes // self.parameters.step_bytes,)
