"""`{{ cookiecutter.__collector_type }}`: stores the measurements in a column."""

from __future__ import annotations

import math

from endpick.api import ColumnWriter, DataCollector, Parameters, Unavailable

from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}
from {{ cookiecutter.__package }}.source import {{ cookiecutter.__payload }}


class {{ cookiecutter.__collector }}(DataCollector[Parameters, {{ cookiecutter.__payload }}]):
    """Stores the time to connect to each endpoint. Invalid times are dropped."""

    produces = ({{ cookiecutter.__key }},)
    default_source = "{{ cookiecutter.plugin_type }}"

    def collect(self, payload: {{ cookiecutter.__payload }}, writer: ColumnWriter) -> None:
        """Write the value of one payload."""
        if not (math.isfinite(payload.connect_seconds) and payload.connect_seconds >= 0):
            raise Unavailable(f"{payload.connect_seconds} is not a valid duration")
        writer.set({{ cookiecutter.__key }}, payload.connect_seconds)
