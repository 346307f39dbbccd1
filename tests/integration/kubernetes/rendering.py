"""What `helm` and `kubectl kustomize` make of `deploy/`, where they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.kubernetes.real_manifests import DEPLOY, documents

CHART = DEPLOY / "helm" / "endpick"
NEEDED = {
    "router": {"epp": {"image": "registry.example/endpick:1"}, "modelServers": {"matchLabels": {"app": "vllm"}}},
}
"""What a user has to say."""


class RefusedError(Exception):
    """The tool renders nothing; the message says why."""


def helm_template(values: Mapping[str, object], namespace: str = "models", release: str = "chat") -> list[dict]:
    """The objects of the chart; skips the test without helm.

    Raises:
        RefusedError: helm refuses the values.
    """
    helm = os.environ.get("HELM") or shutil.which("helm")
    if not helm:
        pytest.skip("no helm: set HELM to its binary, or put it on the PATH")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        return _objects([helm, "template", release, str(CHART), "--namespace", namespace, "--values", file.name])


def kustomized(folder: Path) -> list[dict]:
    """The objects of a kustomization; skips the test without kubectl."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("no kubectl on the PATH")
    return _objects([kubectl, "kustomize", str(folder)])


def _objects(command: list[str]) -> list[dict]:
    with tempfile.TemporaryDirectory() as home:  # both keep caches and settings there
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "HOME": home})
    if result.returncode:
        raise RefusedError(result.stderr)
    return documents(result.stdout)


def merged(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    """Values as helm merges them."""
    both = {**one, **other}
    for name in one.keys() & other.keys():
        left, right = one[name], other[name]
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            both[name] = merged(left, right)
    return both


def only(items: list[dict], kind: str) -> dict:
    """The one object of a kind."""
    (found,) = [item for item in items if item["kind"] == kind]
    return found
