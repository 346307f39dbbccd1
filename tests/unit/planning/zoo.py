"""A handful of plugins that do nothing but declare, and a planner's view of them as installed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import dedent
from typing import ClassVar

import numpy as np
from pydantic import Field

from endpick.api import (
    Admitter,
    ConfigurationError,
    DataCollector,
    DataKey,
    DataProducer,
    EndpointDiscovery,
    Filter,
    Parameters,
    ParsedRequest,
    Parser,
    Picker,
    Plugin,
    PluginMeta,
    PollingSource,
    ProfileHandler,
    ResponseObserver,
    SaturationDetector,
    SchedulingResult,
    Scope,
    Scorer,
    Screener,
    Subscriptions,
    hookimpl,
)
from endpick.config import load_config
from endpick.diagnostics import Diagnostic, Span, render_text
from endpick.planning.plan import Plan, PlanOutcome
from endpick.planning.planner import make_plan
from endpick.plugins.discovery import Candidate

API = ">=1.0,<2"

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
    meta = PluginMeta("queue-scorer", API, QueueParameters, consumes=(QUEUE,))


class PlainScorer(_Scores, Scorer):
    meta = PluginMeta("plain-scorer", API)


class PickyParameters(Parameters):
    model: str = Field(description="Required.")


class PickyScorer(_Scores, Scorer[PickyParameters]):
    meta = PluginMeta("picky-scorer", API, PickyParameters)


class MatchParameters(Parameters):
    producer: str = Field("", description="Instance whose matches count.")


class MatchScorer(_Scores, Scorer[MatchParameters]):
    meta = PluginMeta("match-scorer", API, MatchParameters, consumes=(MATCH,))

    @classmethod
    def subscriptions(cls, parameters: MatchParameters) -> Subscriptions:
        return Subscriptions((MATCH.from_producer(parameters.producer),))


class HastyScorer(_Scores, Scorer):
    """Wants what is only known when the response is there."""

    meta = PluginMeta("hasty-scorer", API, consumes=(AFTERTHOUGHT,))


class WideScorer(_Scores, Scorer):
    """Takes a column for a value of the pool."""

    meta = PluginMeta("wide-scorer", API, consumes=(DataKey("zoo/queue", float, Scope.POOL),))


class ShoutingProducer(DataProducer):
    """Its key has a name that is none."""

    meta = PluginMeta("shouting-producer", API, produces=(DataKey("ZOO/Loud!", int, Scope.REQUEST),))

    def produce(self, request, endpoints, state):
        pass


class OrphanScorer(_Scores, Scorer):
    meta = PluginMeta("orphan-scorer", API, consumes=(ORPHAN,))


class TrustingScorer(_Scores, Scorer):
    """Its key names a default producer that does not produce it."""

    meta = PluginMeta("trusting-scorer", API, consumes=(PROMISED,))


class ExoticScorer(_Scores, Scorer):
    meta = PluginMeta("exotic-scorer", API, consumes=(EXOTIC,))


class SpiceScorer(_Scores, Scorer):
    meta = PluginMeta("spice-scorer", API, consumes_optional=(SPICE,))


class ConfusedScorer(_Scores, Scorer):
    meta = PluginMeta("confused-scorer", API)

    @classmethod
    def subscriptions(cls, parameters: Parameters) -> Subscriptions:
        raise RuntimeError("no idea")


class StubbornScorer(_Scores, Scorer):
    meta = PluginMeta("stubborn-scorer", API)

    def __init__(self, name, parameters, context):
        raise ConfigurationError("not on a Monday")


class EvenFilter(Filter):
    meta = PluginMeta("even-filter", API)

    def filter(self, request, endpoints, state):
        return np.ones(len(endpoints), dtype=bool)


class _Picks:
    def pick(self, request, scored, state):
        return scored.take([0])


class MaxScorePicker(_Picks, Picker):
    meta = PluginMeta("max-score-picker", API)


class RandomPicker(_Picks, Picker):
    meta = PluginMeta("random-picker", API)


class _Handles:
    def pick_profiles(self, request, profiles, results, state):
        return [profile for profile in profiles if profile not in results]

    def process_results(self, request, results, state):
        return SchedulingResult(next(iter(results)), results, ("127.0.0.1:1",))


class SingleProfileHandler(_Handles, ProfileHandler):
    meta = PluginMeta("single-profile-handler", API)


class EveryProfileHandler(_Handles, ProfileHandler):
    meta = PluginMeta("every-profile-handler", API)


class MetricsSource(PollingSource[Parameters, Page]):
    meta = PluginMeta("metrics-data-source", API, payload=Page)

    async def poll(self, endpoint):
        return Page()


class EventSource(PollingSource[Parameters, Event]):
    meta = PluginMeta("event-source", API, payload=Event, default_collectors=("event-collector",))

    async def poll(self, endpoint):
        return Event()


class _Collects:
    def collect(self, payload, writer):
        pass


class CoreMetrics(_Collects, DataCollector[Parameters, Page]):
    meta = PluginMeta("core-metrics-extractor", API, produces=(QUEUE,), payload=Page, default_source="metrics-data-source")


class EventCollector(_Collects, DataCollector[Parameters, Event]):
    meta = PluginMeta("event-collector", API, produces=(EXOTIC,), payload=Event, default_source="event-source")


class AnyCollector(_Collects, DataCollector):
    meta = PluginMeta("any-collector", API)


class _Produces:
    def produce(self, request, endpoints, state):
        pass


class Tokenizer(_Produces, DataProducer):
    meta = PluginMeta("tokenizer", API, produces=(TOKENS,))


class Matcher(_Produces, DataProducer):
    meta = PluginMeta("matcher", API, consumes=(TOKENS,), produces=(MATCH,))


class TailChaser(_Produces, DataProducer):
    """Together with `Matcher` a circle: it produces tokens from matches."""

    meta = PluginMeta("tail-chaser", API, consumes=(MATCH,), produces=(TOKENS,))


class FileDiscovery(EndpointDiscovery):
    meta = PluginMeta("file-discovery", API)

    async def run(self, registry):
        registry.ready()


class _Parses:
    def parse(self, path, headers, body):
        return ParsedRequest()


class OpenAIParser(_Parses, Parser):
    meta = PluginMeta("openai-parser", API)


class PassthroughParser(_Parses, Parser):
    meta = PluginMeta("passthrough-parser", API)


class CsvParser(_Parses, Parser):
    meta = PluginMeta("csv-parser", API)


class PickyParser(_Parses, Parser[PickyParameters]):
    meta = PluginMeta("picky-parser", API, PickyParameters)


class UtilizationDetector(SaturationDetector):
    meta = PluginMeta("utilization-detector", API)

    def saturation(self, endpoints):
        return 0.0


class SilentEndpointScreener(Screener):
    meta = PluginMeta("silent-endpoint-screener", API)

    def screen(self, request, endpoints):
        return endpoints


class ModestDetector(SaturationDetector):
    meta = PluginMeta("modest-detector", API)

    def saturation(self, endpoints):
        return 0.5


class Doorman(Admitter):
    meta = PluginMeta("doorman", API)

    def admit(self, request, endpoints, state):
        return None


class Diary(ResponseObserver):
    meta = PluginMeta("diary", API)


class Memoir(ResponseObserver):
    meta = PluginMeta("memoir", API, produces=(AFTERTHOUGHT,))


ALL = tuple(value for value in list(globals().values()) if isinstance(value, type) and issubclass(value, Plugin) and "meta" in vars(value))


class Auditor:
    """A hook object with an opinion and a memory."""

    told: ClassVar[list[str]] = []

    @hookimpl
    def endpick_plugin_loaded(self, record):
        self.told.append(record.type)

    @hookimpl
    def endpick_validate(self, config, report):
        report.error(("plugins", 0, "type"), "our policy wants a filter first", help="add one")


class Offerer:
    """A hook object that brings a plugin type without an entry point."""

    @hookimpl
    def endpick_register(self):
        return [OfferedScorer]


class OfferedScorer(_Scores, Scorer):
    """Not among `ALL`: only `Offerer` knows of it."""

    meta = PluginMeta("offered-scorer", API)


HOOK_OBJECTS = tuple(
    Candidate(name, 1, "zoo", "1.0", f"{__name__}:{target}", "/site/zoo-1.0.dist-info")
    for name, target in (("auditor", "Auditor"), ("offerer", "Offerer"), ("broken", "Nowhere"))
)


def candidate(plugin: type[Plugin], distribution: str = "zoo") -> Candidate:
    return Candidate(plugin.meta.type, 1, distribution, "1.0", f"{__name__}:{plugin.__name__}", f"/site/{distribution}-1.0.dist-info")


def candidates(without: Iterable[str] = ()) -> tuple[Candidate, ...]:
    return tuple(sorted(candidate(plugin) for plugin in ALL if plugin.meta.type not in set(without)))


@dataclass(frozen=True)
class Result:
    """An outcome together with the text it was made from."""

    outcome: PlanOutcome
    text: str

    @property
    def plan(self) -> Plan:
        assert self.outcome.plan is not None, render_text(self.outcome.diagnostics, {"config.yaml": self.text})
        return self.outcome.plan

    @property
    def found(self) -> list[tuple[str, str]]:
        """Each diagnostic as its code and the text that its span covers, in order."""
        return [(one.code.name, self.quote(one.span)) for one in self.outcome.diagnostics]

    def one(self, code: str) -> Diagnostic:
        (diagnostic,) = [one for one in self.outcome.diagnostics if one.code.name == code]
        return diagnostic

    def quote(self, span: Span | None) -> str:
        if span is None:
            return ""
        lines = self.text.splitlines()[span.line - 1 : span.end_line]
        lines[-1] = lines[-1][: span.end_column - 1]
        lines[0] = lines[0][span.column - 1 :]
        return "\n".join(lines)

    def announced(self, word: str) -> list[str]:
        return [one.message for one in self.plan.announcements if word in one.message]


def plan(body: str, *, version: str = "endpick/v1alpha1", without: Iterable[str] = ()) -> Result:
    """Plan a document of which only the interesting part is given; line 3 is the first of `body`."""
    text = f"apiVersion: {version}\nkind: EndpointPickerConfig\n{dedent(body).lstrip()}"
    return Result(make_plan(load_config(text=text, name="config.yaml"), candidates(without), hook_objects=HOOK_OBJECTS), text)
