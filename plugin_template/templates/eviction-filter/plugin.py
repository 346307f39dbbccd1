"""`{{ cookiecutter.plugin_type }}`: allows eviction of low priorities, except streams."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionFilter
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the filter."""

    below: Annotated[int, Field(description="Requests with a lower priority may be evicted.")] = 0


class {{ cookiecutter.__class }}(EvictionFilter[{{ cookiecutter.__parameters }}]):
    """Allow eviction of requests with a priority below `below`, except streams, which may be partly read."""

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Return True if the request may be evicted; called once, after its dispatch."""
        return dispatched.request.priority < self.parameters.below and not dispatched.request.streaming
