"""Names that are defined and never used, as vulture finds them, without those that are used from outside.

What is used from outside is read from the code where the code says it: the plugin API, entry points, fields of messages and documents, and
methods that a library calls because a class inherits from one of its own. `unused.txt` lists the rest.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pydantic
from google.protobuf import struct_pb2
from google.protobuf.descriptor import Descriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from vulture.core import Vulture

import endpick
import endpick.testing
import endpick_builtin
from endpick._proto import ext_proc_pb2
from endpick.api.hooks import HookSpecs
from endpick.api.plugin import Parameters, Plugin
from endpick.extproc.stream import SessionCounters
from endpick.serve.admin_limits import AdminCounters
from endpick.testing import strategies
from endpick.transport.limits import TransportCounters
from reachable.exceptions import compare

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).with_name("unused.txt")
PACKAGES = (endpick, endpick_builtin)
DECORATORS = ["@check", "@pytest.fixture", "@field_validator", "@model_validator", "@model_serializer"]
"""What they decorate is called by the conformance kit, by pytest and by pydantic."""


def unused_names() -> list[str]:
    """Complaints about names that nothing uses."""
    vulture = Vulture(ignore_decorators=[f"{decorator}*" for decorator in DECORATORS])
    paths = [str(Path(package.__file__ or "").parent) for package in PACKAGES]
    vulture.scavenge(paths, exclude=[f"{paths[0]}/_proto"])
    allowed = set(_called_from_outside(list(_modules())))
    items = [item for item in vulture.get_unused_code(min_confidence=60) if item.name not in allowed]
    return compare((f"{Path(item.filename).relative_to(ROOT).as_posix()}:{item.name}" for item in items), EXCEPTIONS, "is never used")


def _modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                yield importlib.import_module(module.name)


def _called_from_outside(modules: Iterable[ModuleType]) -> Iterator[str]:
    yield from _entry_points()
    yield from vars(HookSpecs)
    yield from (name for name, member in vars(strategies).items() if getattr(member, "__module__", "") == strategies.__name__)
    yield from endpick.testing.__all__
    yield "__getattr__"
    for counters in (TransportCounters, SessionCounters, AdminCounters):
        yield from (field.name for field in dataclasses.fields(counters))
    for messages in (ext_proc_pb2, health_pb2, reflection_pb2, struct_pb2):
        for message in messages.DESCRIPTOR.message_types_by_name.values():
            yield from _fields(message)
    for module in modules:
        for member in vars(module).values():
            if inspect.isclass(member) and member.__module__ == module.__name__:
                yield from _members_for_others(member)


def _entry_points() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in ({"scripts": project["scripts"]}, project["entry-points"]):
        for targets in group.values():
            yield from (target.rpartition(":")[2] for target in targets.values())


def _fields(message: Descriptor) -> Iterator[str]:
    yield from message.fields_by_name
    for nested in message.nested_types:
        yield from _fields(nested)


def _members_for_others(member: type) -> Iterator[str]:
    """What plugins call, what documents carry, and what a library calls of a class that inherits from one of its own."""
    of_endpick = endpick.__name__, endpick_builtin.__name__
    for base in member.__mro__[1:]:
        if base is not object and base.__module__.partition(".")[0] not in of_endpick:
            yield from (name for name in vars(member) if name in vars(base))
    if member.__module__.startswith("endpick.api.") and not issubclass(member, Plugin):
        yield from (name for name in vars(member) if not name.startswith("_"))
    if issubclass(member, pydantic.BaseModel) and not issubclass(member, Parameters):
        yield from member.model_fields
