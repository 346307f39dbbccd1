"""The data key of the measurement."""

from __future__ import annotations

from endpick.api import DataKey

{{ cookiecutter.__key }} = DataKey(
    "{{ cookiecutter.__key_name }}",
    float,
    doc="Time to open a connection to the endpoint, in seconds.",
    default_producer="{{ cookiecutter.__collector_type }}",
)
