"""Which data keys the running plugin may touch; shared by the views it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from endpick.api.errors import UndeclaredAccess


@dataclass(frozen=True, slots=True)
class AccessScope:
    """The keys one instance declared, by name."""

    instance: str
    readable: frozenset[str]
    writable: frozenset[str] = frozenset()


OnViolation = Callable[[AccessScope, str, Literal["read", "write"]], None]


def refuse(scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
    """Treat an undeclared access as the plugin's fault: what tests and the conformance kit use.

    Raises:
        UndeclaredAccess: always.
    """
    declared = "consumes" if access == "read" else "produces"
    raise UndeclaredAccess(f"instance '{scope.instance}' {access}s '{key}' without declaring it in `{declared}`")


class Access:
    """The declared keys of whichever plugin is running now.

    The host sets `scope` before it calls a plugin; views ask `check_read` and `check_write`. `None` means host code: everything is allowed.
    """

    __slots__ = ("on_violation", "scope")

    def __init__(self, scope: AccessScope | None = None, on_violation: OnViolation = refuse) -> None:
        self.scope = scope
        self.on_violation = on_violation

    def check_read(self, key: str) -> None:
        """Report a read of a key that the running plugin did not declare."""
        scope = self.scope
        if scope is not None and key not in scope.readable:
            self.on_violation(scope, key, "read")

    def check_write(self, key: str) -> None:
        """Report a write of a key that the running plugin did not declare."""
        scope = self.scope
        if scope is not None and key not in scope.writable:
            self.on_violation(scope, key, "write")
