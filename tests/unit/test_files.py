"""Files that became something else while the process serves: none is waited for, and none is read without end."""

from __future__ import annotations

import os
import pty
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from endpick_builtin.kubernetes.access import read_token
from endpick_builtin.kubernetes.kubeconfig import Entry, read_kubeconfig

from endpick.api import ConfigurationError, open_regular
from endpick.config import load_config_again
from endpick.diagnostics import Code, Diagnostic
from endpick.files import read_given, write_given
from endpick.host.lock import load_lock
from endpick.host.metadata import read_all, read_relevant
from endpick.host.record import file_matches, read_record
from endpick_builtin.discovery.file_discovery import read_version

pytestmark = pytest.mark.timeout(10)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    _, other_end = pty.openpty()
    path.symlink_to(os.ttyname(other_end))


@pytest.fixture(params=[pipe, device, terminal], ids=lambda made: made.__name__)
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "RECORD"
    request.param(path)
    return path


def test_what_is_no_file_is_refused_at_once(no_file):
    with pytest.raises(OSError, match="it is no regular file"):
        open_regular(no_file)


def test_a_directory_and_what_is_not_there_are_told_as_the_system_does(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")


def test_a_file_is_read_through_links(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"


def test_each_reader_of_a_file_that_may_change_refuses_what_is_none(no_file):
    (refused,) = load_config_again(no_file).diagnostics
    assert (refused.code, "it is no regular file" in refused.message) == (Code.E0110, True)
    lock = load_lock(no_file)
    assert isinstance(lock, Diagnostic)
    assert lock.code is Code.E0321
    assert not file_matches(str(no_file), "sha256=x")
    assert read_record(str(no_file.parent)).digests is None
    for read in (read_version, read_token):
        with pytest.raises(OSError, match="it is no regular file"):
            read(no_file)


def long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 2**30)


def test_a_lock_file_that_is_too_long_is_told(tmp_path):
    long(tmp_path / "lock")
    lock = load_lock(tmp_path / "lock")
    assert isinstance(lock, Diagnostic)
    assert lock.message == "the lock file is longer than 16 MiB"


def test_a_command_reads_a_pipe_while_it_is_written_and_no_other(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="it is a pipe that nothing is written to"):
        read_given(path, 10)
    with pytest.raises(OSError, match="it is a pipe that no process reads"):
        write_given(path, "x")
    kept = os.open(path, os.O_RDWR)
    os.write(kept, b"0123456789abc")
    assert read_given(path, 10) == b"0123456789"
    os.read(kept, 3)
    reading = threading.Thread(target=lambda: read.append(read_given(path, 5)))
    read: list[bytes] = []
    reading.start()
    os.write(kept, b"01234")
    reading.join()
    assert read == [b"01234"]
    write_given(path, "é")
    assert os.read(kept, 10) == "é".encode()
    os.close(kept)


def test_a_command_reads_and_writes_files(tmp_path):
    write_given(tmp_path / "new", "one")
    write_given(tmp_path / "new", "é")
    assert read_given(tmp_path / "new", 1) == "é".encode()[:1]
    assert read_given("/dev/zero", 7) == bytes(7)
    assert read_given(tmp_path / "new", sys.maxsize) == "é".encode()
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path, 1)


@pytest.mark.parametrize("file", ["METADATA", "entry_points.txt", "direct_url.json"])
def test_metadata_that_is_no_file_is_passed_over(tmp_path, file):
    folder = tmp_path / "acme-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[endpick.plugins.v1]\na = b:C\n")
    (folder / file).unlink(missing_ok=True)
    pipe(folder / file)
    (found,) = read_all([str(tmp_path)])
    assert (found.name, len(found.entry_points)) == {"METADATA": ("", 1), "entry_points.txt": ("acme", 0)}.get(file, ("acme", 1))
    assert len(read_relevant("endpick.plugins.v", [str(tmp_path)])) == (file != "entry_points.txt")


@pytest.mark.parametrize("field", ["kubeconfig", "certificate-authority"])
def test_a_kubeconfig_that_is_no_file_ends_the_start(tmp_path, field):
    pipe(tmp_path / "pipe")
    entry = Entry({field: "pipe"}, tmp_path, {}, tmp_path, "", "the test")
    read = partial(read_kubeconfig, tmp_path / "pipe") if field == "kubeconfig" else partial(entry.pem, "cluster", field)
    with pytest.raises(ConfigurationError, match="it is no regular file"):
        read()
