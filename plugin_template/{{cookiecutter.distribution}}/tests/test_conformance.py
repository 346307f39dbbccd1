"""The rules that every endpick plugin keeps."""

from __future__ import annotations

from collections.abc import Callable

from endpick.testing import parametrize_conformance

{% if cookiecutter.kind == 'data-source' %}
from {{ cookiecutter.__package }}.collector import {{ cookiecutter.__collector }}
{% endif %}
from {{ cookiecutter.__package }}.{{ cookiecutter.__module }} import {{ cookiecutter.__class }}


@parametrize_conformance([{{ cookiecutter.__class }}{{ ', ' ~ cookiecutter.__collector if cookiecutter.kind == 'data-source' }}])
def test_conformance(check: Callable[[], None]) -> None:
    check()
