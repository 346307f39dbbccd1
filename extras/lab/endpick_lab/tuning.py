"""Searches the weights and parameters of a configuration that serve a trace best."""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.util import load_yaml_guess_indent

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick_lab.compare import Scenario, worker_pool
from endpick_lab.figures import Figures, figures_of
from endpick_lab.run import run

OBJECTIVES: Final[Mapping[str, tuple[str, str]]] = {
    f"{name}-{statistic}": (f"{name}_seconds", statistic) for name in ("ttft", "tpot", "e2e") for statistic in ("mean", "p50", "p90", "p99")
}
HELD_OUT_SEEDS: Final = 5
_T_95: Final = 2.776  # of Student's distribution with four degrees of freedom
_MOST_WEIGHT: Final = 10.0
_SEARCHED: Final = (0.0, 0.5)
_HELD_OUT: Final = (0.5, 1.0)
_FAILURE_COST: Final = 10.0  # a failed request counts as much as this times the time of a served one
_RANGE = re.compile(r"([\w.-]+)\.(\w+)=([-+.\deE]+)\.\.([-+.\deE]+)")
_DIGITS: Final = 3


class TuningError(ValueError):
    """Raised if a configuration cannot be tuned; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A number of the document: the weight of a scorer in a profile, or a parameter of a plugin."""

    name: str
    low: float
    high: float
    path: tuple[str | int, ...]
    is_integer: bool = False


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of a search.

    Attributes:
        text: The document with the best values; other lines are as they were.
        ratio: Objective on the held-out half, divided by that of the old document; with its 95 % interval.
    """

    text: str
    values: Mapping[str, float]
    searched: float
    ratio: float
    low: float
    high: float


class Document:
    """A configuration whose numbers can be replaced, comments kept."""

    def __init__(self, text: str) -> None:
        """`text` is a configuration without errors."""
        self._text = text
        self._yaml = YAML()
        self._yaml.preserve_quotes = True
        self._yaml.width = 4096
        self._data, indent, offset = load_yaml_guess_indent(text, yaml=self._yaml)
        self._yaml.indent(mapping=indent if indent and offset is None else 2, sequence=(offset or 0) + 2, offset=offset or 0)

    def weights(self) -> Iterator[Dimension]:
        """Yield the weight of each scorer in profiles that have several."""
        plan = make_plan(load_config(text=self._text), discover()).plan
        assert plan is not None
        scorers = {profile.name: [scorer.instance for scorer in profile.scorers] for profile in plan.profiles}
        for number, profile in enumerate(self._data.get("schedulingProfiles") or ()):
            named = scorers.get(profile["name"], [])
            for position, plugin in enumerate(profile.get("plugins") or () if len(named) > 1 else ()):
                if plugin["pluginRef"] in named:
                    path = ("schedulingProfiles", number, "plugins", position, "weight")
                    yield Dimension(f"{profile['name']}/{plugin['pluginRef']}", 0.0, _MOST_WEIGHT, path)

    def parameter(self, text: str) -> Dimension:
        """Parse `PLUGIN.PARAMETER=LOW..HIGH`; raises TuningError."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise TuningError(f"'{text}' is not PLUGIN.PARAMETER=LOW..HIGH, such as load-aware-scorer.threshold=1..256")
        low, high = float(match[3]), float(match[4])
        if not low < high:
            raise TuningError(f"the range of {match[1]}.{match[2]} is empty: {match[3]} is not less than {match[4]}")
        for number, plugin in enumerate(self._data.get("plugins") or ()):
            if match[1] in (plugin.get("name"), plugin["type"]):
                path = ("plugins", number, "parameters", match[2])
                return Dimension(f"{match[1]}.{match[2]}", low, high, path, is_integer="." not in match[3] + match[4])
        raise TuningError(f"the document has no plugin '{match[1]}'")

    def with_values(self, values: Mapping[Dimension, float]) -> str:
        """Return the text with these numbers replaced."""
        document = Document(self._text)
        for dimension, value in values.items():
            *parents, last = dimension.path
            part = document._data
            for name in parents:
                if isinstance(part, CommentedMap) and name not in part:
                    part[name] = CommentedMap()
                part = part[name]
            part[last] = int(value) if dimension.is_integer else round(value, _DIGITS)
        stream = io.StringIO()
        document._yaml.dump(document._data, stream)
        return stream.getvalue()


