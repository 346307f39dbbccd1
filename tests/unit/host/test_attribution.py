"""Attribution of log records, and captured output."""

from __future__ import annotations

import asyncio
import logging

import pytest

from endpick.host.importing import Attribution, attributed, captured


def stamped(**extra):
    record = logging.makeLogRecord(extra)
    assert Attribution().filter(record) is True
    return getattr(record, "plugin", None)


def test_innermost_origin_is_stamped():
    with attributed("outer"):
        assert stamped() == "outer"
        with attributed("inner"):
            assert stamped() == "inner"
        assert stamped() == "outer"
    assert stamped() is None


def test_origin_ends_with_its_block():
    with pytest.raises(LookupError), attributed("outer"):
        raise LookupError
    assert stamped() is None


def test_existing_stamp_is_kept():
    with attributed("outer"):
        assert stamped(plugin="instance") == "instance"


def test_tasks_inherit_the_origin():
    async def later():
        return stamped()

    async def main():
        with attributed("starter"):
            task = asyncio.get_running_loop().create_task(later())
        return await task, stamped()

    assert asyncio.run(main()) == ("starter", None)


def test_output_before_a_failure_is_kept(capsys):
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
