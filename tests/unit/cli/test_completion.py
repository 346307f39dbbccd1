"""What shells are offered to complete a command."""

from __future__ import annotations

import sys

import pytest
from click.shell_completion import ShellComplete

from endpick.cli.main import main
from endpick.cli.verbs import HOST_VERBS, installed_verbs


def offered(*words: str) -> list[str]:
    *given, incomplete = words
    return [item.value for item in ShellComplete(main, {}, "endpick", "_ENDPICK_COMPLETE").get_completions(given, incomplete)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["di"], ["diff"]),
        ([""], [*HOST_VERBS, *installed_verbs().verbs]),
        (["explain", "e080"], ["E0801", "E0802", "E0805", "E0806", "E0807", "E0808", "E0809"]),
        (["describe", "running-req"], ["running-requests-size-scorer"]),
        (["test", "running-req"], ["running-requests-size-scorer"]),
        (["list", "--lo"], ["--load"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_verbs_types_and_codes_are_completed(words, expected):
    assert offered(*words) == expected


def test_completion_imports_no_plugin(make_distribution, monkeypatch):
    trap = make_distribution("trap", {"trap.scorer": "trap:Scorer"}, modules={"trap": "raise AssertionError('imported')\n"})
    monkeypatch.syspath_prepend(str(trap))

    assert offered("describe", "trap.") == ["trap.scorer"]
    assert "trap" not in sys.modules
