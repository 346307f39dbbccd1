"""Fixtures for tests of plugins; pytest finds them by itself wherever endpick is installed.

Nothing of endpick is imported until a fixture is used: pytest loads this module in every session of the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from endpick.api import Endpoints, InferenceRequest, Plugin
    from endpick.api.data import AnyKey
    from endpick.testing.host import Host


class MakeEndpoints(Protocol):
    """See the fixture `make_endpoints`."""

    def __call__(
        self,
        columns: Mapping[AnyKey, Sequence[object]] | int = 3,
        *,
        labels: Sequence[Mapping[str, str]] = (),
        pool: Mapping[AnyKey, object] | None = None,
    ) -> Endpoints:
        """A view of made-up endpoints."""


class MakeHost(Protocol):
    """See the fixture `host`."""

    def __call__(self, config: str | None = None, plugins: Mapping[str, type[Plugin[Any]]] | None = None, *, seed: int = 1) -> Host:
        """A host for a configuration."""


class MakeDistribution(Protocol):
    """See the fixture `make_distribution`."""

    def __call__(
        self, name: str, entry_points: Mapping[str, str], modules: Mapping[str, str] | None = None, *, version: str = "1.0"
    ) -> Path:
        """The directory of a new distribution."""


@pytest.fixture
def make_endpoints() -> MakeEndpoints:
    """`make_endpoints({WAITING_QUEUE_SIZE: [3, None, 0]})`: a view of endpoints `default/e0`, `default/e1`, … with these columns.

    None is an endpoint that has not reported. `make_endpoints(5)` has five endpoints that have reported nothing; `labels=` gives them
    labels in order, `pool=` sets values of scope `POOL`. The arrays are read-only, as in production.
    """
    from endpick.testing.made_up import make_pool

    def make(
        columns: Mapping[AnyKey, Sequence[object]] | int = 3,
        *,
        labels: Sequence[Mapping[str, str]] = (),
        pool: Mapping[AnyKey, object] | None = None,
    ) -> Endpoints:
        return make_pool(columns, labels=labels, pool=pool).view()

    return make


@pytest.fixture
def make_request() -> Callable[..., InferenceRequest]:
    """`make_request("prompt", model="m", headers={...})`: a request as plugins see it; see `endpick.testing.made_up.make_request`."""
    from endpick.testing.made_up import make_request

    return make_request


@pytest.fixture
def host() -> Iterator[MakeHost]:
    """`host(CONFIG, {"acme.mine": MyScorer})`: a whole host without sockets, see `endpick.testing.Host`; closed when the test ends."""
    from endpick.testing.host import host_of

    hosts: list[Host] = []

    def make(config: str | None = None, plugins: Mapping[str, type[Plugin[Any]]] | None = None, *, seed: int = 1) -> Host:
        hosts.append(host_of(config, plugins, seed=seed))
        return hosts[-1]

    yield make
    for each in hosts:
        each.close()


@pytest.fixture
def isolated_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this test only endpick and what `make_distribution` makes are installed: other plugins of the environment are hidden.

    Reaches only what is discovered in this process, not commands that a test starts.
    """
    from endpick.testing.plugin_under_test import hide_other_plugins

    hide_other_plugins(monkeypatch)


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDistribution:
    """`make_distribution("acme-x", {"acme.x": "acme_x:X"}, {"acme_x": "source"})`: installs a distribution for the rest of the test.

    It has real metadata and entry points, and its modules can be imported; returns the directory that is now first on the import path.
    """
    from endpick.testing.plugin_under_test import write_distribution

    def make(name: str, entry_points: Mapping[str, str], modules: Mapping[str, str] | None = None, *, version: str = "1.0") -> Path:
        directory = tmp_path / "distributions" / f"{name}-{version}"
        write_distribution(directory, name, version, entry_points, modules or {})
        monkeypatch.syspath_prepend(directory)
        return directory

    return make
