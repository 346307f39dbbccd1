"""Parameters of the pickers, outside the compiled `pickers`: pydantic models cannot be compiled."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from endpick_builtin.camel_parameters import CamelParameters


class PickerParameters(CamelParameters):
    """Sets the number of endpoints to pick."""

    max_num_of_endpoints: Annotated[
        int, Field(description="Endpoints to pick at most; all but the first are fallbacks. 0 and less mean 1.")
    ] = 1

    def count(self, candidates: int) -> int:
        return min(max(self.max_num_of_endpoints, 1), candidates)
