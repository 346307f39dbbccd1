"""Random histories: no request is lost, ended twice or kept past its time limit, and limits hold after each step."""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unit.flow_control.queue_bench import Bench, band, settings

FLOWS = ("a", "b", "c")
PRIORITIES = (-(2**63), -1, 0, 1, 2**63 - 1)
RULES = (
    settings(ttl_seconds=5.0, no_endpoint_ttl_seconds=8.0, template=band(max_requests=6, max_bytes=60)),
    settings(max_requests=9, max_bytes=90, ttl_seconds=3.0, no_endpoint_ttl_seconds=3.0),
    settings(ttl_seconds=4.0, no_endpoint_ttl_seconds=0.0, template=band(ordering="shortest", fairness="first-come"), max_bytes=120),
    settings(ttl_seconds=6.0, no_endpoint_ttl_seconds=2.0, template=band(fairness="erratic"), bands={1: band(max_requests=2)}),
)


class Erratic:
    """Chooses right, wrong or not at all, in turn."""

    def __init__(self):
        self.calls = 0

    def __call__(self, band):
        self.calls += 1
        if self.calls % 3 == 0:
            raise RuntimeError("broken")
        return None if self.calls % 3 == 1 else next(iter(band.flows))


class Waiting(RuleBasedStateMachine):
    """The real queues next to a plain model of them."""

    @initialize(rules=st.sampled_from(RULES))
    def begin(self, rules):
        self.rules = rules
        self.load = 0
        self.room = 0
        self.bench = Bench(
            rules,
            saturation=lambda endpoints: 0.0 if self.load < self.room else 1.0,
            shortest=lambda waiting: (waiting.size_bytes,),
            erratic=Erratic(),
        )
        self.waits: dict[str, tuple[str, int, int, float]] = {}
        self.over: dict[str, str] = {}
        self.count = 0
        self.heard = 0
        self.changed_at = self.bench.now
        self.empty = False

    def settle(self):
        """Move the requests whose wait has ended."""
        for name, event in self.bench.ended[self.heard :]:
            assert name not in self.over, "told twice"
            self.waits.pop(name)
            self.over[name] = event
        self.heard = len(self.bench.ended)

    @rule(flow=st.sampled_from(FLOWS), priority=st.sampled_from(PRIORITIES), size=st.integers(0, 40))
    def arrive(self, flow, priority, size):
        self.count += 1
        name = str(self.count)
        request = self.bench.request(name, flow, priority, size)
        higher = [each for each in self.waits.values() if each[1] >= priority]
        if self.bench.controller.may_pass(request):
            assert not higher, "none of its priority or above waits"
            assert self.load < self.room
            assert not self.empty
            self.load += 1
            self.over[name] = "PASSED"
            return
        event = self.bench.offer(name, flow, priority, size)
        fits = self.fits(priority, size)
        assert (event is None) is fits
        if fits:
            self.waits[name] = flow, priority, size, self.bench.now
        else:
            self.over[name] = event.name

    def fits(self, priority, size):
        of_band = [each for each in self.waits.values() if each[1] == priority]
        limits, rules = self.rules.band(priority), self.rules
        in_all = sum(each[2] for each in self.waits.values()) + size
        return (
            (not rules.max_bytes or in_all <= rules.max_bytes)
            and (not rules.max_requests or len(self.waits) < rules.max_requests)
            and sum(each[2] for each in of_band) + size <= limits.max_bytes
            and len(of_band) < limits.max_requests
        )

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def leave(self, data):
        name = data.draw(st.sampled_from(sorted(self.waits)))
        self.bench.controller.leave(self.bench.entries[name])
        self.bench.controller.leave(self.bench.entries[name])
        del self.waits[name]
        self.over[name] = "LEFT"

    @rule()
    def attempt(self):
        before = dict(self.waits)
        went = self.bench.controller.dispatch()
        self.settle()
        chosen = [name for name in before if name not in self.waits]
        assert len(chosen) == went <= 1
        if not went:
            return
        assert not self.empty
        assert self.load < self.room, "never more than the pool has room for"
        self.load += 1
        flow, priority, _, _ = before[chosen[0]]
        rules = self.rules.band(priority)
        steady = [each[1] for each in before.values() if self.rules.band(each[1]).fairness != "erratic"]
        assert not steady or priority >= max(steady), "the highest band first, of those whose policy always chooses"
        if rules.ordering == "fcfs":
            same = [int(name) for name, each in before.items() if each[:2] == (flow, priority)]
            assert int(chosen[0]) == min(same), "a flow in the order in which it came"

    @rule(room=st.integers(0, 5))
    def change_room(self, room):
        self.room = room

    @precondition(lambda self: self.load)
    @rule()
    def complete(self):
        self.load -= 1

    @rule(endpoints=st.integers(0, 2))
    def change_pool(self, endpoints):
        self.bench.grow(endpoints)
        if (endpoints == 0) is not self.empty:
            self.empty = endpoints == 0
            self.changed_at = self.bench.now
        self.bench.controller.read_saturation()

    @rule(seconds=st.floats(0.0, 1.5))
    def pass_time(self, seconds):
        self.bench.now += seconds
        self.bench.controller.expire()
        self.settle()

    @rule(rules=st.sampled_from(RULES), builds_anew=st.booleans())
    def reload(self, rules, builds_anew):
        self.rules = rules
        if builds_anew:
            self.bench.carried.clear()
        before = len(self.waits)
        self.bench.reconfigure(rules)
        self.settle()
        assert len(self.waits) <= before
        self.bench.controller.expire()
        self.settle()

    @rule()
    def shed(self):
        before = dict(self.waits)
        assert self.bench.controller.shed() == len([each for each in before.values() if each[1] < 0])
        self.settle()
        assert all(each[1] >= 0 for each in self.waits.values())

    @invariant()
    def every_request_is_accounted_for(self):
        assert self.bench.controller.waiting == len(self.waits)
        assert len(self.waits) + len(self.over) == self.count
        assert self.bench.controller.bands.size_bytes == sum(each[2] for each in self.waits.values())

    @invariant()
    def limits_hold(self):
        bands = self.bench.controller.bands
        assert not self.rules.max_requests or bands.requests <= self.rules.max_requests
        assert not self.rules.max_bytes or bands.size_bytes <= self.rules.max_bytes
        for each in bands:
            assert len(each) <= each.rules.max_requests
            assert each.size_bytes <= each.rules.max_bytes
            assert len(each) == sum(len(flow) for flow in each.flows)

    @invariant()
    def nothing_waits_past_its_time(self):
        rules, now = self.rules, self.bench.now
        budget = rules.no_endpoint_ttl_seconds if self.empty else rules.ttl_seconds
        longest = max(rules.ttl_seconds, rules.no_endpoint_ttl_seconds)
        slack = 1.5
        for _, _, _, since in self.waits.values():
            assert not budget or now - max(since, self.changed_at) <= budget + slack
            assert not (rules.ttl_seconds and rules.no_endpoint_ttl_seconds) or now - since <= longest + slack

    def teardown(self):
        if not hasattr(self, "bench"):
            return
        for name in self.waits:
            assert self.bench.entries[name].band is not None
        self.bench.controller.shut_down()
        self.settle()
        assert not self.waits, "all end at shutdown"
        assert self.bench.controller.waiting == 0


TestWaiting = Waiting.TestCase
TestWaiting.settings = hypothesis_settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_round_robin_shares_a_band_with_a_flood():
    bench = Bench()
    for number in range(1000):
        bench.offer(f"flood-{number}", "flood")
    for number in range(10):
        bench.offer(f"trickle-{number}", "trickle")
    bench.saturation = 0.0
    gone = [name.split("-")[0] for name in bench.gone()]
    assert gone[:20].count("trickle") == 10
    assert len(gone) == 1010


def test_empty_flows_are_dropped():
    bench = Bench(settings(template=band(max_requests=20_000, fairness="first-in")), **{"first-in": lambda each: next(iter(each.flows))})
    for number in range(10_000):
        bench.offer(str(number), f"tenant-{number}")
    waiting = bench.controller.bands.band(0, 0.0)
    assert len(waiting.flows) == 10_000
    bench.saturation = 0.0
    assert bench.gone() == [str(number) for number in range(10_000)]
    assert not waiting.flows
