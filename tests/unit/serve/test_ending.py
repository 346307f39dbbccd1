"""A signal asks for the end, whatever plugins have done to the process."""

from __future__ import annotations

import signal
import sys

import pytest

from endpick.serve.lifecycle import Lifecycle
from endpick.serve.main import _Ending


def test_the_first_signal_asks_for_the_end_where_no_thread_can_be_made(monkeypatch):
    asked = []
    ending = _Ending(Lifecycle(), asked.append, 60.0)
    monkeypatch.delattr(sys, "stderr")
    with pytest.raises(AttributeError, match="stderr"):
        ending.signalled(signal.SIGTERM, None)
    assert asked == [1]
