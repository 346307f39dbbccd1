"""`{{ cookiecutter.__collector_type }}`: makes a column of the measurements."""

from __future__ import annotations

import math

from endpick.api import ColumnWriter, DataCollector, Parameters, Unavailable

from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}
from {{ cookiecutter.__package }}.source import {{ cookiecutter.__payload }}


class {{ cookiecutter.__collector }}(DataCollector[Parameters, {{ cookiecutter.__payload }}]):
    """Keeps the time it takes to connect to each endpoint. A time that no clock could have measured is dropped."""

    produces = ({{ cookiecutter.__key }},)
    default_source = "{{ cookiecutter.plugin_type }}"

    def collect(self, payload: {{ cookiecutter.__payload }}, writer: ColumnWriter) -> None:
        """Write what the payload says."""
        if not (math.isfinite(payload.connect_seconds) and payload.connect_seconds >= 0):
            raise Unavailable(f"{payload.connect_seconds} is no number of seconds")
        writer.set({{ cookiecutter.__key }}, payload.connect_seconds)
