"""What a process of the command line spares itself, and that whoever needs it still gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

SPARED = "import sys; from endpick.lean_imports import spare; spare(); "


def said_by(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", SPARED + program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_module_inside_the_package_does_not_bring_the_rest():
    program = "import prometheus_client.metrics as m; print(m.Counter.__name__, 'prometheus_client.exposition' in sys.modules)"

    assert said_by(program) == "Counter False"


@pytest.mark.parametrize(
    "program",
    [
        "from prometheus_client import start_http_server, Counter; print(callable(start_http_server), Counter.__module__)",
        "import prometheus_client as p; print(callable(p.start_http_server), p.Counter.__module__)",
        "from prometheus_client import *; print(callable(start_http_server), Counter.__module__)",
        (
            "import prometheus_client.core as c; from prometheus_client import Counter, exposition as e; "
            "print(callable(e.start_http_server), Counter.__module__)"
        ),
    ],
)
def test_a_plugin_gets_the_whole_package(program):
    assert said_by(program) == "True prometheus_client.metrics"


def test_what_the_package_does_not_have_is_an_import_error_as_ever():
    program = "\ntry:\n    from prometheus_client import nonsense\nexcept ImportError as error:\n    print(error.name)"

    assert said_by(program) == "prometheus_client"


def test_a_package_that_is_imported_already_is_left_alone():
    program = (
        "import prometheus_client as before; spare(); import prometheus_client as after; print(before is after, hasattr(after, 'Counter'))"
    )

    assert said_by(program) == "True True"
