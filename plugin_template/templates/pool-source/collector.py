"""`{{ cookiecutter.__collector_type }}`: stores the number for other plugins."""

from __future__ import annotations

import math

from endpick.api import ColumnWriter, DataCollector, Parameters, Unavailable

from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}
from {{ cookiecutter.__package }}.source import {{ cookiecutter.__payload }}


class {{ cookiecutter.__collector }}(DataCollector[Parameters, {{ cookiecutter.__payload }}]):
    """Stores the number, which plugins read with `endpoints.pool`. Invalid numbers are dropped."""

    produces = ({{ cookiecutter.__key }},)
    default_source = "{{ cookiecutter.plugin_type }}"

    def collect(self, payload: {{ cookiecutter.__payload }}, writer: ColumnWriter) -> None:
        """Write the value of one payload."""
        if not (math.isfinite(payload.value) and payload.value >= 0):
            raise Unavailable(f"{payload.value} is not a valid number")
        writer.set_pool({{ cookiecutter.__key }}, payload.value)
