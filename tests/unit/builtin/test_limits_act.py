"""Each limit of each built-in plugin acts once through the real code: it is counted under its name, and the log says what to change."""

from __future__ import annotations

import pytest

from unit.builtin import limits_of_producers, limits_of_sources
from unit.builtin.all_limits import all_limits

ACTS = {**limits_of_sources.ACTS, **limits_of_producers.ACTS}


def test_every_limit_is_made_to_act():
    assert set(all_limits()) == ACTS.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", ACTS, ids=lambda limit: limit.name)
async def test_a_limit_that_acts_is_counted_under_its_name_and_told_with_what_to_change(limit, monkeypatch, tmp_path, caplog):
    registry = await ACTS[limit](monkeypatch, tmp_path)

    samples = [sample for family in registry.collect() if family.name == "endpick_plugin_limits" for sample in family.samples]
    assert {sample.labels["limit"]: sample.value for sample in samples if sample.value} == {limit.name: 1.0}
    (record,) = [record for record in caplog.records if hasattr(record, "limit")]
    assert (record.getMessage(), record.limit, record.times, record.levelname) == (limit.told, limit.name, 1, "WARNING")
    assert limit.name in record.getMessage()
