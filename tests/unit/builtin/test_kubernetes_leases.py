"""When a lease may be taken, and how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_kubernetes.election import Observation, claim, lease_name

SECONDS = 15


def lease(holder: str, renewed: str = "2026-08-22T00:00:00.000000Z", seconds: int = SECONDS, transitions: int = 3) -> dict:
    spec = {"leaseDurationSeconds": seconds, "leaseTransitions": transitions, "acquireTime": "before", "renewTime": renewed}
    return {"metadata": {"resourceVersion": "7"}, "spec": {**({"holderIdentity": holder} if holder else {}), **spec}}


@pytest.mark.parametrize("renewed", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
def test_observation_ignores_the_clock_of_the_holder(renewed):
    observation, held = Observation(), lease("other", renewed)
    observation.see(held, 100.0)
    observation.see(held, 114.9)
    assert not observation.is_free(held, "me", 114.9)
    assert observation.is_free(held, "me", 115.0)
    renewed_again = lease("other", renewed + "1")
    observation.see(renewed_again, 115.0)
    assert not observation.is_free(renewed_again, "me", 129.9)


@pytest.mark.parametrize("seen", [None, lease(""), lease("me"), lease("other", seconds=0)])
def test_lease_is_free_if_missing_released_or_ours(seen):
    observation = Observation()
    observation.see(seen, 100.0)
    assert observation.is_free(seen, "me", 100.0)


def test_claim_counts_transitions_and_keeps_the_acquire_time():
    taken = claim("l", "models", "me", SECONDS, lease("other"))
    assert taken["metadata"] == {"name": "l", "namespace": "models", "resourceVersion": "7"}
    spec = taken["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("me", SECONDS, 4)
    assert spec["acquireTime"] == spec["renewTime"] != "before"
    renewed = claim("l", "models", "me", SECONDS, lease("me"))["spec"]
    assert (renewed["acquireTime"], renewed["leaseTransitions"]) == ("before", 3)
    assert "holderIdentity" not in claim("l", "models", "", 1, lease("me"))["spec"]
    assert "resourceVersion" not in claim("l", "models", "me", SECONDS, None)["metadata"]


@pytest.mark.parametrize(
    ("pool", "pod", "name"),
    [
        ("vllm-pool", "endpick-7d9f-x2k4", "epp-models-vllm-pool.llm-d.ai"),
        ("", "my-endpick-7d9f8b-x2k4q", "epp-models-my-endpick.llm-d.ai"),
        ("", "", "epp-models-endpick.llm-d.ai"),
    ],
)
def test_lease_name_follows_the_pool_or_the_deployment(pool, pod, name):
    assert lease_name("models", pool, pod) == name


class Replica:
    """A replica whose clock has an arbitrary offset."""

    def __init__(self, name: str, offset: float) -> None:
        self.name, self.offset, self.observation, self.until = name, offset, Observation(), -1.0

    def act(self, store: list[dict | None], now: float) -> None:
        seen, mine = store[0], now + self.offset
        self.observation.see(seen, mine)
        if self.observation.is_free(seen, self.name, mine):
            store[0] = lease(self.name, f"{self.name} at {mine}")
            self.until = now + 10.0  # the renew deadline


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20.0)), max_size=60), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_two_replicas_never_lead_at_once(steps, offsets):
    replicas = [Replica(name, offset) for name, offset in zip("abc", offsets, strict=True)]
    store: list[dict | None] = [None]
    now = 0.0
    for number, seconds in steps:
        now += seconds
        replicas[number].act(store, now)
        assert sum(replica.until > now for replica in replicas) <= 1
