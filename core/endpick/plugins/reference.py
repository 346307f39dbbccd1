"""Where a configuration asks for a plugin type: what a diagnostic about that plugin points at."""

from __future__ import annotations

from dataclasses import dataclass

from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, PluginReference, Span
from endpick.plugins.discovery import Candidate


@dataclass(frozen=True, slots=True)
class Reference:
    """One `plugins:` entry, or a plugin that the host adds by itself."""

    type: str
    instance: str | None = None
    distribution: str | None = None
    """The entry's `from:`."""

    span: Span | None = None
    """Of the `type:` value; None when the host asks, not a file."""

    distribution_span: Span | None = None
    """Of the `from:` value."""

    path: DocumentPath = ()
    """Of the `type:` value."""

    labels: tuple[Label, ...] = ()

    @property
    def owner(self) -> str:
        """How messages name the entry: `queue-scorer`, or `busy (queue-scorer)` when it has a name of its own."""
        return str(self.plugin())

    def plugin(self, candidate: Candidate | None = None) -> PluginReference:
        """The plugin as a diagnostic names it, with its distribution where that is known."""
        if candidate is None:
            return PluginReference(self.type, self.instance)
        return PluginReference(self.type, self.instance, candidate.distribution, candidate.version)

    def diagnostic(
        self,
        code: Code,
        message: str,
        candidate: Candidate | None = None,
        *,
        annotation: str | None = None,
        help: str | None = None,  # noqa: A002 - as the diagnostic's field
        notes: tuple[str, ...] = (),
        span: Span | None = None,
    ) -> Diagnostic:
        """A diagnostic at this reference, or at `span` where another place is to blame."""
        return Diagnostic(
            code,
            message,
            span=span or self.span,
            labels=self.labels,
            help=help,
            notes=notes,
            plugin=self.plugin(candidate),
            path=self.path,
            annotation=annotation,
        )
