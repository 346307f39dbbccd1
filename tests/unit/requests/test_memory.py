"""The memory budget, the overload stages, and which requests they refuse."""

from __future__ import annotations

import pytest

from endpick.requests.memory import MAX_UNDECIDED_BYTES, Memory, OverloadStage, resident_bytes
from unit.requests.stage import Stage

NORMAL, SHEDDING, REFUSING = OverloadStage


@pytest.mark.parametrize(
    ("before", "used", "after"),
    [
        (NORMAL, 0.79, NORMAL),
        (NORMAL, 0.8, SHEDDING),
        (NORMAL, 0.95, REFUSING),
        (SHEDDING, 0.76, SHEDDING),
        (SHEDDING, 0.74, NORMAL),
        (REFUSING, 0.86, REFUSING),
        (REFUSING, 0.84, SHEDDING),
        (REFUSING, 0.1, NORMAL),
    ],
)
def test_stage_follows_the_resident_share(before, used, after):
    memory, stages = Memory(1000, lambda: int(used * 1000)), []
    memory.stage = before
    memory.on_stage.append(stages.append)
    memory.measure()
    memory.measure()
    assert memory.stage is after
    assert stages == ([] if before is after else [after])


def test_budget_is_a_quarter_of_the_limit_or_512_mib():
    assert Memory(1000).budget_bytes == 250
    assert Memory().budget_bytes == MAX_UNDECIDED_BYTES
    memory = Memory(1000)
    assert (memory.hold(250), memory.hold(1), memory.held_bytes) == (True, False, 251)


def test_resident_bytes_are_those_of_the_process():
    assert 10 << 20 < resident_bytes() < 100 << 30


def test_negative_priorities_are_refused_while_shedding():
    memory = Memory()
    stage = Stage(objectives={"batch": -1}, memory=memory)
    memory.stage = SHEDDING
    refused = stage.refuse(x_llm_d_inference_objective="batch")
    assert (refused.status, refused.reason, memory.shed) == (429, "rejected-overloaded", 1)
    assert stage.route()
