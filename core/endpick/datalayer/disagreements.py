"""What can be wrong between producers and consumers of data, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from endpick.api.data import AnyKey, Scope
from endpick.datalayer.layers import first_write, last_read
from endpick.datalayer.participant import Participant
from endpick.diagnostics import Code, Diagnostic, Label


def missing(consumer: Participant, key: AnyKey, advice: str) -> Diagnostic:
    """Nobody produces a key that `consumer` must have."""
    return Diagnostic(
        Code.E0601,
        f"nothing produces '{key.name}', which '{consumer.name}' needs",
        consumer.span,
        help=advice,
        notes=(f"'{key.name}' ({key.scope}): {key.doc}",) if key.doc else (),
        plugin=consumer.plugin,
        path=consumer.path,
    )


def malformed(participant: Participant, key: AnyKey) -> Diagnostic:
    """A key has a name that nobody could write without mistakes."""
    return Diagnostic(
        Code.E0609,
        f"'{participant.name}' declares a data key called '{key.name}', which is not of the form `name` or `vendor/name`",
        participant.span,
        help="report it to the plugin's author: names are lower-case words joined by '-' or '.', such as `acme.example/gpu-temperature`",
        plugin=participant.plugin,
        path=participant.path,
    )


def between(producer: Participant, consumer: Participant, key: str) -> Iterable[Diagnostic]:
    """Every way in which two instances disagree on a key that they share."""
    given, wanted = producer.produced[key], next(declared for declared, _ in consumer.consumed if declared.name == key)
    if given.type is not wanted.type:
        yield _disagreement(
            Code.E0602, producer, consumer, f"'{consumer.name}' reads '{key}' as {_type(wanted)}, '{producer.name}' writes {_type(given)}"
        )
    if given.scope is not wanted.scope:
        yield _disagreement(
            Code.E0608,
            producer,
            consumer,
            f"'{consumer.name}' reads '{key}' with scope {wanted.scope}, '{producer.name}' writes it with scope {given.scope}",
        )
    elif given.scope in (Scope.REQUEST, Scope.CANDIDATE) and first_write(producer.kinds) > last_read(consumer.kinds):
        early, late = last_read(consumer.kinds).title, first_write(producer.kinds).title
        yield _disagreement(
            Code.E0604,
            producer,
            consumer,
            f"'{consumer.name}' reads '{key}' during {early}, before '{producer.name}' writes it during {late}",
        )


def two_producers(key: str, first: Participant, second: Participant, readers: Iterable[Participant]) -> Diagnostic:
    """Two instances write the same key."""
    if second.span is None:
        first, second = second, first
    named = "".join(f", '{reader.name}' reads it" for reader in readers)
    return Diagnostic(
        Code.E0605,
        f"'{second.name}' and '{first.name}' both produce '{key}'{named}",
        second.span,
        labels=_label(first, f"'{first.name}' produces it as well"),
        help="remove one of them, or name the one to read from in the parameters of each consumer, where those allow it",
        plugin=second.plugin,
        path=second.path,
    )


def circle(members: Sequence[Participant], keys: Sequence[str]) -> Diagnostic:
    """Instances wait for each other; `keys[i]` is what `members[i]` waits for from the next one."""
    first, followers = members[0], (*members[1:], members[0])
    path = " → ".join(member.name for member in (*members, first))
    if len(members) == 1:
        message = f"'{first.name}' waits for data that it produces itself: {path}"
        advice = "remove the key from `consumes`: an instance may always read what it produces"
    else:
        message = f"data producers wait for each other: {path}"
        advice = "remove one of them, or make one stop consuming what the next one produces"
    place = next((member for member in members if member.span is not None), first)
    others = [member for member in members if member is not place]
    return Diagnostic(
        Code.E0603,
        message,
        place.span,
        labels=tuple(label for member in others for label in _label(member, f"'{member.name}' is part of the circle")),
        help=advice,
        notes=tuple(
            f"'{member.name}' needs '{key}' from '{follower.name}'" for member, key, follower in zip(members, keys, followers, strict=True)
        ),
        plugin=place.plugin,
        path=place.path,
    )


def _disagreement(code: Code, producer: Participant, consumer: Participant, message: str) -> Diagnostic:
    origin = "" if producer.plugin is None else f" ({producer.plugin})"
    return Diagnostic(
        code,
        message,
        consumer.span,
        labels=_label(producer, f"'{producer.name}' produces it"),
        help=f"use versions of '{consumer.type}' and '{producer.type}' that were made for each other",
        notes=(f"the data comes from '{producer.name}'{origin}",),
        plugin=consumer.plugin,
        path=consumer.path,
    )


def _label(participant: Participant, text: str) -> tuple[Label, ...]:
    return () if participant.span is None else (Label(participant.span, text),)


def _type(key: AnyKey) -> str:
    return key.type.__name__ if key.type.__module__ == "builtins" else f"{key.type.__module__}.{key.type.__qualname__}"
