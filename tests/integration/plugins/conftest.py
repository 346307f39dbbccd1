"""Configurations, and what `endpick validate` says about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"


@dataclass(frozen=True)
class Verdict:
    """What `endpick validate --format json` found."""

    exit_code: int
    diagnostics: list[Mapping[str, object]]
    config: str

    @property
    def errors(self) -> list[Mapping[str, object]]:
        """Without warnings."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic["severity"] == "error"]

    @property
    def codes(self) -> list[object]:
        """Codes of the errors."""
        return [diagnostic["code"] for diagnostic in self.errors]

    def the_only_error(self) -> Mapping[str, object]:
        """The one error there is."""
        assert len(self.errors) == 1, self.errors
        return self.errors[0]

    def pointed_at(self, diagnostic: Mapping[str, object]) -> str:
        """The text that a diagnostic's span covers."""
        span = diagnostic["span"]
        assert isinstance(span, dict)
        assert span["line"] == span["endLine"]
        return self.config.splitlines()[span["line"] - 1][span["column"] - 1 : span["endColumn"] - 1]


@pytest.fixture
def config_with(tmp_path: Path) -> Callable[..., Path]:
    """`config_with("acme.latency")` or `config_with("type: acme.latency\\nfrom: good")`: a configuration file with these entries."""

    def write(*entries: str, tail: str = "") -> Path:
        blocks = ["\n    ".join((entry if ":" in entry else f"type: {entry}").splitlines()) for entry in entries]
        file = tmp_path / "config.yaml"
        file.write_text(HEAD + "plugins:\n" + "".join(f"  - {block}\n" for block in blocks) + tail)
        return file

    return write


@pytest.fixture
def validate(run_cli: Callable[..., object], tmp_path: Path) -> Callable[..., Verdict]:
    """`validate(config, path=[…])`: every diagnostic of a configuration."""

    def run(config: Path, *options: str, path: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> Verdict:
        result = run_cli("validate", config, "--endpoints", "pool.yaml", "--format", "json", *options, path=path, environment=environment)
        assert result.stdout, result.stderr
        return Verdict(result.exit_code, json.loads(result.stdout)["diagnostics"], config.read_text())

    return run


_SUSPECTED_ENDPOINTS = """\
endpoints:
- {name: a, address: 127.0.0.1, port: "1"}
- {name: b, address: 127.0.0.1, port: "2"}
"""
_SUSPECTED_CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {{type: file-discovery, parameters: {{path: endpoints.yaml}}}}
  - {{name: suspect, type: {faulty}{on_fault}}}
  - type: faulty.last
  - {{type: max-score-picker}}
schedulingProfiles:
  - name: default
    plugins:
      - {{pluginRef: suspect, weight: 100}}
      - {{pluginRef: faulty.last, weight: 1}}
      - pluginRef: max-score-picker
dataLayer:
  discovery: {{endpoints: {{pluginRef: file-discovery}}}}
"""


@pytest.fixture
def folder(tmp_path):
    """`folder("faulty.nan", ", onFault: FailClose")`: where to serve a configuration with that scorer."""

    def write(faulty, on_fault=""):
        (tmp_path / "endpoints.yaml").write_text(_SUSPECTED_ENDPOINTS)
        (tmp_path / "config.yaml").write_text(_SUSPECTED_CONFIG.format(faulty=faulty, on_fault=on_fault))
        return tmp_path

    return write
