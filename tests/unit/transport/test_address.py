"""Binding a port, and the advice of each error."""

from __future__ import annotations

import errno
import os
import resource
import socket

import pytest

from endpick.transport.listener import ListenError, ListenSettings, listening_socket


def refused(settings: ListenSettings) -> ListenError:
    with pytest.raises(ListenError) as refusal:
        listening_socket(settings)
    return refusal.value


def test_taken_port_advises_to_free_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        problem = refused(ListenSettings("127.0.0.1", taken.getsockname()[1]))
    assert "Address already in use" in str(problem)
    assert problem.advice == "stop what listens there, or choose another port"


def test_missing_descriptors_advise_to_raise_the_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        problem = refused(ListenSettings("127.0.0.1", 0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in str(problem)
    assert "ulimit -n" in problem.advice


def test_foreign_address_advises_to_change_it():
    problem = refused(ListenSettings("192.0.2.7", 0))
    assert (str(problem).endswith("Cannot assign requested address"), "of this machine" in problem.advice) == (True, True)


def test_other_errors_do_not_advise_to_free_the_port():
    for error in (OSError(errno.EACCES, "x"), OSError("x"), socket.gaierror(socket.EAI_NONAME, "unknown")):
        assert "what listens there" not in ListenError.at("", 1, error).advice
