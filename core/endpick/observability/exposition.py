"""What `/metrics` shows: the host's own metrics, then those of each instance, told apart by labels that the host adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance


class Exposition(Collector):
    """The host's registry and those of the instances that serve now, as one.

    Every instance registers what it likes in a registry of its own; samples get the labels `plugin_name` and `plugin_type`. So two
    instances of a type never clash, nor does one that replaces another at a reload.
    """

    def __init__(self, host: Collector, instances: Callable[[], Iterable[Instance]], instruments: Instruments) -> None:
        """`instances` gives those whose metrics count now; `instruments` is told of the ones that fail to tell theirs."""
        self._host = host
        self._instances = instances
        self._instruments = instruments

    def collect(self) -> Iterator[Metric]:
        """All families as they are now, each once; called for every scrape."""
        own = {family.name: family for family in self._host.collect()}
        yield from own.values()
        told: dict[str, Metric] = {}
        for instance in self._instances():
            for family in self._families(instance):
                if family.name in own:
                    self._instruments.fault(instance, "Metrics", f"offers the metric '{family.name}', which is endpick's own")
                elif (first := told.setdefault(family.name, family)) is not family:
                    self._join(first, family, instance)
        yield from told.values()

    def _families(self, instance: Instance) -> list[Metric]:
        if instance.registry is None:
            return []
        try:
            return [_of_instance(family, instance) for family in instance.registry.collect()]
        except (Exception, SystemExit) as problem:
            self._instruments.fault(instance, "Metrics", problem)
            return []

    def _join(self, first: Metric, family: Metric, instance: Instance) -> None:
        if first.type == family.type:
            first.samples.extend(family.samples)
        else:
            problem = f"offers the metric '{family.name}' as a {family.type}, while another instance offers a {first.type}"
            self._instruments.fault(instance, "Metrics", problem)


def _of_instance(family: Metric, instance: Instance) -> Metric:
    """A copy, as a plugin may hand out the same object again, with nothing in it over which writing the page could fail."""
    copy = Metric(family.name, str(family.documentation), family.type)
    for sample in family.samples:
        labels = {name: str(value) for name, value in sample.labels.items()}
        copy.add_sample(sample.name, {**labels, "plugin_name": instance.name, "plugin_type": instance.type}, float(sample.value))
    return copy
