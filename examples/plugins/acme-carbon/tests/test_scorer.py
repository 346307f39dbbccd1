"""How `acme.carbon-scorer` rates."""

from __future__ import annotations

from endpick.api import Endpoints, PluginContext, ScoringState
from endpick.testing import make_pool, make_request
from hypothesis import given
from hypothesis import strategies as st

from acme_carbon.keys import CARBON_INTENSITY
from acme_carbon.scorer import CarbonParameters, CarbonScorer

INTENSITIES = st.dictionaries(st.sampled_from("abcd"), st.floats(0, 2000), min_size=1)


def pool(zones: list[str], intensity: dict[str, float] | None) -> Endpoints:
    """One endpoint in each zone; an empty zone is an endpoint without label."""
    labels = [{"zone": zone} if zone else {} for zone in zones]
    return make_pool(
        len(zones), labels=labels, pool=None if intensity is None else {CARBON_INTENSITY: intensity}
    ).view()


def scores(candidates: Endpoints) -> list[float]:
    plugin = CarbonScorer("it", CarbonParameters(label="zone"), PluginContext())
    rated: list[float] = plugin.score(make_request(), candidates, ScoringState()).tolist()
    return rated


def test_cleaner_zones_score_higher_and_unknown_ones_0() -> None:
    assert scores(pool(["a", "b", "c", "d", ""], {"a": 100, "b": 300, "c": 500})) == [1.0, 0.5, 0.0, 0.0, 0.0]


def test_equally_clean_zones_are_equally_good() -> None:
    assert scores(pool(["a", "a", "b"], {"a": 250})) == [1.0, 1.0, 0.0]


def test_before_the_first_report_no_endpoint_is_preferred() -> None:
    assert scores(pool(["a", "b"], None)) == [0.0, 0.0]


@given(st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1), INTENSITIES)
def test_dirtier_zone_never_scores_higher(zones: list[str], intensity: dict[str, float]) -> None:
    rated = dict(zip(zones, scores(pool(zones, intensity)), strict=True))
    by_intensity = sorted((intensity[zone], -score) for zone, score in rated.items() if zone in intensity)

    assert [score for _, score in by_intensity] == sorted(score for _, score in by_intensity)
