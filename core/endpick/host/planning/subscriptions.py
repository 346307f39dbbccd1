"""Proves that data keys can flow and orders producers, or reports why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from operator import attrgetter

from endpick.api.data import AnyKey, Scope, Subscriptions
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, PluginReference, Span
from endpick.host.kinds import Kind, first_write, last_read


def _missing(consumer: Participant, key: AnyKey, advice: str) -> Diagnostic:
    notes = (f"'{key.name}' ({key.scope}): {key.doc}",) if key.doc else ()
    return consumer.diagnostic(Code.E0601, f"nothing produces '{key.name}', which '{consumer.name}' needs", advice, notes=notes)


def _malformed(participant: Participant, key: AnyKey) -> Diagnostic:
    return participant.diagnostic(
        Code.E0609,
        f"'{participant.name}' declares a data key called '{key.name}', which is not of the form `name` or `vendor/name`",
        "report it to the plugin's author: names are words of letters and digits joined by one of `-_:.`, such as "
        "`acme.example/gpu-temperature`",
    )


def _between(producer: Participant, consumer: Participant, key: str) -> Iterable[Diagnostic]:
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


def _two_producers(key: str, first: Participant, second: Participant, readers: Iterable[Participant]) -> Diagnostic:
    if second.span is None:
        first, second = second, first
    named = "".join(f", '{reader.name}' reads it" for reader in readers)
    return second.diagnostic(
        Code.E0605,
        f"'{second.name}' and '{first.name}' both produce '{key}'{named}",
        "remove one of them, or name the one to read from in the parameters of each consumer, where those allow it",
        labels=_label(first, f"'{first.name}' produces it as well"),
    )


def _chosen(keys: Iterable[str], producer: str, others: Iterable[str], reader: Participant) -> Diagnostic:
    names = " and ".join(f"'{key}'" for key in keys)
    return reader.diagnostic(
        Code.N0602,
        f"'{reader.name}' names no producer of {names}, and reads from '{producer}', which is named after the default type",
        "name the producer in the parameters, to read from another one",
        notes=(f"others are {', '.join(others)}",),
    )


def _cycle(members: Sequence[Participant], keys: Sequence[str]) -> Diagnostic:
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
    needs = zip(members, keys, followers, strict=True)
    return place.diagnostic(
        Code.E0603,
        message,
        advice,
        labels=tuple(label for member in others for label in _label(member, f"'{member.name}' is part of the circle")),
        notes=tuple(f"'{member.name}' needs '{key}' from '{follower.name}'" for member, key, follower in needs),
    )


def _disagreement(code: Code, producer: Participant, consumer: Participant, message: str) -> Diagnostic:
    origin = "" if producer.plugin is None else f" ({producer.plugin})"
    return consumer.diagnostic(
        code,
        message,
        f"use versions of '{consumer.type}' and '{producer.type}' that were made for each other",
        labels=_label(producer, f"'{producer.name}' produces it"),
        notes=(f"the data comes from '{producer.name}'{origin}",),
    )


def _label(participant: Participant, text: str) -> tuple[Label, ...]:
    return () if participant.span is None else (Label(participant.span, text),)


def _type(key: AnyKey) -> str:
    return key.type.__name__ if key.type.__module__ == "builtins" else f"{key.type.__module__}.{key.type.__qualname__}"


@dataclass(frozen=True, slots=True)
class Participant:
    """An instance with its data keys, kinds (at least one), and place if it has one."""

    name: str
    type: str
    kinds: tuple[Kind, ...]
    subscriptions: Subscriptions
    span: Span | None = None
    plugin: PluginReference | None = None
    path: DocumentPath = ()

    def diagnostic(self, code: Code, message: str, advice: str, labels: tuple[Label, ...] = (), notes: tuple[str, ...] = ()) -> Diagnostic:
        """Return a diagnostic at the place of the instance."""
        return Diagnostic(code, message, self.span, labels, advice, notes, self.plugin, self.path)

    @property
    def produced(self) -> Mapping[str, AnyKey]:
        """The keys that it writes, by name and by `key@instance`."""
        own = {key.name: key for key in self.subscriptions.produces}
        return {f"{name}@{self.name}": key for name, key in own.items()} | own

    @property
    def consumed(self) -> tuple[tuple[AnyKey, bool], ...]:
        """The keys that it reads, with True for required ones; sorted by name."""
        required = {key.name: (key, True) for key in self.subscriptions.consumes}
        optional = {key.name: (key, False) for key in self.subscriptions.consumes_optional}
        return tuple(entry for _, entry in sorted((optional | required).items()))


@dataclass(frozen=True, slots=True)
class Toposort:
    """Names, each after those it waits for. Cycles are disjoint; in `(a, b)`, a waits for b and b for a; the smallest name is first."""

    order: tuple[str, ...]
    cycles: tuple[tuple[str, ...], ...] = ()


def toposort(waits_for: Mapping[str, Collection[str]]) -> Toposort:
    """Sort topologically; ties are broken by name."""
    graph = {name: sorted(waits_for[name]) for name in sorted(waits_for)}
    cycles: list[tuple[str, ...]] = []
    while True:
        sorter = TopologicalSorter(graph)
        try:
            sorter.prepare()
        except CycleError as error:
            # In the error's list each member is waited for by the next; the last repeats the first.
            members = list(reversed(error.args[1][1:]))
            start = members.index(min(members))
            cycles.append((*members[start:], *members[:start]))
            graph.update((name, []) for name in members)
            continue
        order: list[str] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            order += ready
            sorter.done(*ready)
        return Toposort(tuple(order), tuple(cycles))


_WORD = r"[A-Za-z0-9]+([._:-][A-Za-z0-9]+)*"
_KEY_NAME = re.compile(rf"{_WORD}(/{_WORD})?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Subscription:
    """A data key that a consumer reads from a producer."""

    consumer: str
    key: str
    producer: str
    required: bool
    scope: Scope


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """A data key that an instance reads and no instance writes."""

    consumer: str
    key: str


@dataclass(frozen=True, slots=True)
class SubscriptionGraph:
    """A consistent set of subscriptions: the data flow of a plan."""

    order: tuple[str, ...] = ()  # producers, each after those it reads from
    subscriptions: tuple[Subscription, ...] = ()  # by consumer and key
    unmet: tuple[Need, ...] = ()  # optional keys without a producer
    unread: tuple[str, ...] = ()  # producers without a reader

    def producers_for(self, consumers: Iterable[str]) -> tuple[str, ...]:
        """Return the direct and indirect producers for these instances, in order."""
        needed: set[str] = set()
        waiting = set(consumers)
        while waiting:
            fresh = {edge.producer for edge in self.subscriptions if edge.consumer in waiting} - needed
            needed |= fresh
            waiting = fresh
        return tuple(name for name in self.order if name in needed)

    def keys_for(self, consumers: Iterable[str]) -> tuple[str, ...]:
        """Return the keys that these instances need directly or indirectly, sorted."""
        direct = set(consumers)
        readers = direct | set(self.producers_for(direct))
        return tuple(sorted({edge.key for edge in self.subscriptions if edge.consumer in readers}))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The result of `resolve_subscriptions`: a graph or mistakes, and `notes` in either case."""

    graph: SubscriptionGraph | None
    diagnostics: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()