def tune(
    document: Document, dimensions: Sequence[Dimension], scenario: Scenario, objective: str, trials: int, progress: Callable[[int], None]
) -> Tuned:
    """Search on the first half of the trace, and judge on the second half. Raises TuningError, OSError, TraceError, ImportError."""
    import optuna  # noqa: PLC0415 - optional

    if not dimensions:
        raise TuningError("there is nothing to vary: no profile has several scorers, and no parameter was named")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=scenario.seed))
    old = document.with_values({})
    with worker_pool() as pool:
        (before,) = _costs(pool, [(old, replace(scenario, part=_SEARCHED))], objective)
        if not math.isfinite(before):
            raise TuningError("the configuration cannot serve the load of the first half; scale it down with --rate-scale")
        known = {dimension.name: _present(document, dimension) for dimension in dimensions}
        study.enqueue_trial({name: value for name, value in known.items() if value is not None})
        for start in range(0, trials, _BATCH):
            asked = [study.ask() for _ in range(min(_BATCH, trials - start))]
            texts = [document.with_values({dimension: _suggest(trial, dimension) for dimension in dimensions}) for trial in asked]
            found = _costs(pool, [(text, replace(scenario, part=_SEARCHED)) for text in texts], objective)
            for trial, cost in zip(asked, found, strict=True):
                study.tell(trial, cost if math.isfinite(cost) else before * _FAILURE_COST)
            progress(start + len(asked))
        best = {dimension: float(study.best_params[dimension.name]) for dimension in dimensions}
        text = document.with_values(best)
        held_out = [replace(scenario, part=_HELD_OUT, seed=scenario.seed + 1 + number) for number in range(HELD_OUT_SEEDS)]
        costs = _costs(pool, [(candidate, part) for part in held_out for candidate in (old, text)], objective)
    logs = [math.log(new / former) for former, new in zip(costs[::2], costs[1::2], strict=True)]
    error = _T_95 * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    values = {dimension.name: value for dimension, value in best.items()}
    return Tuned(text, values, study.best_value / before, math.exp(mean), math.exp(mean - error), math.exp(mean + error))


_BATCH: Final = 4


def _present(document: Document, dimension: Dimension) -> float | None:
    part = document._data
    for name in dimension.path:
        try:
            part = part[name]
        except (KeyError, IndexError, TypeError):
            return 1.0 if dimension.path[-1] == "weight" else None
    return float(part)


def _suggest(trial: object, dimension: Dimension) -> float:
    if dimension.is_integer:
        return float(trial.suggest_int(dimension.name, int(dimension.low), int(dimension.high)))  # type: ignore[attr-defined]
    return float(trial.suggest_float(dimension.name, dimension.low, dimension.high))  # type: ignore[attr-defined]


def _costs(pool: ProcessPoolExecutor, jobs: Sequence[tuple[str, Scenario]], objective: str) -> list[float]:
    return list(pool.map(_cost, *zip(*((text, scenario, objective) for text, scenario in jobs), strict=True)))


def _cost(text: str, scenario: Scenario, objective: str) -> float:
    """Runs in a worker. Infinite if the load cannot be served, or the document is invalid."""
    logging.disable(logging.WARNING)
    plan = make_plan(load_config(text=text), discover()).plan
    if plan is None:
        return math.inf
    requests, pool = scenario.load()
    return cost_of(figures_of("", run(plan, requests, pool, scenario.seed)), objective)


def cost_of(figures: Figures, objective: str) -> float:
    """Return the objective, raised for failed requests; infinite if the load cannot be served."""
    group, statistic = OBJECTIVES[objective]
    times = figures[group]  # type: ignore[literal-required]
    return math.inf if times is None else float(times[statistic]) * (1 + _FAILURE_COST * figures["failed"] / figures["requests"])
