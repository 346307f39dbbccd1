"""Why a serving process could not start or did not end well."""

from __future__ import annotations

from endpick.diagnostics import Diagnostic


class StartupError(Exception):
    """Something outside the configuration's text is wrong: a port in use, a file that is missing, no endpoints in time.

    The message says what happened and what to do; `endpick serve` prints it and exits with 5.
    """


class BuildRefused(Exception):  # noqa: N818 - a refusal, reported with its place in the configuration
    """Plugins would not be constructed with these parameters; `diagnostics` says which and why."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__(f"{len(diagnostics)} plugins could not be built")
        self.diagnostics = diagnostics
