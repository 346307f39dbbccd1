"""`{{ cookiecutter.plugin_type }}`: lets low priorities be evicted, unless they stream."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import DispatchedRequest, EvictionFilter
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Which priorities are low."""

    below: Annotated[int, Field(description="Requests of lower priority than this may be evicted.")] = 0


class {{ cookiecutter.__class }}(EvictionFilter[{{ cookiecutter.__parameters }}]):
    """Let requests of a priority below `below` be evicted; but no stream, of which a client may have read a part."""

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Say whether a request may be evicted; asked once, when it was sent to a model server."""
        return dispatched.request.priority < self.parameters.below and not dispatched.request.streaming
