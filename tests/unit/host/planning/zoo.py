"""A handful of plugins that do nothing but declare, and a planner's view of them as installed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import Field

from endpick.api import (
    Admitter,
    CandidateFilter,
    ConfigurationError,
    DataCollector,
    DataKey,
    DataProducer,
    Filter,
    Parameters,
    ParsedRequest,
    Parser,
    Picker,
    Plugin,
    PollingSource,
    ProfileHandler,
    ResponseObserver,
    SaturationDetector,
    SchedulingResult,
    Scope,
    Scorer,
    Subscriptions,
    hookimpl,
)
from endpick.api.discovery import EndpointDiscovery
from endpick.host.discovery import Candidate
from endpick_kubernetes.discovery import KubernetesDiscoveryParameters

QUEUE = DataKey("zoo/queue", float, default_producer="core-metrics-extractor")
TOKENS = DataKey("zoo/tokens", int, Scope.REQUEST, default_producer="tokenizer")
MATCH = DataKey("zoo/match", float, Scope.CANDIDATE, default_producer="matcher")
ORPHAN = DataKey("zoo/orphan", float)
EXOTIC = DataKey("zoo/exotic", float)
AFTERTHOUGHT = DataKey("zoo/afterthought", int, Scope.REQUEST)
SPICE = DataKey("zoo/spice", float)
PROMISED = DataKey("zoo/promised", int, Scope.REQUEST, default_producer="tokenizer")


class Page:
    """What the metrics source delivers."""


class Event:
    """What the event source delivers."""


class _Scores:
    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))


class QueueParameters(Parameters):
    cap: int = Field(128, gt=0, description="Queue length that scores zero.")


class QueueScorer(_Scores, Scorer[QueueParameters]):
    plugin_type = "queue-scorer"
    consumes = (QUEUE,)


class PlainScorer(_Scores, Scorer):
    plugin_type = "plain-scorer"


class PickyParameters(Parameters):
    model: str = Field(description="Required.")


class PickyScorer(_Scores, Scorer[PickyParameters]):
    plugin_type = "picky-scorer"


class MatchParameters(Parameters):
    producer: str = Field("", description="Instance whose matches count.")


class MatchScorer(_Scores, Scorer[MatchParameters]):
    plugin_type = "match-scorer"
    consumes = (MATCH,)

    @classmethod
    def subscriptions(cls, parameters: MatchParameters) -> Subscriptions:
        return Subscriptions((MATCH.from_producer(parameters.producer),))


class HastyScorer(_Scores, Scorer):
    """Wants what is only known when the response is there."""

    plugin_type = "hasty-scorer"
    consumes = (AFTERTHOUGHT,)


class WideScorer(_Scores, Scorer):
    """Takes a column for a value of the pool."""

    plugin_type = "wide-scorer"
    consumes = (DataKey("zoo/queue", float, Scope.POOL),)


class ShoutingProducer(DataProducer):
    """Its key has a name that is none."""

    plugin_type = "shouting-producer"
    produces = (DataKey("ZOO/Loud!", int, Scope.REQUEST),)

    def produce(self, request, endpoints, state):
        pass


class OrphanScorer(_Scores, Scorer):
    plugin_type = "orphan-scorer"
    consumes = (ORPHAN,)


class TrustingScorer(_Scores, Scorer):
    """Its key names a default producer that does not produce it."""

    plugin_type = "trusting-scorer"
    consumes = (PROMISED,)


class ExoticScorer(_Scores, Scorer):
    plugin_type = "exotic-scorer"
    consumes = (EXOTIC,)


class SpiceScorer(_Scores, Scorer):
    plugin_type = "spice-scorer"
    consumes_optional = (SPICE,)


class ConfusedScorer(_Scores, Scorer):
    plugin_type = "confused-scorer"

    @classmethod
    def subscriptions(cls, parameters: Parameters) -> Subscriptions:
        raise RuntimeError("no idea")


class StubbornScorer(_Scores, Scorer):
    plugin_type = "stubborn-scorer"

    def __init__(self, name, parameters, context):
        raise ConfigurationError("not on a Monday")


class EvenFilter(Filter):
    plugin_type = "even-filter"

    def filter(self, request, endpoints, state):
        return np.ones(len(endpoints), dtype=bool)


class _Picks:
    def pick(self, request, scored, state):
        return scored.take([0])


class MaxScorePicker(_Picks, Picker):
    plugin_type = "max-score-picker"


class RandomPicker(_Picks, Picker):
    plugin_type = "random-picker"


class _Handles:
    def pick_profiles(self, request, profiles, results, state):
        return [profile for profile in profiles if profile not in results]

    def process_results(self, request, results, state):
        return SchedulingResult(next(iter(results)), results, ("127.0.0.1:1",))


class SingleProfileHandler(_Handles, ProfileHandler):
    plugin_type = "single-profile-handler"
    most_profiles = 1


class EveryProfileHandler(_Handles, ProfileHandler):
    plugin_type = "every-profile-handler"


class TwoProfileHandler(_Handles, ProfileHandler):
    plugin_type = "two-profile-handler"
    most_profiles = 2

    @classmethod
    def required_profiles(cls, parameters):
        return ("prefill", "decode")


class ForgetfulProfileHandler(_Handles, ProfileHandler):
    plugin_type = "forgetful-profile-handler"

    @classmethod
    def required_profiles(cls, parameters):
        raise RuntimeError("no idea")


class MetricsSource(PollingSource[Parameters, Page]):
    plugin_type = "metrics-data-source"

    async def poll(self, endpoint):
        return Page()


class EventSource(PollingSource[Parameters, Event]):
    plugin_type = "event-source"
    default_collectors = ("event-collector",)

    async def poll(self, endpoint):
        return Event()


class _Collects:
    def collect(self, payload, writer):
        pass


class CoreMetrics(_Collects, DataCollector[Parameters, Page]):
    plugin_type = "core-metrics-extractor"
    produces = (QUEUE,)
    default_source = "metrics-data-source"


class EventCollector(_Collects, DataCollector[Parameters, Event]):
    plugin_type = "event-collector"
    produces = (EXOTIC,)
    default_source = "event-source"


class AnyCollector(_Collects, DataCollector):
    plugin_type = "any-collector"


class _Produces:
    def produce(self, request, endpoints, state):
        pass


class Tokenizer(_Produces, DataProducer):
    plugin_type = "tokenizer"
    produces = (TOKENS,)


class Matcher(_Produces, DataProducer):
    plugin_type = "matcher"
    consumes = (TOKENS,)
    produces = (MATCH,)


class TailChaser(_Produces, DataProducer):
    """Together with `Matcher` a circle: it produces tokens from matches."""

    plugin_type = "tail-chaser"
    consumes = (MATCH,)
    produces = (TOKENS,)


class FileDiscovery(EndpointDiscovery):
    plugin_type = "file-discovery"

    async def run(self, registry):
        registry.ready()


class PoolDiscovery(EndpointDiscovery[KubernetesDiscoveryParameters]):
    plugin_type = "kubernetes-discovery"

    async def run(self, registry):
        registry.ready()


class _Parses:
    def parse(self, path, headers, body):
        return ParsedRequest()


class OpenAIParser(_Parses, Parser):
    plugin_type = "openai-parser"
    claims = ("/chat/completions",)


class PassthroughParser(_Parses, Parser):
    plugin_type = "passthrough-parser"


class CsvParser(_Parses, Parser):
    plugin_type = "csv-parser"
    claims = ("/csv",)


class PickyParser(_Parses, Parser[PickyParameters]):
    plugin_type = "picky-parser"


class UtilizationDetector(SaturationDetector):
    plugin_type = "utilization-detector"

    def saturation(self, endpoints):
        return 0.0


class EndpointHealth(CandidateFilter):
    plugin_type = "endpoint-health"

    def filter_candidates(self, request, endpoints):
        return endpoints


class ModestDetector(SaturationDetector):
    plugin_type = "modest-detector"

    def saturation(self, endpoints):
        return 0.5


class Doorman(Admitter):
    plugin_type = "doorman"

    def admit(self, request, endpoints, state):
        return None


class Diary(ResponseObserver):
    plugin_type = "diary"


class Memoir(ResponseObserver):
    plugin_type = "memoir"
    produces = (AFTERTHOUGHT,)


ALL = tuple(
    value for value in list(globals().values()) if isinstance(value, type) and issubclass(value, Plugin) and "plugin_type" in vars(value)
)


class Auditor:
    """A hook object with an opinion."""

    @hookimpl
    def endpick_validate(self, config, report):
        report.error(("plugins", 0, "type"), "our policy wants a filter first", help="add one")


HOOK_OBJECTS = {
    name: Candidate(name, 1, "zoo", "1.0", f"{__name__}:{target}", "/site/zoo-1.0.dist-info")
    for name, target in (("auditor", "Auditor"), ("broken", "Nowhere"))
}


def candidate(plugin: type[Plugin], distribution: str = "zoo") -> Candidate:
    return Candidate(plugin.plugin_type, 1, distribution, "1.0", f"{__name__}:{plugin.__name__}", f"/site/{distribution}-1.0.dist-info")


def candidates(without: Iterable[str] = ()) -> tuple[Candidate, ...]:
    return tuple(sorted(candidate(plugin) for plugin in ALL if plugin.plugin_type not in set(without)))
