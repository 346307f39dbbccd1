"""The metrics of plugins beside the host's, also when one clashes or fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count

import pytest
from prometheus_client import Counter, Gauge, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from endpick.api.fast_metrics import Distributions
from endpick.serve import exposition
from endpick.serve.exposition import Exposition
from endpick.serve.registry_in_parts import RegistryInParts
from endpick.serve.text_page import page_of
from unit.scheduling.workbench import Recording, scorer_of


class Offering:
    """A collector that gives the same objects at each scrape, or raises."""

    def __init__(self, *families):
        self.families = families

    def describe(self):
        return ()

    def collect(self):
        for family in self.families:
            if isinstance(family, BaseException):
                raise family
            yield family


def plugin(name, *families):
    """An instance that offers these metrics."""
    built = scorer_of(None, name)
    if families:
        built.registry.register(Offering(*families))
    return built


def gauge(name, value, **labels):
    family = Metric(name, "A gauge.", "gauge")
    family.add_sample(name, labels, value)
    return family


@pytest.fixture
def recording():
    return Recording()


@pytest.fixture
def host():
    registry = RegistryInParts()
    Counter("host_requests", "Requests.", registry=registry).inc(7)
    return registry


def raised(problem):
    """What no collector of the host does in most tests."""
    raise problem


def page(host, recording, *instances, **limits):
    """Samples by name, as a scraper reads them."""
    text = generate_latest(Exposition(host, lambda: instances, recording, raised, **limits)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_instances_of_one_type_keep_the_same_metric_without_a_clash(host, recording):
    one, two = plugin("one"), plugin("two")
    for instance, value in ((one, 1), (two, 2)):
        Gauge("acme_size", "Size.", ["shard"], registry=instance.registry).labels("s").set(value)

    assert page(host, recording, one, two)["acme_size"] == [
        ({"shard": "s", "plugin_name": "one", "plugin_type": "test.one"}, 1.0),
        ({"shard": "s", "plugin_name": "two", "plugin_type": "test.two"}, 2.0),
    ]
    assert recording.faults == []


def test_each_scrape_tells_the_same(host, recording):
    instances = (plugin("one", gauge("acme_size", 1.0)), plugin("two", gauge("acme_size", 2.0)))
    exposition = Exposition(host, lambda: instances, recording, raised)

    assert generate_latest(exposition) == generate_latest(exposition)


def test_an_instance_that_took_anothers_place_has_its_metrics_to_itself(host, recording):
    for value in (3, 0):
        replacing = plugin("one")
        Gauge("acme_size", "Size.", registry=replacing.registry).set(value)

        assert page(host, recording, replacing)["acme_size"] == [({"plugin_name": "one", "plugin_type": "test.one"}, float(value))]


def test_no_plugin_can_pass_for_another(host, recording):
    found = page(host, recording, plugin("one", gauge("acme_size", 1.0, plugin_name="two", plugin_type="queue-scorer")))

    assert found["acme_size"] == [({"plugin_name": "one", "plugin_type": "test.one"}, 1.0)]


def test_the_hosts_names_are_the_hosts(host, recording):
    found = page(host, recording, plugin("one", gauge("host_requests", 99.0), gauge("acme_size", 1.0)))

    assert found["host_requests_total"] == [({}, 7.0)]
    assert found["acme_size"]
    assert recording.faults == [("one", "Metrics", "offers the metric 'host_requests', which is endpick's own")]


def test_one_name_with_two_meanings_keeps_the_first(host, recording):
    other = Metric("acme_size", "A counter.", "counter")
    other.add_sample("acme_size_total", {}, 5.0)
    found = page(host, recording, plugin("one", gauge("acme_size", 1.0)), plugin("two", other))

    assert [value for _, value in found["acme_size"]] == [1.0]
    assert "acme_size_total" not in found
    assert recording.faults == [("two", "Metrics", "offers the metric 'acme_size' as a counter, while another instance offers a gauge")]


@pytest.mark.parametrize(
    ("offered", "problem"),
    [
        (RuntimeError("no connection"), "RuntimeError: no connection"),
        (SystemExit(1), "SystemExit: 1"),
        (gauge("acme_size", "many"), "ValueError: could not convert string to float: 'many'"),
        ("acme_size 1", "AttributeError: 'str' object has no attribute 'samples'"),
    ],
)
def test_a_plugin_that_cannot_tell_its_metrics_hides_no_other_metrics(host, recording, offered, problem):
    found = page(host, recording, plugin("broken", offered), plugin("sound", gauge("acme_size", 1.0)))

    assert found["host_requests_total"] == [({}, 7.0)]
    assert found["acme_size"] == [({"plugin_name": "sound", "plugin_type": "test.sound"}, 1.0)]
    assert recording.faults == [("broken", "Metrics", problem)]


def test_of_a_plugin_with_samples_without_measure_none_are_shown(host, recording):
    endless = Metric("acme_requests", "One for each request.", "gauge")
    endless.samples = (Sample("acme_requests", {"id": str(number)}, 1.0) for number in count())
    pairs = [gauge(f"acme_part_{number}", 1.0) for number in range(3)]
    for family in pairs:
        family.add_sample(family.name, {"more": "yes"}, 2.0)

    found = page(
        host,
        recording,
        plugin("endless", endless),
        plugin("large", *pairs, gauge("acme_size", 1.0)),
        plugin("sound", *pairs),
        max_samples=6,
    )

    shown = {name: {labels["plugin_name"] for labels, _ in samples} for name, samples in found.items() if name.startswith("acme")}
    assert shown == {f"acme_part_{number}": {"sound"} for number in range(3)}
    problem = "ValueError: offers more than 6 samples: find the label that has too many values, or see --metrics-max-samples"
    assert recording.faults == [("endless", "Metrics", problem), ("large", "Metrics", problem)]


def test_metrics_that_hold_the_event_loop_are_late_and_shown_all_the_same(host, recording, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(exposition, "perf_counter", lambda: now[0])

    class Building(Offering):
        def collect(self):
            now[0] += 0.2  # all at once, before the first is given
            return list(super().collect())

    slow, broken, quick = plugin("slow"), plugin("broken"), plugin("quick", gauge("acme_quick", 1.0))
    slow.registry.register(Building(gauge("acme_size", 1.0), gauge("acme_part", 2.0)))
    broken.registry.register(Building(RuntimeError("no connection")))
    for instance in (slow, broken, quick):
        instance.breaker.budget_seconds = 0.05

    found = page(host, recording, slow, broken, quick)

    assert recording.lates == [("slow", "Metrics"), ("broken", "Metrics")]
    assert recording.faults == [("broken", "Metrics", "RuntimeError: no connection")]
    assert {"acme_size", "acme_part", "acme_quick"} <= found.keys()


def test_instances_without_a_registry_of_their_own_are_passed_over(host, recording):
    found = page(host, recording, replace(plugin("one"), registry=None))

    assert found.keys() == {"host_requests_total", "host_requests_created"}
    assert recording.faults == []


@pytest.mark.parametrize("spoilt", ["metric", "sample", "label"])
def test_a_name_that_no_scraper_reads_is_the_plugins_fault_and_the_page_stays_readable(host, recording, spoilt):
    bad = Metric("acme_bad", "Bad.", "gauge")
    bad.add_sample("acme_bad\nother" if spoilt == "sample" else "acme_bad", {"a\n" if spoilt == "label" else "a": "x"}, 1.0)
    if spoilt == "metric":
        bad.name = "acme bad"

    shown = page(host, recording, plugin("bad", bad), plugin("good", gauge("acme_good", 1)))

    assert "acme_good" in str(shown)
    assert "acme_bad" not in str(shown)
    assert [name for name, *_ in recording.faults] == ["bad"]


class Cancelling(Offering):
    """Cancels the task in which it is asked, if there is one."""

    def collect(self):
        task = asyncio.current_task()
        if task is not None:
            task.cancel()
        return super().collect()


@pytest.mark.asyncio
async def test_a_collector_of_metrics_finds_no_task_that_it_could_cancel(host, recording):
    cancelling = plugin("cancelling")
    cancelling.registry.register(Cancelling(gauge("acme_size", 1.0)))

    text = await asyncio.create_task(page_of(Exposition(host, lambda: (cancelling,), recording, raised)))

    assert b'acme_size{plugin_name="cancelling",plugin_type="test.cancelling"} 1.0' in text


class Text(str):
    """Fails when it is compared or written."""

    __slots__ = ()

    def fail(self, *arguments):
        raise SystemExit(1)

    __eq__ = __hash__ = replace = fail

    def __str__(self):
        return self


def test_texts_of_classes_of_their_own_keep_no_page_from_being_written(host, recording):
    family = gauge("acme_size", 1.0, shard=Text("s"))
    family.name, family.documentation = Text("acme_size"), Text("A gauge.")

    assert page(host, recording, plugin("one", family))["acme_size"] == [
        ({"shard": "s", "plugin_name": "one", "plugin_type": "test.one"}, 1.0)
    ]


@pytest.mark.asyncio
async def test_what_an_instance_shows_in_many_parts_is_copied_in_turns(host, recording):
    sizes = Distributions("sizes", "Of things.", ("kind",), range(20), (instance := plugin("a")).registry)
    for number in range(2000):
        sizes.labels(f"{number}").observe(1.0)
    copied, most = 0, 0

    async def neighbour():
        nonlocal most
        while not writing.done():
            before = copied
            await asyncio.sleep(0)
            most = max(most, copied - before)

    def counted(*given):
        nonlocal copied
        copy = yield from copy_of(*given)
        copied += len(copy.samples) if given[2] else 0  # with the labels of an instance
        return copy

    copy_of = exposition._copy_of
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exposition, "_copy_of", counted)
        writing = asyncio.ensure_future(page_of(Exposition(host, lambda: (instance,), recording, raised)))
        await neighbour()
    assert (await writing).count(b"sizes_bucket") == copied * 21 // 23 == 2000 * 21
    assert most <= 1000 + 16 * 23


@pytest.mark.asyncio
async def test_an_instance_that_fails_in_a_later_part_shows_nothing(host, recording):
    parts = [gauge("things", number, kind=f"{number}") for number in range(3000)]
    failing = plugin("a", *parts, ValueError("no"))
    text = await page_of(Exposition(host, lambda: (failing,), recording, raised))
    assert b"things" not in text
    assert b"host_requests_total 7.0" in text
    assert len(recording.faults) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("problem", [ValueError("no"), SystemExit(3), RecursionError()])
async def test_a_collector_that_a_hook_object_has_registered_and_that_fails_leaves_the_rest_of_the_page(host, recording, problem):
    host.register(Offering(gauge("hooked", 1.0), problem))
    Gauge("behind", "Registered later.", registry=host).set(2)
    told = []
    text = await page_of(Exposition(host, lambda: (plugin("a", gauge("things", 3)),), recording, told.append))
    assert told == [problem]
    assert b"hooked" not in text
    for line in (b"host_requests_total 7.0", b"behind 2.0", b'things{plugin_name="a",plugin_type="test.a"} 3.0'):
        assert line in text


@pytest.mark.asyncio
async def test_of_a_collector_of_the_host_with_samples_without_measure_none_are_shown(host, recording):
    kinds = Gauge("kinds", "By each user.", ("kind",), registry=host)
    for number in range(1001):
        kinds.labels(f"{number}").set(number)
    told = []
    assert b"kinds{" in await page_of(Exposition(host, tuple, recording, told.append, max_samples=1001))
    text = await page_of(Exposition(host, tuple, recording, told.append, max_samples=1000))
    assert b"kinds" not in text
    assert b"host_requests_total 7.0" in text
    assert [str(problem) for problem in told] == [
        "offers more than 1000 samples: find the label that has too many values, or see --metrics-max-samples"
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (gauge("a name", 1.0), "has a name that no scraper reads"),
        (gauge("sizes", "many"), "could not convert string to float"),
        (gauge("sizes", 1.0, **{"a label": "x"}), "has a name that no scraper reads"),
        ("crowd", "offers more than 1000 samples"),
    ],
)
async def test_a_collector_of_a_hook_object_that_would_make_the_page_unreadable_is_left_out(host, recording, family, reason):
    if family == "crowd":
        family = gauge("crowd", 0.0)
        for number in range(1000):
            family.add_sample("crowd", {"who": f"{number}"}, number)
    host.register(Offering(family))
    told = []
    text = await page_of(Exposition(host, tuple, recording, told.append, max_samples=1000))
    (problem,) = told
    assert reason in str(problem)
    lines = [line.split(b" ")[0] for line in text.splitlines() if not line.startswith(b"#")]
    assert lines == [b"host_requests_total", b"host_requests_created"]
