"""The demo's load, before it is sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick_lab.demo.load import WorkloadSettings, make_workload
from endpick_lab.openai import count_tokens


@given(
    st.floats(1, 60),
    st.floats(1, 40),
    st.integers(1, 6),
    st.integers(0, 2**32),
)
def test_a_workload_is_bounded_ordered_and_repeatable(span: float, rate: float, turns: int, seed: int):
    settings = WorkloadSettings(span, rate, tenants=3, turns=turns, system_tokens=4, question_tokens=4)
    chats = make_workload(settings, seed)
    assert chats == make_workload(settings, seed)
    assert len(chats) == settings.sessions
    assert len({chat.system_prompt for chat in chats}) <= 3
    for chat in chats:
        due = [turn.due_seconds for turn in chat.turns]
        assert len(due) == turns
        assert due == sorted(due)
        assert 0 <= due[0] <= due[-1] < span


def test_sizes_are_in_tokens_and_no_question_is_asked_twice():
    settings = WorkloadSettings(30.0, system_tokens=100, question_tokens=7)
    chats = make_workload(settings, 1)
    assert {count_tokens(chat.system_prompt.encode()) for chat in chats} == {100}
    questions = [turn.question for chat in chats for turn in chat.turns]
    assert {count_tokens(question.encode()) for question in questions} == {7}
    assert len(set(questions)) == len(questions) == 600


def test_another_seed_is_another_load():
    settings = WorkloadSettings(5.0)
    assert make_workload(settings, 1) != make_workload(settings, 2)
