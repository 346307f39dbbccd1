"""Confines the running plugin to the data keys it declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from endpick.api.errors import UndeclaredAccess


@dataclass(frozen=True, slots=True)
class AccessScope:
    """The data keys one instance declared, by name.

    Attributes:
        extension_point: The method the host is calling, for messages.
        max_ages: Seconds after which a key counts as missing for this instance.
        unlimited: Readable keys without a maximum age.
        own_names: For each written key, the name that consumers of this producer use; see `DataKey.from_producer`.
    """

    instance: str
    readable: frozenset[str]
    writable: frozenset[str] = frozenset()
    plugin_type: str = ""
    extension_point: str = ""
    max_ages: Mapping[str, float] = field(default_factory=dict)
    unlimited: frozenset[str] = field(init=False, repr=False, compare=False)
    own_names: Mapping[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unlimited", self.readable.difference(self.max_ages))
        object.__setattr__(self, "own_names", {name: f"{name}@{self.instance}" for name in self.writable})


OnViolation = Callable[[AccessScope, str, Literal["read", "write"]], None]


def refuse(scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
    """Raise UndeclaredAccess; used by tests and the conformance kit."""
    declared = "consumes" if access == "read" else "produces"
    raise UndeclaredAccess(f"instance '{scope.instance}' {access}s '{key}' without declaring it in `{declared}`")


class Access:
    """The access scope of the running plugin, shared by all views of one request path.

    The host sets `scope` before each plugin call. None means host code.
    """

    __slots__ = ("on_violation", "scope")

    def __init__(self, scope: AccessScope | None = None, on_violation: OnViolation = refuse) -> None:
        self.scope = scope
        self.on_violation = on_violation
