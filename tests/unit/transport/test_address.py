"""Why a port cannot be had: the help fits what the system said."""

from __future__ import annotations

import errno
import os
import resource
import socket

import pytest

from endpick.transport.address import ListenError, ListenSettings, listening_socket


def refused(settings: ListenSettings) -> ListenError:
    with pytest.raises(ListenError) as refusal:
        listening_socket(settings)
    return refusal.value


def test_a_port_that_is_taken_is_to_be_freed():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        problem = refused(ListenSettings("127.0.0.1", taken.getsockname()[1]))
    assert "Address already in use" in str(problem)
    assert problem.advice == "stop what listens there, or choose another port"


def test_where_no_file_may_be_opened_nothing_that_listens_is_to_be_stopped():
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


def test_an_address_of_another_machine_is_to_be_changed():
    problem = refused(ListenSettings("192.0.2.7", 0))
    assert (str(problem).endswith("Cannot assign requested address"), "that this machine has" in problem.advice) == (True, True)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENFILE, errno.ENOBUFS, errno.EIO, socket.EAI_NONAME, None])
def test_each_reason_has_a_help_of_its_own(number):
    error = socket.gaierror(number, "unknown") if number == socket.EAI_NONAME else OSError(number, "x") if number else OSError("x")
    assert "what listens there" not in ListenError.at("", 1, error).advice
