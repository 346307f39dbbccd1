"""When `endpoint-health` reviews endpoints without requests."""

from __future__ import annotations

import asyncio

import pytest

from endpick_builtin.health import reviews


class Reviewed(reviews.Reviewer):
    def __init__(self) -> None:
        self.count = 0
        self.happened = asyncio.Event()

    def review_when_due(self) -> None:
        self.count += 1
        if self.count == 1:
            raise RuntimeError("boom")
        self.happened.set()


def test_an_error_in_a_review_does_not_end_the_reviews(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reviews, "REVIEW_SECONDS", 0.0)
    errors: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        reviewer = Reviewed()
        await reviewer.start()
        await reviewer.happened.wait()
        await reviewer.stop()
        seen = reviewer.count
        await asyncio.sleep(0.01)
        assert reviewer.count == seen

    asyncio.run(run())
    assert errors == ["boom"]


def test_stopping_what_never_started():
    asyncio.run(Reviewed().stop())
