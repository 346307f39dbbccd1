"""Where a hook object reports what it finds wrong with a configuration: its findings become diagnostics at their place."""

from __future__ import annotations

from endpick.config.source import SourceMap
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.plugins.hook_call import HookCall


class HookReport:
    """An `endpick.api.hooks.Report` for one call of one hook object."""

    def __init__(self, call: HookCall, source: SourceMap) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._call = call
        self._source = source

    def error(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see Report
        """See `endpick.api.hooks.Report`."""
        self._add(Code.E0511, path, message, help)

    def warn(self, path: DocumentPath, message: str, help: str | None = None) -> None:  # noqa: A002 - see Report
        """See `endpick.api.hooks.Report`."""
        self._add(Code.W0503, path, message, help)

    def position(self, path: DocumentPath) -> tuple[int, int]:
        """See `endpick.api.hooks.Report`."""
        span = self._source.value_span(tuple(path))
        return span.line, span.column

    def _add(self, code: Code, path: DocumentPath, message: str, help_line: str | None) -> None:
        path = tuple(path)
        self.diagnostics.append(
            Diagnostic(
                code,
                message,
                span=self._source.value_span(path),
                labels=self._source.labels_for(path),
                help=help_line,
                notes=(f"said by the hook object '{self._call.reference.type}' from {self._call.candidate.origin}",),
                plugin=self._call.reference.plugin(self._call.candidate),
                path=path,
            )
        )
