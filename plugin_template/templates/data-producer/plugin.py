"""`{{ cookiecutter.plugin_type }}`: estimates the tokens of each prompt."""

from __future__ import annotations

import math
from typing import Annotated

from endpick.api import CycleState, DataProducer, Endpoints, InferenceRequest, Parameters
from pydantic import Field

from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the producer."""

    bytes_per_token: Annotated[
        float, Field(alias="bytesPerToken", gt=0, description="Average number of UTF-8 bytes per token.")
    ] = 4.0


class {{ cookiecutter.__class }}(DataProducer[{{ cookiecutter.__parameters }}]):
    """Estimate the tokens of a request: bytes of the prompt / bytesPerToken, rounded up."""

    produces = ({{ cookiecutter.__key }},)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Estimate once per request; other plugins read it with `state.get({{ cookiecutter.__key }})`."""
        size = sum(len(text) for text in request.prompt.texts)
        state.put({{ cookiecutter.__key }}, math.ceil(size / self.parameters.bytes_per_token))
