"""Keeps a copy of one collection of the API server current: list, watch, watch on, and list again where nothing else helps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from time import monotonic
from typing import Generic, TypeVar

from prometheus_client.metrics import Counter

from endpick.api import ConfigurationError, Limit, Limits
from endpick_builtin.kubernetes.client import ApiClient, ApiError, Event, JSONMapping, Page
from endpick_builtin.kubernetes.comeback import Comeback
from endpick_builtin.kubernetes.objects import MOST_RULE_PARTS
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.watch_states import TRANSITIONS, Outcome, Pauses, WatchState

T = TypeVar("T")

MOST_OBJECTS = 20_000
"""Unless `maxObjects` says otherwise."""
MOST_REWRITES = 4096
"""Of InferenceModelRewrites, whose rules are longer than what is kept of other objects."""
MANY_OBJECTS = Limit(
    "maxObjects",
    f"objects are left out: more of a collection count than maxObjects, or there are more than {MOST_REWRITES} InferenceModelRewrites; "
    "raise maxObjects, or select fewer Pods",
)
MANY_RULES = Limit(
    "maxRuleParts",
    "rules are left out: all InferenceModelRewrites together have more models and targets than maxRuleParts; raise maxRuleParts",
)
_MOST_PAGES = 1000
"""Of one list: three times as many objects as Kubernetes supports Pods. A list without an end would keep the pool as it is for ever."""
_OBJECTS_PER_PAGE = 20
"""Of `maxObjects`, for each page, where that is more."""
MANY_PAGES = Limit(
    "MOST_PAGES",
    f"a list of the API server was given up: it has more than {_MOST_PAGES} pages, and than one for each {_OBJECTS_PER_PAGE} of maxObjects "
    "(MOST_PAGES); see what answers there, or raise maxObjects",
)
FOLLOWING_LIMITS = (MANY_OBJECTS, MANY_PAGES, MANY_RULES)
"""For the `Limits` of who follows."""
_LONGEST_NAME = 253
"""As Kubernetes has it; an object of a longer name does not count."""


@dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """What to follow.

    Attributes:
        title: What messages and metrics call it.
        path: On the API server.
        read: What to keep of an object; None for an object that does not count.
        query: Selectors.
        required: Whether the pool is unknown without it; a collection that is not may be missing, or forbidden.
        only: The name of the one object that is asked for, where it is one: a server may send others all the same.
        most: So many objects are kept; 0 for the `most_objects` of `Following`.
    """

    title: str
    path: str
    read: Callable[[JSONMapping], T | None]
    query: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    only: str = ""
    most: int = 0


@dataclass(frozen=True, slots=True)
class Following:
    """What all collections of one discovery share.

    Attributes:
        client: Asks the API server.
        comeback: Notices that it takes connections again.
        random: For the jitter.
        logger: Of the instance.
        limits: Of the instance, `FOLLOWING_LIMITS` among them.
        steps: Counts the lists and watches that ended, by collection and outcome.
        watch_seconds: After which a watch is begun anew: how long silence is taken for peace.
        longest_pause_seconds: Between two attempts.
        patience: All other times.
        most_objects: That are kept of a collection.
        most_rule_parts: Models and targets that are kept of all InferenceModelRewrites together.
    """

    client: ApiClient
    comeback: Comeback
    random: Random
    logger: logging.Logger
    limits: Limits
    steps: Counter
    watch_seconds: float
    longest_pause_seconds: float
    patience: Patience
    most_objects: int = MOST_OBJECTS
    most_rule_parts: int = MOST_RULE_PARTS


class Follower(Generic[T]):
    """The copy of one collection."""

    def __init__(self, collection: Collection[T], shared: Following, changed: Callable[[], None]) -> None:
        """`changed` is called after the first list, and whenever an object has come, gone or become another."""
        self.objects: dict[str, T] = {}
        """By name."""
        self.synced = False
        """Whether the copy has been complete at least once, or is known to be unneeded."""
        self.installed = False
        """Whether the server has such a collection."""
        self.state = WatchState.LISTING
        self.title = collection.title
        self._collection = collection
        self._shared = shared
        self._changed = changed
        # What may be missing for ever is not asked for in haste.
        patience = shared.patience if collection.required else replace(shared.patience, quick_failures=0)
        self._pauses = Pauses(shared.random, patience, shared.longest_pause_seconds)
        self._version = ""
        self._heard = 0
        """Events of all watches."""
        self._short = 0
        """Watches in a row that soon ended."""
        self._quiet = 0
        """Watches in a row that brought no event."""
        self._wait_seconds = 0.0
        self._is_away = False
        """Whether the last failure was that no server answered."""
        self._trouble = ""
        self._is_partial = False
        """Whether objects were left out since the last list."""

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            ConfigurationError: the server says before the first list that the question itself is wrong.
        """
        while True:
            try:
                outcome = await self._step()
            except ApiError as problem:
                outcome = problem.outcome
                self._failed(problem)
            if self.state in (WatchState.LISTING, WatchState.WATCHING):
                self._shared.steps.labels(self._collection.title, outcome.value).inc()
            self.state = TRANSITIONS[self.state, outcome]

    async def _step(self) -> Outcome:
        if self.state is WatchState.LISTING:
            return await self._list()
        if self.state is WatchState.WATCHING:
            return await self._watch()
        if self._is_away:
            await self._shared.comeback.wait(self._wait_seconds)
        else:
            await asyncio.sleep(self._wait_seconds)
        return Outcome.ELAPSED

    async def _list(self) -> Outcome:
        collection = self._collection
        found: dict[str, T] = {}
        self._is_partial = False
        page = Page("", "")
        most_pages = max(_MOST_PAGES, self._shared.most_objects // _OBJECTS_PER_PAGE)
        for _ in range(most_pages):
            page = await self._shared.client.page(collection.path, collection.query, partial(self._keep, found), page.rest)
            if not page.rest or self._is_partial:
                break
        else:
            self._shared.limits.acted(MANY_PAGES, about=collection.path)
            raise ApiError(f"the list has more than {most_pages} pages", Outcome.MALFORMED)
        self._version = page.version
        self._recovered()
        self._become(found, installed=True)
        return Outcome.LISTED

    async def _watch(self) -> Outcome:
        collection, shared, patience = self._collection, self._shared, self._shared.patience
        seconds = max(1, round(shared.watch_seconds * shared.random.uniform(0.8, 1.0)))
        begun, heard = monotonic(), self._heard
        try:
            await shared.client.watch(collection.path, collection.query, self._version, seconds, self._apply)
        finally:
            lasted = monotonic() - begun
            is_steady = lasted > patience.steady_seconds
            self._short = 0 if is_steady else self._short + 1
            if is_steady:
                self._pauses.progressed()
        brought_too_little = self._heard == heard or self._short > patience.short_watches
        if brought_too_little and lasted < min(patience.steady_seconds, seconds / 2):
            raise ApiError("the watch ended as soon as it had begun", Outcome.BROKEN)
        if self._is_partial:
            return Outcome.SILENT  # of the objects that were left out some may have a place now
        if self._heard != heard:
            self._quiet = 0
            return Outcome.ENDED
        self._quiet = (self._quiet + 1) % patience.quiet_watches
        return Outcome.QUIET if self._quiet else Outcome.SILENT

    def _apply(self, events: list[Event]) -> None:
        self._heard += len(events)
        if self._short < self._shared.patience.short_watches:
            self._pauses.progressed()
        self._recovered()
        objects = dict(self.objects)
        for event in events:
            metadata = event.object.get("metadata")
            version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
            if isinstance(version, str) and version:
                self._version = version
            if event.type == "BOOKMARK":
                continue
            if event.type == "DELETED":
                objects.pop(_name(event.object), None)
            else:
                self._keep(objects, event.object)
        self._become(objects, installed=True)

    def _keep(self, objects: dict[str, T], item: JSONMapping) -> None:
        """Put what counts of an object among these, if there is room."""
        collection, name = self._collection, _name(item)
        if len(name) > _LONGEST_NAME or (collection.only and name != collection.only):
            return
        kept = collection.read(item)
        if kept is None:
            objects.pop(name, None)
        elif name in objects or len(objects) < (collection.most or self._shared.most_objects):
            objects[name] = kept
        else:
            self._is_partial = True
            self._shared.limits.acted(MANY_OBJECTS, about=self._collection.title)

    def _become(self, objects: dict[str, T], *, installed: bool) -> None:
        if self.synced and objects == self.objects and installed == self.installed:
            return
        self.objects, self.installed, self.synced = objects, installed, True
        self._changed()

    def _failed(self, problem: ApiError) -> None:
        """Say it once, and decide how long to wait."""
        collection, logger = self._collection, self._shared.logger
        if problem.status in (400, 422) and not self.synced:
            raise ConfigurationError(f"the API server refuses to list {collection.title}: {problem}") from problem
        optional = not collection.required and problem.status in (403, 404)
        is_absent = problem.outcome is Outcome.ABSENT
        patient = problem.outcome if problem.outcome is Outcome.EXPIRED or (optional and is_absent) else Outcome.BROKEN
        self._is_away = problem.status == 0 and problem.outcome is Outcome.BROKEN
        self._wait_seconds = self._pauses.after(patient, problem.retry_after_seconds, answered=problem.status > 0)
        if optional and (is_absent or not self.synced):
            self._become({}, installed=False)
        if problem.outcome in (Outcome.EXPIRED, Outcome.SILENT):
            logger.info("%s: listing again: %s", collection.title, problem)
        elif str(problem) != self._trouble:
            self._trouble = str(problem)
            level = logging.INFO if optional and problem.status == 404 else logging.WARNING
            logger.log(level, "%s cannot be %s, trying again: %s", collection.title, _DONE[self.state], problem)

    def _recovered(self) -> None:
        if self._trouble:
            self._trouble = ""
            self._shared.logger.info("%s are followed again", self._collection.title)


_DONE = {WatchState.LISTING: "listed", WatchState.WATCHING: "watched"}


def _name(item: JSONMapping) -> str:
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
