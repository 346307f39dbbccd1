"""When a lease may be taken, whatever the clocks of other replicas say, and that two replicas never lead at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.kubernetes.leases import TRANSITIONS, Attempt, Lease, Observed, Role, claim, lease_name, read_lease

SECONDS = 15


def lease(holder: str, renewed: str = "2026-08-22T00:00:00.000000Z", seconds: int = SECONDS) -> Lease:
    return Lease("7", holder, seconds, 3, "2026-08-21T00:00:00.000000Z", renewed)


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z", "no time at all", ""])
def test_only_the_time_since_it_was_seen_to_change_counts(renewed):
    observed = Observed()
    observed.see(lease("other", renewed), 100.0)
    observed.see(lease("other", renewed), 114.9)
    assert not observed.may_be_taken("me", 114.9)
    assert observed.may_be_taken("me", 115.0)
    observed.see(lease("other", renewed + "1"), 115.0)
    assert not observed.may_be_taken("me", 129.9)


@pytest.mark.parametrize("seen", [None, lease(""), lease("me"), lease("other", seconds=0)])
def test_one_that_is_not_there_not_held_or_ours_may_be_taken_at_once(seen):
    observed = Observed()
    observed.see(seen, 100.0)
    assert observed.may_be_taken("me", 100.0)


@pytest.mark.parametrize("number", [2**64 - 1, 2**31 - 1, -1, "3", 3.5, None])
def test_numbers_that_kubernetes_cannot_hold_count_as_none(number):
    read = read_lease({"spec": {"leaseTransitions": number, "leaseDurationSeconds": number}})
    assert (read.transitions, read.seconds) == (0, 0)
    assert claim("l", "models", "me", SECONDS, read)["spec"]["leaseTransitions"] == 1


def test_what_is_claimed_is_what_is_read():
    taken = claim("l", "models", "me", SECONDS, lease("other"))
    read = read_lease({**taken, "metadata": {"resourceVersion": "8"}})
    assert (read.holder, read.seconds, read.transitions) == ("me", SECONDS, 4)
    assert read.acquired == read.renewed
    again = read_lease({**claim("l", "models", "me", SECONDS, read), "metadata": {"resourceVersion": "9"}})
    assert (again.acquired, again.transitions) == (read.acquired, 4)
    assert taken["metadata"] == {"name": "l", "namespace": "models", "resourceVersion": "7"}
    assert "holderIdentity" not in claim("l", "models", "", 1, read)["spec"], "the API server takes none that is empty"
    assert "resourceVersion" not in claim("l", "models", "me", SECONDS, None)["metadata"]


@pytest.mark.parametrize("item", [{}, {"spec": None, "metadata": 5}, {"spec": {"holderIdentity": 1, "leaseDurationSeconds": "x"}}])
def test_what_is_missing_from_a_lease_counts_as_nothing(item):
    assert read_lease(item) == Lease("", "", 0, 0, "", "")


@pytest.mark.parametrize(
    ("pool", "pod", "name"),
    [
        ("vllm-pool", "endpick-7d9f-x2k4", "epp-models-vllm-pool.llm-d.ai"),
        ("", "my-endpick-7d9f8b-x2k4q", "epp-models-my-endpick.llm-d.ai"),
        ("", "", "epp-models-endpick.llm-d.ai"),
    ],
)
def test_replicas_of_one_pool_or_one_deployment_share_a_name(pool, pod, name):
    assert lease_name("models", pool, pod) == name


def test_every_role_but_the_last_can_be_left_and_only_taking_leads():
    assert {role for role, _ in TRANSITIONS} == {Role.FOLLOWER, Role.LEADER}
    assert [attempt for (role, attempt), after in TRANSITIONS.items() if role is Role.FOLLOWER and after is Role.LEADER] == [Attempt.TAKEN]
    assert {after for (_, attempt), after in TRANSITIONS.items() if attempt is Attempt.RELEASED} == {Role.GONE}


class Replica:
    """One replica on a simulated API server, as the election handles the lease, with a clock that begins anywhere."""

    def __init__(self, name: str, offset: float) -> None:
        self.name, self.offset, self.observed, self.until = name, offset, Observed(), -1.0

    def turn(self, store: list[Lease | None], now: float) -> None:
        seen, mine = store[0], now + self.offset
        self.observed.see(seen, mine)
        if self.observed.may_be_taken(self.name, mine):
            before = 0 if seen is None else seen.transitions
            store[0] = Lease("", self.name, SECONDS, before + 1, "", f"{self.name} at {mine}")
            self.until = now + 10.0  # the deadline for renewing, after which it stands by


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20.0)), max_size=60), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_two_replicas_never_lead_at_once_however_their_clocks_differ(turns, offsets):
    replicas = [Replica(name, offset) for name, offset in zip("abc", offsets, strict=True)]
    store: list[Lease | None] = [None]
    now = 0.0
    for number, seconds in turns:
        now += seconds
        replicas[number].turn(store, now)
        assert sum(replica.until > now for replica in replicas) <= 1