def rivals(participants: Iterable[Participant]) -> dict[str, tuple[AnyKey, list[Participant]]]:
    """Return per-request keys with several producers that a consumer reads without naming one."""
    members = list(participants)
    read = {key.name for producer in members for key, _ in producer.consumed}
    return {
        name: (offers[0].produced[name], offers)
        for name, offers in sorted(_producers(members).items())
        if len(offers) > 1 and name in read and offers[0].produced[name].scope in (Scope.REQUEST, Scope.CANDIDATE)
    }


def missing_keys(participants: Iterable[Participant]) -> tuple[tuple[Participant, AnyKey], ...]:
    """Return required keys without a producer, with their consumers; sorted."""
    ordered = sorted(participants, key=attrgetter("name"))
    produced = {name for participant in ordered for name in participant.produced}
    return tuple(
        (participant, key) for participant in ordered for key, required in participant.consumed if required and key.name not in produced
    )


def resolve_subscriptions(
    participants: Iterable[Participant], help_for_missing: Callable[[AnyKey], str] = lambda _: "add an instance that produces it"
) -> Resolution:
    """Build the graph; the result does not depend on the order of the instances."""
    by_name = {participant.name: participant for participant in sorted(participants, key=attrgetter("name"))}
    producers = _producers(by_name.values())
    others: dict[str, list[Participant]] = {}  # of keys that are read from the instance named after the default type, as in llm-d
    for key_name, (key, offers) in rivals(by_name.values()).items():
        for producer in offers:
            if producer.name == key.default_producer:
                producers[key_name] = [producer]
                others[key_name] = [other for other in offers if other is not producer]
    subscriptions = tuple(_subscriptions(by_name.values(), producers))
    waits_for = {name: {edge.producer for edge in subscriptions if edge.consumer == name} for name in by_name}
    for key_name, earlier in tuple(others.items()):
        (chosen,) = producers[key_name]
        if any(_reaches(producer.name, chosen.name, waits_for) for producer in earlier):
            producers[key_name] = [chosen, *others.pop(key_name)]  # still ambiguous
        else:
            waits_for[chosen.name].update(producer.name for producer in earlier)  # the last value written counts
    ordered = toposort(waits_for)
    diagnostics = (
        *(_malformed(participant, key) for participant in by_name.values() for key in _malformed_keys(participant)),
        *(_missing(consumer, key, help_for_missing(key)) for consumer, key in missing_keys(by_name.values())),
        *_ambiguities(by_name.values(), producers),
        *(diagnostic for edge in subscriptions for diagnostic in _between(by_name[edge.producer], by_name[edge.consumer], edge.key)),
        *(_cycle([by_name[name] for name in names], _keys_between(names, subscriptions)) for names in ordered.cycles),
    )
    if diagnostics:
        return Resolution(None, diagnostics)
    read_from = {edge.producer for edge in subscriptions}
    return Resolution(
        SubscriptionGraph(
            order=tuple(name for name in ordered.order if by_name[name].subscriptions.produces),
            subscriptions=subscriptions,
            unmet=tuple(
                Need(participant.name, key.name)
                for participant in by_name.values()
                for key, required in participant.consumed
                if not required and key.name not in producers
            ),
            unread=tuple(name for name, participant in by_name.items() if participant.subscriptions.produces and name not in read_from),
        ),
        notes=tuple(_choices([edge for edge in subscriptions if edge.key in others], others, by_name)),
    )


