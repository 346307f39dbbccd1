"""Why a serving process would not start, or would not take a new configuration: always as diagnostics."""

from __future__ import annotations

from collections.abc import Sequence

from endpick.diagnostics import Code, Diagnostic, PluginReference
from endpick.plugins.instance import Instance


class Refused(Exception):  # noqa: N818 - a refusal, told with its code and, where there is one, its place in the configuration
    """Something is wrong that can only be found by trying: a port in use, a plugin that does not start, no endpoints in time."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics: Sequence[Diagnostic] = diagnostics


def instance_failed(code: Code, instance: Instance, what: str, help_line: str | None = None) -> Diagnostic:
    """A diagnostic that blames one instance, at its place in the configuration; further lines of `what` become notes."""
    plugin = PluginReference(instance.type, instance.name, instance.distribution, instance.version)
    headline, *notes = (line.strip() for line in what.splitlines())
    message = f"'{instance.name}' {headline.removesuffix(':')}"
    if instance.place is None:
        return Diagnostic(code, message, help=help_line, notes=tuple(notes), plugin=plugin)
    span, path = instance.place.key_span(()), instance.place.path
    return Diagnostic(code, message, span, help=help_line, notes=tuple(notes), plugin=plugin, path=path)
