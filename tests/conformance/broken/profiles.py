"""Filters, scorers, pickers and profile handlers that break a rule of the kit."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from conformance.broken.register import breaks
from endpick.api import (
    KV_CACHE_USAGE,
    WAITING_QUEUE_SIZE,
    Filter,
    Picker,
    ProfileHandler,
    ProfileRunResult,
    SchedulingResult,
    Scorer,
)


@breaks("filter_answers", "`filter` answers int64 array of shape (8,) for 8 endpoints")
class Positions(Filter):
    """Answers positions instead of a mask."""

    def filter(self, request, endpoints, state):
        return np.arange(len(endpoints), dtype=np.int64)


@breaks("filter_answers", "`filter` raises KeyError: 'x-tenant'")
class Demanding(Filter):
    """Cannot do without a header."""

    def filter(self, request, endpoints, state):
        tenant = request.headers["x-tenant"]
        return endpoints.only(lambda endpoint: endpoint.labels.get("tenant") in (None, tenant))


@breaks("filter_keeps_a_subset", "`filter` answered endpoints that it was not given")
class Resurrecting(Filter):
    """Brings back whom others have dropped."""

    def filter(self, request, endpoints, state):
        return type(endpoints)(endpoints._generation)


@breaks("filter_keeps_the_order", "`filter` changes the order of the endpoints")
class Sorting(Filter):
    """Sorts by queue."""

    consumes = (WAITING_QUEUE_SIZE,)

    def filter(self, request, endpoints, state):
        return endpoints.take(np.argsort(endpoints[WAITING_QUEUE_SIZE], kind="stable"))


@breaks("filter_is_idempotent", "endpoints it has just kept, `filter` drops")
class Halving(Filter):
    """Keeps those that are not worse than the average."""

    consumes = (WAITING_QUEUE_SIZE,)

    def filter(self, request, endpoints, state):
        queue = np.nan_to_num(endpoints[WAITING_QUEUE_SIZE])
        return queue <= queue.mean()


@breaks("scorer_rates_every_endpoint", "`score` answers list, not an array")
class Listing(Scorer):
    """Answers a list."""

    def score(self, request, endpoints, state):
        return [1.0 for _ in endpoints]


@breaks("scorer_rates_every_endpoint", "`score` raises IndexError")
class Promptless(Scorer):
    """Takes for granted that there is a prompt."""

    def score(self, request, endpoints, state):
        return np.full(len(endpoints), min(len(request.prompt.texts[0]) / 1e6, 1.0))


@breaks("scorer_tolerates_missing_data", "`score` answers nan for 8 of 8 endpoints when no endpoint has reported anything")
class Trusting(Scorer):
    """Has no answer to missing data."""

    consumes = (KV_CACHE_USAGE,)

    def score(self, request, endpoints, state):
        return 1.0 - endpoints[KV_CACHE_USAGE]


@breaks("scorer_answers_finite_numbers", "when every reported number is 0")
class Dividing(Scorer):
    """Divides by the longest queue."""

    consumes = (WAITING_QUEUE_SIZE,)

    def score(self, request, endpoints, state):
        queue = endpoints[WAITING_QUEUE_SIZE]
        if np.isnan(queue).any() or len(queue) == 1:
            return np.zeros(len(endpoints))
        with np.errstate(invalid="ignore"):
            return 1.0 - queue / queue.max()


@breaks("scorer_stays_in_range", "`score` answers -")
class Penalising(Scorer):
    """Answers minus the queue."""

    consumes = (WAITING_QUEUE_SIZE,)

    def score(self, request, endpoints, state):
        return -np.nan_to_num(endpoints[WAITING_QUEUE_SIZE])


@breaks("scorer_follows_the_candidates", "`score` answers (8,) scores for 4 endpoints after a filter has dropped some")
class Oblivious(Scorer):
    """Rates the whole pool, not the candidates."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints) if len(endpoints) in (1, 10_000) else 8)


@breaks("scorer_follows_the_candidates", "the same endpoints in reverse order get other scores")
class Ranking(Scorer):
    """Prefers the endpoint that comes first."""

    def score(self, request, endpoints, state):
        return np.linspace(1.0, 0.0, len(endpoints))


@breaks("scorer_is_deterministic", "two instances with the same seed give different scores")
class Moody(Scorer):
    """Draws from the global generator."""

    def score(self, request, endpoints, state):
        return np.array([random.random() for _ in endpoints])


@breaks("scorer_rates_a_single_endpoint", "`score` raises ValueError: no spread of one at")
class Comparing(Scorer):
    """Cannot rate one alone."""

    def score(self, request, endpoints, state):
        if len(endpoints) == 1:
            raise ValueError("no spread of one")
        return np.ones(len(endpoints))


@breaks("handles_ten_thousand_endpoints", "times as long as a loop over 10000 endpoints")
class Quadratic(Scorer):
    """Compares every endpoint with every other."""

    def score(self, request, endpoints, state):
        names = sorted(endpoint.name for endpoint in endpoints)
        return np.array([1.0 - names.index(endpoint.name) / len(names) for endpoint in endpoints])


class First(Picker):
    """The first candidate: a picker without fault."""

    def pick(self, request, scored, state):
        return scored.take([0])


@breaks("picker_answers", "`pick` answers Endpoint, not Endpoints")
class PicksOne(Picker):
    """Answers a single endpoint."""

    def pick(self, request, scored, state):
        return scored.endpoints.members[0]


@breaks("picker_picks_an_endpoint", "`pick` picks none of 4 candidates")
class Choosy(Picker):
    """Wants a choice of at least five."""

    def pick(self, request, scored, state):
        return scored.take([0] if len(scored.scores) != 4 else [])


@breaks("picker_picks_candidates", "`pick` answered the same endpoint more than once")
class Insisting(Picker):
    """Picks the best twice."""

    def pick(self, request, scored, state):
        return scored.take([0, 0])


@breaks("picker_is_deterministic_under_a_seed", "two instances with the same seed pick different endpoints")
class Gambling(Picker):
    """Draws from the global generator."""

    def pick(self, request, scored, state):
        return scored.take([random.randrange(len(scored.scores))])


@breaks("picker_puts_the_best_first", "it picks number 50, 49, in this order")
class Upside(Picker):
    """Sorts the wrong way round."""

    def pick(self, request, scored, state):
        return scored.take(np.argsort(scored.scores)[:2])


@breaks("picker_does_not_change_scores", "`pick` changes the totals it is given")
class Consuming(Picker):
    """Crosses out whom it has picked."""

    def pick(self, request, scored, state):
        best = int(scored.scores.argmax())
        scored.scores[best] = -1.0
        return scored.take([best])


class Single(ProfileHandler):
    """Runs everything once: a handler without fault."""

    def pick_profiles(self, request, profiles, results, state):
        return () if results else profiles

    def process_results(self, request, results, state):
        name, run = next(iter(results.items()))
        return "nobody" if run.picked is None else SchedulingResult(name, results, tuple(e.address for e in run.picked))


@breaks("handler_ends_its_loop", "`pick_profiles` names a profile again that has run: default")
class Endless(Single):
    """Never has enough of a profile that fails."""

    def pick_profiles(self, request, profiles, results, state):
        return [name for name in profiles if name not in results or results[name].picked is None]


@breaks("handler_decides", "`process_results` raises TypeError")
class Confident(Single):
    """Does not expect a run to fail."""

    def process_results(self, request, results: Mapping[str, ProfileRunResult], state):
        name, run = next(iter(results.items()))
        return SchedulingResult(name, results, tuple(endpoint.address for endpoint in run.picked))