def _reaches(start: str, goal: str, waits_for: Mapping[str, Collection[str]]) -> bool:
    seen, waiting = set[str](), {start}
    while waiting and goal not in seen:
        seen |= waiting
        waiting = {name for start in waiting for name in waits_for[start]} - seen
    return goal in seen


def _choices(
    chosen: Sequence[Subscription], others: Mapping[str, Sequence[Participant]], by_name: Mapping[str, Participant]
) -> Iterator[Diagnostic]:
    for consumer, producer in dict.fromkeys((edge.consumer, edge.producer) for edge in chosen):
        keys = [edge.key for edge in chosen if (edge.consumer, edge.producer) == (consumer, producer)]
        yield _chosen(keys, producer, sorted({rival.name for key in keys for rival in others[key]}), by_name[consumer])


def _malformed_keys(participant: Participant) -> Iterable[AnyKey]:
    keys = participant.subscriptions
    declared = {key.name: key for key in (*keys.consumes, *keys.consumes_optional, *keys.produces)}
    # `key@instance` names a producer.
    return [key for name, key in sorted(declared.items()) if not _KEY_NAME.fullmatch(name.partition("@")[0])]


def _producers(participants: Iterable[Participant]) -> dict[str, list[Participant]]:
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


def _ambiguities(participants: Iterable[Participant], producers: Mapping[str, list[Participant]]) -> Iterable[Diagnostic]:
    """Two producers of a column are an error; of another key only if no consumer names its producer."""
    readers: dict[str, list[Participant]] = {}
    for participant in participants:
        for key, _ in participant.consumed:
            readers.setdefault(key.name, []).append(participant)
    for name, every_offer in sorted(producers.items()):
        offers = [producer for producer in every_offer if not producer.produced[name].is_shared]
        shared = any(producer.produced[name].scope in (Scope.ENDPOINT, Scope.POOL) for producer in offers)
        if len(offers) > 1 and (shared or name in readers):
            yield from (_two_producers(name, offers[0], other, readers.get(name, ())) for other in offers[1:])


def _keys_between(names: tuple[str, ...], subscriptions: Iterable[Subscription]) -> list[str]:
    key_of = {(edge.consumer, edge.producer): edge.key for edge in reversed(tuple(subscriptions))}
    return [key_of[pair] for pair in zip(names, (*names[1:], names[0]), strict=True)]
