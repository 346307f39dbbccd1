"""What no call of endpick's catches, such as what is printed, in a process that serves."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from endpick.serve.uncaught import Uncaught


@pytest.mark.parametrize("name", ["stdout", "stderr", "__stdout__", "__stderr__"])
def test_what_is_printed_to_any_stream_of_the_process_becomes_lines_of_the_log(monkeypatch, caplog, name):
    caplog.set_level(logging.INFO)
    stream = io.StringIO()
    monkeypatch.setattr(sys, name, stream)
    with Uncaught().output_taken():
        getattr(sys, name).write("\x1b[2Jforged\n")
    assert stream.getvalue() == ""
    assert getattr(sys, name) is stream
    assert [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
