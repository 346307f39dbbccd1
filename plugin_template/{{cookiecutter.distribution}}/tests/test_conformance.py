"""Runs endpick's conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from endpick.testing import parametrize_conformance

{% if cookiecutter.__collects %}
from {{ cookiecutter.__package }}.collector import {{ cookiecutter.__collector }}
{% endif %}
{% if cookiecutter.__collects %}
from {{ cookiecutter.__package }}.source import (
    {{ cookiecutter.__payload }},
    {{ cookiecutter.__class }},
)


@parametrize_conformance(
    [{{ cookiecutter.__class }}, {{ cookiecutter.__collector }}],
    payloads=[{{ cookiecutter.__payload }}({{ 'connect_seconds=0.002' if cookiecutter.kind == 'data-source' else 'value=0.5' }})],
)
{% else %}
from {{ cookiecutter.__package }}.{{ cookiecutter.__module }} import {{ cookiecutter.__class }}


@parametrize_conformance([{{ cookiecutter.__class }}])
{% endif %}
def test_conformance(check: Callable[[], None]) -> None:
    check()
