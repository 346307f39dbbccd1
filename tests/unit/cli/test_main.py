"""The command line before any verb runs."""

from __future__ import annotations

import subprocess
import sys

from endpick.cli.verbs import HOST_VERBS, installed_verbs

HEAVY = ("grpc", "numpy", "pydantic", "jsonschema", "ruamel", "aiohttp", "endpick_builtin", "prometheus_client", "google.protobuf", "rich")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_verb_and_imports_nothing_heavy():
    result = run_python(
        "import sys\n"
        "from endpick.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )

    assert result.stderr.strip() == "[]"
    for verb in (*HOST_VERBS, *installed_verbs().verbs):
        assert f"\n  {verb}" in result.stdout


def test_misspelt_verb_gets_a_suggestion_and_exit_code_2():
    result = subprocess.run([sys.executable, "-m", "endpick", "valdiate"], capture_output=True, text=True, timeout=60, check=False)

    assert result.returncode == 2
    assert "no such command 'valdiate'. Did you mean 'validate'?" in result.stderr


def test_verb_unlike_any_other_points_to_help():
    result = subprocess.run([sys.executable, "-m", "endpick", "xyzzy"], capture_output=True, text=True, timeout=60, check=False)

    assert "See 'endpick --help'." in result.stderr
