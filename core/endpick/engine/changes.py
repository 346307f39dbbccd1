"""Compares two plans: their hashes, and every difference in words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, cast

from pydantic import SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from endpick.engine.plan_document import document_of
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.kinds import KINDS, Layer
from endpick.host.planning.plan import Plan, PlannedInstance

MASK = "***"
UNSET = "unset"

_SECRET = re.compile(r"(passw(or)?d|secret|credentials?|authorization|token|api[-_]?key|private[-_]?key)$", re.IGNORECASE)
_USER_OF_URL = re.compile(r"(?<=://)[^/?#\s]*@")
_LONGEST_VALUE = 80

# Derived from other fields, or about places in the file or the environment.
_LEFT_OUT = {"version", "config", "instances", "profiles", "subscriptions", "announcements", "sources", "on_request", "hooks"}
_INSTANCE_FIELDS = {"type", "distribution", "version", "on_fault"}
_ROUTING_LAYERS = {Layer.PARSING, Layer.REQUEST_HEADERS, Layer.CANDIDATES, Layer.PRODUCTION, Layer.SCHEDULING}


class ChangeKind(StrEnum):
    """The subject of a change, in `Change.kind`."""

    PROFILE = "profile"  # added or removed as a whole
    MEMBER = "member"  # of a profile
    WEIGHT = "weight"
    ORDER = "order"
    ROLE = "role"  # picker, handler, discovery and other roles with a single instance
    INSTANCE = "instance"  # added or removed, and named by no profile or role
    TYPE = "type"
    PARAMETER = "parameter"
    ON_FAULT = "on-fault"
    VERSION = "version"
    COLLECTION = "collection"
    SETTING = "setting"  # flow control, priorities, model names


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two plans; `str()` is a sentence.

    Attributes:
        subject: Instance, profile, role or section; several instances of one distribution are separated by commas.
        old: None if the subject was added. Secrets are masked.
        new: None if the subject was removed.
        routes: True if requests may go to other endpoints; False for data collection, admission and queueing only.
        name: Of a parameter or setting; empty if the subject is enough.
        profile: Name of the scheduling profile, if the change is in one.
    """

    kind: ChangeKind
    subject: str
    old: str | None
    new: str | None
    routes: bool
    name: str = ""
    profile: str = ""

    def __str__(self) -> str:
        if self.old is None:
            members = f": {self.new}" if self.kind is ChangeKind.PROFILE else ""
            return f"{self.subject} added{self.profile and f' to profile {self.profile}'}{members}"
        if self.new is None:
            return f"{self.subject} removed{self.profile and f' from profile {self.profile}'}"
        subject = f"{self.subject}: {self.name}" if self.name else self.subject
        values = "changed" if self.old == self.new else f"{self.old} → {self.new}"
        return f"{subject} {values}{self.profile and f' in profile {self.profile}'}"


