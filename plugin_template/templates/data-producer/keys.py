"""The data key of the estimate."""

from __future__ import annotations

from endpick.api import DataKey, Scope

{{ cookiecutter.__key }} = DataKey(
    "{{ cookiecutter.__key_name }}",
    int,
    Scope.REQUEST,
    doc="Estimated tokens of the prompt (count, 0 or more).",
    default=0,
    default_producer="{{ cookiecutter.plugin_type }}",
)
