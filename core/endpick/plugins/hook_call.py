"""One implementation of one hook: how it is called, and how its failures are told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from endpick.api.errors import ConfigurationError, ReloadRejected
from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.attribution import attributed
from endpick.plugins.discovery import Candidate
from endpick.plugins.frames import describe, trace_notes
from endpick.plugins.reference import Reference


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook object's method, ready to be called with the arguments it asks for."""

    hook: str
    reference: Reference
    candidate: Candidate
    function: Callable[..., object]
    arguments: tuple[str, ...]

    def __call__(self, **offered: object) -> object:
        """Call it with those of the hook's arguments that it asks for. Whatever it raises passes."""
        with attributed(f"{self.reference.type} ({self.candidate.origin})"):
            return self.function(**{name: offered[name] for name in self.arguments})

    async def attempt(self, code: Code, deadline_seconds: float, **offered: object) -> Diagnostic | None:
        """Call it, await it if it is asynchronous, and tell its failure under `code`; None when all is well."""
        try:
            result = self(**offered)
            if inspect.isawaitable(result):
                await asyncio.wait_for(result, deadline_seconds)
        except TimeoutError as error:
            late = Code.E0703 if code is Code.E0706 else code
            return self.fault(late, f"did not finish {self.hook} within {deadline_seconds:g} s", error)
        except Exception as error:
            return self.failure(code, error)
        return None

    def failure(self, code: Code, error: Exception) -> Diagnostic:
        """A diagnostic that says what the implementation raised; in its own words where it raised on purpose."""
        on_purpose = isinstance(error, ConfigurationError | ReloadRejected)
        return self.fault(code, f"failed in {self.hook}: {error}" if on_purpose else f"failed in {self.hook}: {describe(error)}", error)

    def fault(self, code: Code, what: str, error: Exception | None = None) -> Diagnostic:
        """A diagnostic that blames this implementation."""
        name = self.reference.type
        return self.reference.diagnostic(
            code,
            f"the hook object '{name}' from {self.candidate.origin} {what}",
            self.candidate,
            help=f"report it to the author of {self.candidate.distribution}, or remove '{name}' from `hooks:`",
            notes=() if error is None else trace_notes(error),
        )
