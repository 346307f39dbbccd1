"""The data key of the number."""

from __future__ import annotations

from endpick.api import DataKey, Scope

{{ cookiecutter.__key }} = DataKey(
    "{{ cookiecutter.__key_name }}",
    float,
    Scope.POOL,
    doc="A number for the whole pool, 0 or more.",
    default=0.0,
    default_producer="{{ cookiecutter.__collector_type }}",
)