def plan_hash(plan: Plan) -> str:
    """Return 12 hexadecimal digits that are equal for plans with the same behaviour.

    Comments, line numbers and the name of the file do not count.
    """
    # With secrets: another password is another configuration.
    text = json.dumps(_facts(plan), sort_keys=True, separators=(",", ":"), default=lambda secret: str(secret.get_secret_value()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def changes(old: Plan, new: Plan) -> tuple[Change, ...]:
    """Return every difference, changes of routing first; none only if the hashes are equal."""
    comparison = _Comparison(_facts(old), _facts(new), _routing(old) | _routing(new))
    return tuple(sorted(comparison.all(), key=lambda change: not change.routes))


def parameters_of(instance: PlannedInstance) -> dict[str, object]:
    """Return the parameters of an instance with defaults, as JSON; secrets are masked."""
    return cast("dict[str, object]", masked(_parameters(instance)))


_Facts = dict[str, Any]


def _facts(plan: Plan) -> _Facts:
    document = document_of(plan)
    return {
        **document.model_dump(mode="json", by_alias=True, exclude=_LEFT_OUT),
        "instances": {
            planned.name: {
                **shown.model_dump(mode="json", by_alias=True, include=_INSTANCE_FIELDS),
                "parameters": _parameters(planned),
            }
            for planned, shown in zip(plan.instances, document.instances, strict=True)
        },
        "profiles": {
            profile.name: {
                "filters": list(profile.filters),
                "scorers": {scorer.instance: scorer.weight for scorer in profile.scorers},
                "scorerOrder": [scorer.instance for scorer in profile.scorers],
                "picker": profile.picker,
            }
            for profile in plan.profiles
        },
        "profileOrder": [profile.name for profile in plan.profiles],
        "sources": {source.instance: sorted(source.collectors) for source in plan.sources},
        "onRequest": {KINDS[kind].noun: list(names) for kind, names in plan.on_request.items()},
        "objectives": dict(plan.objectives),
        "models": [[list(rule.models), [[target.model, target.weight] for target in rule.targets]] for rule in plan.models],
        "propagatesPriority": plan.propagates_priority,
    }


def _parameters(instance: PlannedInstance) -> dict[str, object]:
    try:
        return cast("dict[str, object]", _plain(instance.parameters.model_dump(by_alias=True)))
    except PLUGIN_ERRORS:  # a serialiser of the plugin's own
        return cast("dict[str, object]", _plain(instance.place.block()))


def _plain(value: object) -> object:
    """Return a value as JSON with secrets; sets are sorted, as their order differs by process."""
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int() | float() | str() | SecretStr() | SecretBytes():
            return value
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case set() | frozenset():
            return sorted(map(_plain, value), key=repr)
        case list() | tuple():
            return list(map(_plain, value))
    return to_jsonable_python(value, fallback=lambda unknown: type(unknown).__qualname__)


def masked(value: object, name: str = "") -> object:
    """Replace the secrets in JSON by `***`; `name` is the key of the value."""
    match value:
        case SecretStr() | SecretBytes():
            return MASK
        case str():
            return MASK if value and _SECRET.search(name) else _USER_OF_URL.sub(f"{MASK}@", value)
        case dict():
            return {key: masked(item, str(key)) for key, item in value.items()}
        case list():
            return [masked(item, name) for item in value]
    return value


def _routing(plan: Plan) -> set[str]:
    of_kinds = {planned.name for planned in plan.instances if any(KINDS[kind].layer in _ROUTING_LAYERS for kind in planned.kinds)}
    return of_kinds | ({plan.discovery} if plan.discovery else set())


_ROLES = {"handler": True, "discovery": True, "detector": False}


class _Comparison:
    def __init__(self, old: _Facts, new: _Facts, routing: set[str]) -> None:
        self._old = old
        self._new = new
        self._routing = routing

    def all(self) -> Iterator[Change]:
        yield from self._profiles()
        yield from self._roles()
        yield from self._instances()
        yield from self._collection()
        yield from self._settings()

    def _profiles(self) -> Iterator[Change]:
        old, new = self._old["profiles"], self._new["profiles"]
        for name in _either(old, new):
            if name not in old or name not in new:
                before, after = (", ".join((*_members(plan[name]), plan[name]["picker"])) if name in plan else None for plan in (old, new))
                yield Change(ChangeKind.PROFILE, f"profile {name}", before, after, routes=True)
            else:
                yield from self._profile(name, old[name], new[name])
        yield from _order("profiles", self._old["profileOrder"], self._new["profileOrder"], routes=True)

    def _profile(self, name: str, old: _Facts, new: _Facts) -> Iterator[Change]:
        weights, reweighed = old["scorers"], new["scorers"]
        for member in _either(_members(old), _members(new)):
            before, after = _part(old, member), _part(new, member)
            if before != after:
                yield Change(ChangeKind.MEMBER, member, before, after, routes=True, profile=name)
            elif weights.get(member) != reweighed.get(member):
                before, after = _shown(weights[member]), _shown(reweighed[member])
                yield Change(ChangeKind.WEIGHT, member, before, after, routes=True, name="weight", profile=name)
        if old["picker"] != new["picker"]:
            yield Change(ChangeKind.ROLE, "picker", old["picker"], new["picker"], routes=True, profile=name)
        yield from _order("filters", old["filters"], new["filters"], routes=True, profile=name)
        # Scores are added up, in any order.
        yield from _order("scorers", old["scorerOrder"], new["scorerOrder"], routes=False, profile=name)

    def _roles(self) -> Iterator[Change]:
        for role, routes in _ROLES.items():
            old, new = self._old[role], self._new[role]
            if old != new:
                yield Change(ChangeKind.ROLE, role, old or "none", new or "none", routes=routes)
        old, new = (", ".join(facts["parsers"]) or "none" for facts in (self._old, self._new))
        if old != new:
            yield Change(ChangeKind.ROLE, "parsers", old, new, routes=True)

    def _instances(self) -> Iterator[Change]:
        old, new = self._old["instances"], self._new["instances"]
        moved = _placed(self._old) ^ _placed(self._new)  # reported with the profile or role
        upgraded: dict[tuple[str, str], list[str]] = {}
        for name in _either(old, new):
            before, after = old.get(name), new.get(name)
            if before is None or after is None:
                if name not in moved:
                    was, now = (None if facts is None else facts["type"] for facts in (before, after))
                    yield Change(ChangeKind.INSTANCE, name, was, now, routes=name in self._routing)
            elif before["type"] != after["type"]:
                yield Change(ChangeKind.TYPE, name, before["type"], after["type"], routes=name in self._routing, name="type")
            else:
                yield from self._instance(name, before, after)
                if _origin(before) != _origin(after):
                    upgraded.setdefault((_origin(before), _origin(after)), []).append(name)
        for (was, now), names in upgraded.items():
            distribution, _, version = was.rpartition(" ")
            is_same = distribution == now.rpartition(" ")[0]
            yield Change(
                ChangeKind.VERSION,
                ", ".join(names),
                version if is_same else was,
                now.rpartition(" ")[2] if is_same else now,
                routes=not self._routing.isdisjoint(names),
                name=distribution if is_same else "from",
            )

    def _instance(self, name: str, old: _Facts, new: _Facts) -> Iterator[Change]:
        routes = name in self._routing
        for parameter, before, after in _differences(old["parameters"], new["parameters"]):
            yield Change(ChangeKind.PARAMETER, name, before, after, routes=routes, name=parameter)
        if old["onFault"] != new["onFault"]:
            yield Change(ChangeKind.ON_FAULT, name, old["onFault"], new["onFault"], routes=routes, name="onFault")

    def _collection(self) -> Iterator[Change]:
        in_both = self._old["instances"].keys() & self._new["instances"].keys()
        old, new = self._old["sources"], self._new["sources"]
        for source in _either(old, new):
            before, after = (", ".join(collectors.get(source, ())) or "none" for collectors in (old, new))
            if source in in_both and before != after:
                yield Change(ChangeKind.COLLECTION, source, before, after, routes=False, name="collectors")

    def _settings(self) -> Iterator[Change]:
        for noun in _either(self._old["onRequest"], self._new["onRequest"]):
            before, after = (facts["onRequest"].get(noun, []) for facts in (self._old, self._new))
            yield from _order(f"{noun}s", before, after, routes=bool(self._routing & set(after)))
        flow_control = [facts["flowControl"] for facts in (self._old, self._new)]
        if None in flow_control and flow_control != [None, None]:
            before, after = ("off" if settings is None else "on" for settings in flow_control)
            yield Change(ChangeKind.SETTING, "flowControl", before, after, routes=False)
        elif flow_control != [None, None]:
            yield from self._differing_settings("flowControl", *flow_control, routes=False)
        yield from self._differing_settings("priority of objective", self._old["objectives"], self._new["objectives"], routes=False)
        for name, routes in (("models", True), ("propagatesPriority", False)):
            if self._old[name] != self._new[name]:
                yield Change(ChangeKind.SETTING, name, _shown(self._old[name]), _shown(self._new[name]), routes=routes)

    def _differing_settings(self, section: str, old: _Facts, new: _Facts, *, routes: bool) -> Iterator[Change]:
        for name, before, after in _differences(old, new):
            yield Change(ChangeKind.SETTING, section, before, after, routes=routes, name=name)


def _either(old: Iterable[str], new: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys((*old, *new))


def _members(profile: _Facts) -> Sequence[str]:
    return [*profile["filters"], *profile["scorers"]]


def _part(profile: _Facts, instance: str) -> str | None:
    parts = [part for part in ("filter", "scorer") if instance in profile[f"{part}s"]]
    return " and ".join(parts) or None


def _placed(facts: _Facts) -> set[str | None]:
    members = (name for profile in facts["profiles"].values() for name in (*_members(profile), profile["picker"]))
    return {*members, *facts["parsers"], *(facts[role] for role in _ROLES)}


def _origin(instance: _Facts) -> str:
    return f"{instance['distribution']} {instance['version']}"


def _order(subject: str, old: Sequence[str], new: Sequence[str], *, routes: bool, profile: str = "") -> Iterator[Change]:
    before, after = [name for name in old if name in new], [name for name in new if name in old]
    if before != after:
        yield Change(ChangeKind.ORDER, subject, ", ".join(before), ", ".join(after), routes=routes, name="order", profile=profile)


def _differences(old: object, new: object, path: str = "", name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the path, old and new value of each difference, also within nested blocks."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in _either(old, new):
            yield from _differences(old.get(key, _NOTHING), new.get(key, _NOTHING), f"{path}.{key}".lstrip("."), key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}[{index}]", name)
    elif old != new:
        yield path, _shown(old, name), _shown(new, name)


_NOTHING = object()


def _shown(value: object, name: str = "") -> str:
    if value is _NOTHING or value is None:
        return UNSET
    hidden = masked(value, name)
    text = hidden if isinstance(hidden, str) else f"{hidden:g}" if isinstance(hidden, float) else json.dumps(hidden, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"
