"""Which clients the admin API answers without a token."""

from __future__ import annotations

import pytest

from endpick.serve.admin_api import is_loopback


@pytest.mark.parametrize(
    ("address", "answered"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("", False),
        ("unix:", False),
    ],
)
def test_only_loopback_is_answered(address, answered):
    assert is_loopback(address) is answered
