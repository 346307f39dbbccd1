"""Golden vectors: cases as data, and the installed plugins they are about."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest

import yaml_files
from endpick.host.discovery import discover
from endpick.host.instance import Instance
from unit.scheduling.workbench import instance

FOLDER = Path(__file__).parents[2] / "fixtures" / "vectors"
TARGETS = {candidate.type: candidate.target for candidate in discover() if candidate.is_builtin}


def cases(topic: str) -> list:
    """The cases of one file, each a parameter with its sentence for a name."""
    found = yaml_files.load(FOLDER / f"{topic}.yaml")
    return [pytest.param(case, id=f"{case.get('type', topic)}: {case['case']}") for case in found]


def built(case: dict) -> Instance:
    """An instance of the case's plugin type with the case's parameters."""
    module, _, name = TARGETS[case["type"]].partition(":")
    return instance(getattr(importlib.import_module(module), name), case["type"], **case.get("parameters", {}))


def in_http_body(data: bytes) -> bytes:
    """A `google.api.HttpBody` with these bytes as its data, by hand."""
    assert len(data) < 128
    return b"\x12" + bytes([len(data)]) + data


def in_request(data: bytes) -> bytes:
    """A request of Vertex AI with these bytes in its body, in a gRPC frame, by hand."""
    inner = in_http_body(data)
    assert len(inner) < 128
    message = b"\x0a\x01e\x12" + bytes([len(inner)]) + inner
    return b"\0" + len(message).to_bytes(4, "big") + message


def each(found: list, argument: str = "case"):
    """Parametrise a test by plugin type; it runs with every case of the type and reports all that fail."""
    groups: dict[str, list] = {}
    for case in found:
        groups.setdefault(case.values[0].get("type") or case.values[0].get("plugin") or "all", []).append(case)
    assert groups

    def decorate(test):
        @functools.wraps(test)
        def run(**fixtures):
            failures = []
            for case in fixtures.pop(argument):
                try:
                    test(**{argument: case.values[0]}, **fixtures)
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"case: {case.id}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} cases differ", failures)

        return pytest.mark.parametrize(argument, groups.values(), ids=groups.keys())(run)

    return decorate


def vectors(topic: str):
    """`each` case of one file, as `vector`."""
    return each(cases(topic), "vector")
