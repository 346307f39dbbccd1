"""Values that no gateway would take are refused when a plugin makes them."""

from __future__ import annotations

import pytest

from endpick.api import Rejection, SchedulingResult
from endpick.api.request import shown


@pytest.mark.parametrize("status", [399, 600])
def test_rejection_needs_an_error_status(status):
    with pytest.raises(ValueError, match=f"400 to 599, not {status}"):
        Rejection("no", status)


@pytest.mark.parametrize("reason", ["two\nlines", "naïve"])
def test_rejection_reason_fits_a_header(reason):
    with pytest.raises(ValueError, match="fit for a header"):
        Rejection("no", 429, reason)


@pytest.mark.parametrize(("header", "error"), [(("x", 1), TypeError), (("", "a"), ValueError), (("x", "a\r\nb"), ValueError)])
def test_decision_headers_are_valid_http(header, error):
    with pytest.raises(error, match="is set to"):
        SchedulingResult("a", {}, ("10.0.0.1:1",), dict([header]))


def test_messages_show_short_values_only():
    assert shown("x\n") == "'x\\n'"
    assert shown("x" * 1000) == "<str>"
