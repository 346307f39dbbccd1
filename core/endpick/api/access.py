"""Which data keys the plugin that runs now may read and write, and what happens when it does otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from endpick.api.errors import UndeclaredAccess


@dataclass(frozen=True, slots=True)
class AccessScope:
    """The keys one instance declared, by name."""

    instance: str
    readable: frozenset[str]
    writable: frozenset[str] = frozenset()
    plugin_type: str = ""
    extension_point: str = ""
    """Where the host calls the instance with this scope; empty where it says so nowhere."""
    max_ages: Mapping[str, float] = field(default_factory=dict)
    """For keys whose older values the instance is to find missing, how old they may be in seconds."""
    unlimited: frozenset[str] = field(init=False, repr=False, compare=False)
    """The readable keys whose values may be of any age."""
    own_names: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """Under which name a consumer that insists on this producer finds each key that the instance writes: see `DataKey.from_producer`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "unlimited", self.readable.difference(self.max_ages))
        object.__setattr__(self, "own_names", {name: f"{name}@{self.instance}" for name in self.writable})


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

    The host sets `scope` before it calls a plugin; views compare it with the key, and report through `on_violation`. `None` means host
    code: everything is allowed.
    """

    __slots__ = ("on_violation", "scope")

    def __init__(self, scope: AccessScope | None = None, on_violation: OnViolation = refuse) -> None:
        self.scope = scope
        self.on_violation = on_violation
