"""Who caused a log record, and catching what strangers print."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys

import pytest

from endpick.host.importing import Attribution, attributed, captured


def stamped(**extra):
    record = logging.makeLogRecord(extra)
    assert Attribution().filter(record) is True
    return getattr(record, "plugin", None)


def test_records_are_stamped_with_the_innermost_origin_and_not_at_all_outside():
    with attributed("outer"):
        assert stamped() == "outer"
        with attributed("inner"):
            assert stamped() == "inner"
        assert stamped() == "outer"
    assert stamped() is None


def test_an_origin_ends_with_its_block_even_when_it_raises():
    with pytest.raises(LookupError), attributed("outer"):
        raise LookupError
    assert stamped() is None


def test_a_record_that_says_whose_it_is_keeps_saying_so():
    with attributed("outer"):
        assert stamped(plugin="instance") == "instance"


def test_tasks_started_by_a_plugin_stay_its_own():
    async def later():
        return stamped()

    async def main():
        with attributed("starter"):
            task = asyncio.get_running_loop().create_task(later())
        return await task, stamped()

    assert asyncio.run(main()) == ("starter", None)


def test_capturing_ends_with_its_block_and_keeps_what_was_written_before_a_failure(capsys):
    outputs = []

    def talk():
        with captured() as output:
            outputs.append(output)
            print("before")
            raise LookupError

    with pytest.raises(LookupError):
        talk()
    print("after")

    assert outputs[0].text == "before\n"
    assert capsys.readouterr().out == "after\n"


def test_what_children_and_descriptors_write_is_captured_in_order(capfd):
    with captured() as output:
        print("printed")
        os.write(1, b"written\n")
        subprocess.run([sys.executable, "-c", "print('child')"], check=True)
        print("complained", file=sys.stderr)
    os.write(1, b"after\n")

    assert output.text == "printed\nwritten\nchild\ncomplained\n"
    assert capfd.readouterr() == ("after\n", "")


def test_bytes_that_are_no_text_do_no_harm():
    with captured() as output:
        os.write(2, b"\xff\xfe")

    assert output.text == "\ufffd\ufffd"


def test_a_process_without_standard_output_can_still_load_plugins():
    program = """
import os, sys
from endpick.host.importing import captured
os.close(1)
with captured() as output:
    print("printed")
sys.exit(output.text != "printed\\n")
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode in (0, 120), "120: Python could not flush"
