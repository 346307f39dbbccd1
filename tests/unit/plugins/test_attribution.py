"""Who caused a log record, and catching what strangers print."""

from __future__ import annotations

import asyncio
import logging

import pytest

from endpick.plugins.attribution import Attribution, attributed, captured


def stamped(**extra):
    record = logging.makeLogRecord(extra)
    assert Attribution().filter(record) is True
    return record.plugin


def test_records_are_stamped_with_the_innermost_origin_and_empty_outside():
    with attributed("outer"):
        assert stamped() == "outer"
        with attributed("inner"):
            assert stamped() == "inner"
        assert stamped() == "outer"
    assert stamped() == ""


def test_an_origin_ends_with_its_block_even_when_it_raises():
    with pytest.raises(LookupError), attributed("outer"):
        raise LookupError
    assert stamped() == ""


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

    assert asyncio.run(main()) == ("starter", "")


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
