"""What grpcio is given for ports whose certificates change."""

from __future__ import annotations

import grpc
import pytest

from endpick.api.grpc_server import RENEWAL_SECONDS, renewable_credentials
from endpick.transport.tls import make_self_signed


@pytest.fixture
def asked(monkeypatch):
    """What grpcio calls for each handshake, and how long it was kept waiting."""
    waited, given = [], []
    monkeypatch.setattr("endpick.api.grpc_server.time.sleep", waited.append)
    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", lambda _first, renewed, _mutual: given.append(renewed))

    def asked(answer):
        renewable_credentials(configuration(), lambda: answer, mutual=False)
        return given[-1](), waited

    return asked


def configuration() -> grpc.ServerCertificateConfiguration:
    certificate, key = make_self_signed()
    return grpc.ssl_server_certificate_configuration([(key, certificate)])


def test_handshakes_that_have_begun_get_time_before_a_new_certificate_is_handed_over(asked):
    new = configuration()
    assert asked(new) == (new, [RENEWAL_SECONDS])


def test_where_the_certificate_stays_no_handshake_waits(asked):
    assert asked(None) == (None, [])
