"""Resolves parameters that name instances (`RefersTo`), and orders instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from endpick.diagnostics import Code, DocumentPath
from endpick.host.contract import mark_of
from endpick.host.kinds import KINDS, Kind
from endpick.host.planning.builder import DraftInstance, PlanBuilder, look_up_kind
from endpick.host.planning.subscriptions import toposort


@dataclass(frozen=True, slots=True)
class NamedInstance:
    """A reference from a parameter to an instance."""

    name: str
    kind: Kind  # of the instance
    path: DocumentPath  # within the `parameters:` block
    parameter: str  # for messages: `deciders.prefill`
    is_written: bool  # False for a default


def references_in(parameters: BaseModel, block: Mapping[str, object]) -> tuple[NamedInstance, ...]:
    """Return the instances that parameters name, in field order; `block` holds them as written."""
    return tuple(_in_model(parameters, block, ()))


def _in_model(model: BaseModel, block: object, path: DocumentPath) -> Iterator[NamedInstance]:
    written = block if isinstance(block, Mapping) else {}
    for name, field in type(model).model_fields.items():
        segment = name if name in written else field.alias or name
        # `vars`: pydantic warns when a deprecated attribute is read.
        value, inner, place = vars(model)[name], written.get(segment), (*path, segment)
        mark = mark_of(field)
        if mark is None:
            yield from _in_value(value, inner, place)
            continue
        for instance_name, at in _names(value, place):
            if instance_name:
                yield NamedInstance(instance_name, mark.kind, at, ".".join(map(str, at)), inner is not None)


def _in_value(value: object, block: object, path: DocumentPath) -> Iterator[NamedInstance]:
    if isinstance(value, BaseModel):
        yield from _in_model(value, block, path)
    elif isinstance(value, list | tuple):
        items = block if isinstance(block, list | tuple) else ()
        for position, item in enumerate(value):
            yield from _in_value(item, items[position] if position < len(items) else None, (*path, position))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _in_value(item, block.get(key) if isinstance(block, Mapping) else None, (*path, key))


def _names(value: object, path: DocumentPath) -> Iterator[tuple[str, DocumentPath]]:
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, list | tuple):
        for position, name in enumerate(value):
            yield str(name), (*path, position)


References = Mapping[str, tuple[str, ...]]  # instances that each instance names


def plan_references(builder: PlanBuilder) -> References:
    """Look up every reference, and report invalid ones."""
    found = {instance.name: _looked_up(instance, builder) for instance in tuple(builder.instances.values())}
    references = {name: named for name, named in found.items() if named}
    for circle in toposort({name: set(named) for name, named in references.items()}).cycles:
        _report_circle(circle, builder)
    return references


def in_order(names: Sequence[str], references: References) -> tuple[str, ...]:
    """Sort the names so that each follows the instances it refers to."""
    ordered: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in ordered:
            for needed in references.get(name, ()):
                add(needed)
            ordered[name] = None

    for name in names:
        add(name)
    return tuple(ordered)


def _looked_up(instance: DraftInstance, builder: PlanBuilder) -> tuple[str, ...]:
    if instance.parameters is None:
        return ()
    named = []
    for reference in references_in(instance.parameters, instance.place.block()):
        found = _resolve(instance, reference, builder)
        if found is not None:
            named.append(found.name)
    return tuple(dict.fromkeys(named))


def _resolve(instance: DraftInstance, reference: NamedInstance, builder: PlanBuilder) -> DraftInstance | None:
    path = _path_of(instance, reference)
    if reference.name not in builder.instances and not reference.is_written:
        if not builder.loaded.may_define(reference.name):
            _report_default(instance, reference, path, builder)
        return None
    return look_up_kind(reference.name, path, reference.kind, builder)


def _path_of(instance: DraftInstance, reference: NamedInstance) -> DocumentPath:
    if reference.is_written:
        return (*instance.place.path, *reference.path)
    return (*(instance.path or ()), "type") if instance.path is not None else ()


def _report_default(instance: DraftInstance, reference: NamedInstance, path: DocumentPath, builder: PlanBuilder) -> None:
    builder.report(
        Code.E0501,
        f"'{instance.name}' needs {KINDS[reference.kind].title} called '{reference.name}', which is not defined under plugins",
        path,
        help=f"define it under `plugins:`, or name another one with the parameter `{reference.parameter}`",
        plugin=instance.plugin,
    )


def _report_circle(names: Sequence[str], builder: PlanBuilder) -> None:
    members = [builder.instances[name] for name in names]
    places = [_place_of(member, following) for member, following in zip(members, (*names[1:], names[0]), strict=True)]
    first, *others = places
    builder.report(
        Code.E0520,
        f"instances refer to each other in a circle: {' → '.join((*names, names[0]))}",
        first,
        labels=[builder.label(place, "and this one back") for place in others],
        help="name another instance in one of them: each is built after those it refers to",
        plugin=members[0].plugin,
    )


def _place_of(instance: DraftInstance, named: str) -> DocumentPath:
    assert instance.parameters is not None
    references = references_in(instance.parameters, instance.place.block())
    return next(_path_of(instance, reference) for reference in references if reference.name == named)
