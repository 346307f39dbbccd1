"""Where the API server is found, and what of a kubeconfig is refused."""

from __future__ import annotations

import base64
import json
import ssl
import traceback
from pathlib import Path

import pytest

from endpick.api import ConfigurationError
from endpick.transport.tls import make_self_signed
from endpick_builtin.kubernetes.access import find_access
from integration.kubernetes.api_server import kubeconfig

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def pair() -> tuple[str, str]:
    certificate, key = make_self_signed()
    return certificate.decode(), key.decode()


@pytest.fixture
def account(tmp_path, pair) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    (folder / "ca.crt").write_text(pair[0])
    (folder / "namespace").write_text("models")
    return folder


def written(path: Path, *, cluster: dict | None = None, user: dict | None = None, context: dict | None = None) -> Path:
    file = kubeconfig(path, "https://127.0.0.1:6443/", **(user or {}))
    content = json.loads(file.read_text())
    content["clusters"][0]["cluster"].update(cluster or {})
    content["contexts"][0]["context"].update(context or {})
    file.write_text(json.dumps(content))
    return file


def test_a_pod_finds_it_by_its_service_account(account):
    found = find_access("", IN_CLUSTER, account)
    assert (found.server, found.token, found.token_file, found.namespace) == (
        "https://10.96.0.1:443",
        "secret",
        account / "token",
        "models",
    )
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert find_access("", {**IN_CLUSTER, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account).server == "https://[fd00::1]:443"


def test_a_file_that_is_named_counts_before_the_environment_and_that_before_the_service_account(account, tmp_path):
    one, two = written(tmp_path / "one", user={"token": "1"}), written(tmp_path / "two", user={"token": "2"})
    assert find_access(str(one), {"KUBECONFIG": str(two), **IN_CLUSTER}, account).token == "1"
    assert find_access("", {"KUBECONFIG": str(two), **IN_CLUSTER}, account).token == "2"
    home = tmp_path / "home" / ".kube"
    home.mkdir(parents=True)
    written(home / "config", user={"token": "3"})
    assert find_access("", {"HOME": str(tmp_path / "home")}, account).token == "3"
    with pytest.raises(ConfigurationError, match="no API server is known"):
        find_access("", {}, account)


def test_of_several_files_the_first_that_defines_something_counts(tmp_path):
    one = tmp_path / "one"
    one.write_text("current-context: c\nusers: [{name: u, user: {token: first}}]\n")
    two = written(tmp_path / "two", user={"token": "second"}, context={"namespace": "models"})
    found = find_access("", {"KUBECONFIG": f"{one}:{two}"})
    assert (found.token, found.namespace, found.server) == ("first", "models", "https://127.0.0.1:6443")


def test_certificates_come_from_data_and_from_files_beside_the_kubeconfig(tmp_path, pair):
    certificate, key = pair
    (tmp_path / "client.crt").write_text(certificate)
    (tmp_path / "client.key").write_text(key)
    authority = {"certificate-authority-data": base64.b64encode(certificate.encode()).decode()}
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    found = find_access(str(written(tmp_path / "config", cluster=authority, user=user)), {})
    assert found.tls is not None
    assert len(found.tls.get_ca_certs()) == 1
    assert list(tmp_path.glob("*.pem")) == []

    unchecked = find_access(str(written(tmp_path / "unchecked", cluster={"insecure-skip-tls-verify": True})), {})
    assert unchecked.tls is not None
    assert unchecked.tls.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user": {"exec": {"command": "aws"}}}, "`exec` cannot be used: it runs a program"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "`auth-provider` cannot be used"),
        ({"user": {"username": "u", "password": "p"}}, "`username` cannot be used"),
        ({"user": {"as": "admin"}}, "`as` cannot be used"),
        ({"cluster": {"proxy-url": "http://proxy"}}, "`proxy-url` cannot be used"),
        ({"cluster": {"server": "127.0.0.1:6443"}}, "must be an URL of http or https"),
        ({"cluster": {"server": "https://[::1:6443"}}, "must be an URL of http or https"),
        ({"cluster": {"server": "https://host:port"}}, "must be an URL of http or https"),
        ({"cluster": {"server": "https://admin:secret@host"}}, "`server` of the cluster names a user"),
        ({"cluster": {"server": "https://host?token=secret"}}, "`server` of the cluster has a query"),
        ({"user": {"token": "secret\r\nX-Other: y"}}, "the token holds a line end"),
        ({"cluster": {"server": 5}}, "`server` of the cluster must be text"),
        ({"cluster": {"certificate-authority-data": "%%"}}, "`certificate-authority` of the cluster cannot be read"),
        ({"cluster": {"certificate-authority-data": "QQ=="}}, "its certificates cannot be used"),
        ({"user": {"client-certificate-data": "QQ=="}}, "its certificates cannot be used"),
        ({"user": {"client-key": "nowhere", "client-certificate": "nowhere"}}, "`client-certificate` of the user cannot be read"),
        ({"user": {"tokenFile": "nowhere"}}, "nowhere cannot be read: No such file"),
        ({"context": {"cluster": "other"}}, "there is no 'other' in `clusters`"),
    ],
)
def test_what_a_kubeconfig_says_and_endpick_cannot_do_is_told(tmp_path, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        find_access(str(written(tmp_path / "config", **changes)), {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "cannot be used: while parsing"),
        (b"\xff\xfe\x00", "cannot be used: it is no YAML text"),
        (b"[" * 100_000, "cannot be used: maximum depth"),
        (b"k0: &k0 {a: 1}\n" + b"".join(b"k%d: &k%d {<<: [*k%d, *k%d]}\n" % (n, n, n - 1, n - 1) for n in range(1, 40)), "uses an alias"),
        (b"- 1", "is no mapping"),
        (b"{}", "there is no `current-context`"),
        (b"current-context: c\ncontexts: 5", "there is no 'c' in `contexts`"),
        (b"#" * (1024 * 1024 + 1), "is longer than 1 MiB"),
    ],
)
def test_what_is_no_kubeconfig(tmp_path, content, message):
    (tmp_path / "config").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        find_access(str(tmp_path / "config"), {})
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        find_access(str(tmp_path / "nowhere"), {})


@pytest.mark.parametrize("content", ["users: [{token: secret: x}]", "token: 'secret", "token: secret\0"])
def test_what_is_wrong_with_a_kubeconfig_is_said_without_what_it_holds(tmp_path, content):
    (tmp_path / "config").write_text(content)
    with pytest.raises(ConfigurationError, match="cannot be used: ") as raised:
        find_access(str(tmp_path / "config"), {})
    assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_a_service_account_without_its_token(tmp_path):
    with pytest.raises(ConfigurationError, match="automountServiceAccountToken"):
        find_access("", IN_CLUSTER, tmp_path)
