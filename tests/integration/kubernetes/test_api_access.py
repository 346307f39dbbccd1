"""How the API server is found, and which errors a bad configuration gives."""

from __future__ import annotations

import base64
import json
import traceback
from pathlib import Path

import pytest

from endpick.api import ConfigurationError
from endpick.transport.tls import make_self_signed
from endpick_kubernetes.follower import connect
from integration.kubernetes.api_server import kubeconfig


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path) -> pytest.MonkeyPatch:
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return monkeypatch


@pytest.fixture
def pair() -> tuple[str, str]:
    certificate, key = make_self_signed()
    return certificate.decode(), key.decode()


@pytest.fixture
def account(tmp_path, pair) -> str:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    (folder / "ca.crt").write_text(pair[0])
    (folder / "namespace").write_text("models")
    return str(folder)


def written(path: Path, *, cluster: dict | None = None, user: dict | None = None, context: dict | None = None) -> str:
    file = kubeconfig(path, "https://127.0.0.1:6443", **(user or {}))
    content = json.loads(file.read_text())
    content["clusters"][0]["cluster"].update(cluster or {})
    content["contexts"][0]["context"].update(context or {})
    file.write_text(json.dumps(content))
    return str(file)


def test_sources_in_order_of_precedence(environment, account, tmp_path):
    with pytest.raises(ConfigurationError, match="no API server is known"):
        connect("")
    home = tmp_path / ".kube"
    home.mkdir()
    written(home / "config", context={"namespace": "home"})
    assert connect("", account)[0].namespace == "home"
    environment.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    client, server = connect("", account)
    assert (client.namespace, server) == ("models", "https://[fd00::1]:443")
    environment.setenv("KUBECONFIG", written(tmp_path / "two", context={"namespace": "two"}))
    assert connect("", account)[0].namespace == "two"
    assert connect(written(tmp_path / "one", context={"namespace": "one"}), account)[0].namespace == "one"


def test_certificates_may_be_inline_or_in_files(tmp_path, pair):
    certificate, key = pair
    (tmp_path / "client.crt").write_text(certificate)
    (tmp_path / "client.key").write_text(key)
    authority = {"certificate-authority-data": base64.b64encode(certificate.encode()).decode()}
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    assert connect(written(tmp_path / "config", cluster=authority, user=user))[1] == "https://127.0.0.1:6443"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": {"server": 5}}, "ValidationError"),
        ({"cluster": {"certificate-authority-data": "QQ=="}}, "kubeconfig .* cannot be used"),
        ({"user": {"client-key": "nowhere", "client-certificate": "nowhere"}}, "No such file"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "auth-provider not supported"),
        ({"context": {"cluster": "other"}}, "missing entry 'other'"),
        ({"context": {"user": None}}, "names no user"),
    ],
)
def test_unusable_kubeconfig_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        connect(written(tmp_path / "config", **changes))


@pytest.mark.parametrize(("content", "message"), [("{hunter2", "invalid YAML at line 1"), ("{}", "missing entry")])
def test_error_about_a_kubeconfig_keeps_its_content_secret(tmp_path, content, message):
    (tmp_path / "config").write_text(content)
    with pytest.raises(ConfigurationError, match=message) as raised:
        connect(str(tmp_path / "config"))
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_missing_files_are_named(environment, tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere not found"):
        connect(str(tmp_path / "nowhere"))
    environment.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with pytest.raises(ConfigurationError, match="automountServiceAccountToken"):
        connect("", str(tmp_path))
