"""`{{ cookiecutter.plugin_type }}`: allows eviction of low priorities that do not stream."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionFilter
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """The priority threshold."""

    below: Annotated[int, Field(description="Requests of lower priority than this may be evicted.")] = 0


class {{ cookiecutter.__class }}(EvictionFilter[{{ cookiecutter.__parameters }}]):
    """Allows eviction of requests with a priority under `below`, except streams: clients may have read a part."""

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Decide if a request may be evicted. Called once, when it is sent to a model server."""
        return dispatched.request.priority < self.parameters.below and not dispatched.request.streaming
