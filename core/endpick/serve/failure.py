"""Why a serving process could not start, did not end well, or would not take a new configuration."""

from __future__ import annotations

from collections.abc import Sequence

from endpick.diagnostics import Diagnostic


class StartupError(Exception):
    """Something outside the configuration's text is wrong: a port in use, a file that is missing, no endpoints in time.

    The message says what happened and what to do; `endpick serve` prints it and exits with 5.
    """


class Refused(Exception):  # noqa: N818 - a refusal, reported with its place in the configuration
    """Plugins would not be constructed, or hook objects objected; `diagnostics` says which and why."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("; ".join(diagnostic.message for diagnostic in diagnostics))
        self.diagnostics = tuple(diagnostics)
