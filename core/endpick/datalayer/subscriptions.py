"""Who produces which data for whom: from declared keys to an order of producers, or to every reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from endpick.api.data import AnyKey, Scope
from endpick.datalayer import disagreements
from endpick.datalayer.participant import Participant
from endpick.datalayer.precedence import precedence
from endpick.diagnostics import Diagnostic

_WORD = r"[a-z0-9]+([.-][a-z0-9]+)*"
_KEY_NAME = re.compile(rf"{_WORD}(/{_WORD})?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Subscription:
    """One instance reads one key that another writes."""

    consumer: str
    key: str
    producer: str
    required: bool
    scope: Scope


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """One instance reads a key that nobody writes."""

    consumer: str
    key: str


@dataclass(frozen=True, slots=True)
class SubscriptionGraph:
    """A consistent set of subscriptions.

    Attributes:
        order: Every instance that writes something, each after those it reads from.
        subscriptions: Sorted by consumer and key.
        unmet: Optional keys that nobody writes.
        unread: Instances that write keys of which nobody reads any.
    """

    order: tuple[str, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    unmet: tuple[Need, ...] = ()
    unread: tuple[str, ...] = ()

    def producers_for(self, consumers: Iterable[str]) -> tuple[str, ...]:
        """Whoever writes for the sake of these instances, directly or through others; in order."""
        needed: set[str] = set()
        waiting = set(consumers)
        while waiting:
            fresh = {one.producer for one in self.subscriptions if one.consumer in waiting} - needed
            needed |= fresh
            waiting = fresh
        return tuple(name for name in self.order if name in needed)

    def keys_for(self, consumers: Iterable[str]) -> tuple[str, ...]:
        """Every key these instances read, directly or through the producers they need; sorted."""
        direct = set(consumers)
        readers = direct | set(self.producers_for(direct))
        return tuple(sorted({one.key for one in self.subscriptions if one.consumer in readers}))


@dataclass(frozen=True, slots=True)
class Resolution:
    """What came of resolving: a graph, or what is wrong."""

    graph: SubscriptionGraph | None
    diagnostics: tuple[Diagnostic, ...] = ()


def missing_keys(participants: Iterable[Participant]) -> tuple[tuple[Participant, AnyKey], ...]:
    """Required keys that nobody produces, each with who needs it; sorted by consumer and key."""
    ordered = sorted(participants, key=_name)
    produced = {name for participant in ordered for name in participant.produced}
    return tuple(
        (participant, key) for participant in ordered for key, required in participant.consumed if required and key.name not in produced
    )


def resolve_subscriptions(
    participants: Iterable[Participant], help_for_missing: Callable[[AnyKey], str] = lambda _: "add an instance that produces it"
) -> Resolution:
    """Prove that all declared data can flow, and say in which order. The answer depends on the set of participants, not on their order.

    Args:
        participants: Every instance of the plan; names are unique.
        help_for_missing: Says what to do about a required key that nobody produces; asked only when there is one.
    """
    by_name = {participant.name: participant for participant in sorted(participants, key=_name)}
    producers = _producers(by_name.values())
    subscriptions = tuple(_subscriptions(by_name.values(), producers))
    waits_for = {name: {one.producer for one in subscriptions if one.consumer == name} for name in by_name}
    ordered = precedence(waits_for)
    diagnostics = (
        *(disagreements.malformed(one, key) for one in by_name.values() for key in _malformed_keys(one)),
        *(disagreements.missing(consumer, key, help_for_missing(key)) for consumer, key in missing_keys(by_name.values())),
        *_ambiguities(by_name.values(), producers),
        *(
            diagnostic
            for one in subscriptions
            for diagnostic in disagreements.between(by_name[one.producer], by_name[one.consumer], one.key)
        ),
        *(disagreements.circle([by_name[name] for name in names], _keys_between(names, subscriptions)) for names in ordered.circles),
    )
    if diagnostics:
        return Resolution(None, diagnostics)
    read_from = {one.producer for one in subscriptions}
    return Resolution(
        SubscriptionGraph(
            order=tuple(name for name in ordered.order if by_name[name].subscriptions.produces),
            subscriptions=subscriptions,
            unmet=tuple(_unmet(by_name.values(), producers)),
            unread=tuple(name for name, one in by_name.items() if one.subscriptions.produces and name not in read_from),
        )
    )


def _malformed_keys(participant: Participant) -> Iterable[AnyKey]:
    keys = participant.subscriptions
    declared = {key.name: key for key in (*keys.consumes, *keys.consumes_optional, *keys.produces)}
    # Whoever asks for one producer's data names that instance behind the key's own name.
    return [key for name, key in sorted(declared.items()) if not _KEY_NAME.fullmatch(name.partition("@")[0])]


def _name(participant: Participant) -> str:
    return participant.name


def _producers(participants: Iterable[Participant]) -> Mapping[str, list[Participant]]:
    producers: dict[str, list[Participant]] = {}
    for participant in participants:
        for name in participant.produced:
            producers.setdefault(name, []).append(participant)
    return producers


def _subscriptions(participants: Iterable[Participant], producers: Mapping[str, list[Participant]]) -> Iterable[Subscription]:
    for consumer in participants:
        for key, required in consumer.consumed:
            for producer in producers.get(key.name, ()):
                yield Subscription(consumer.name, key.name, producer.name, required, key.scope)


def _unmet(participants: Iterable[Participant], producers: Mapping[str, list[Participant]]) -> Iterable[Need]:
    for participant in participants:
        for key, required in participant.consumed:
            if not required and key.name not in producers:
                yield Need(participant.name, key.name)


def _ambiguities(participants: Iterable[Participant], producers: Mapping[str, list[Participant]]) -> Iterable[Diagnostic]:
    """Two producers are one too many for a column, which both would write, and for whoever does not say whose data it wants."""
    readers: dict[str, list[Participant]] = {}
    for participant in participants:
        for key, _ in participant.consumed:
            readers.setdefault(key.name, []).append(participant)
    for name, offers in sorted(producers.items()):
        shared = any(producer.produced[name].scope in (Scope.ENDPOINT, Scope.POOL) for producer in offers)
        if len(offers) > 1 and (shared or name in readers):
            yield from (disagreements.two_producers(name, offers[0], other, readers.get(name, ())) for other in offers[1:])


def _keys_between(names: tuple[str, ...], subscriptions: Iterable[Subscription]) -> list[str]:
    """For each member of a circle, a key for which it waits for the next one."""
    key_of = {(one.consumer, one.producer): one.key for one in reversed(tuple(subscriptions))}
    return [key_of[pair] for pair in zip(names, (*names[1:], names[0]), strict=True)]
