"""Fixtures for tests of plugins; pytest loads them in every session, so they import endpick when used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from endpick.api import Endpoints, InferenceRequest, Plugin
    from endpick.api.data import AnyKey
    from endpick.host.discovery import Installed
    from endpick.testing.host import Host


_MARK = "endpick-testing"  # metadata file of distributions made by tests


class MakeEndpoints(Protocol):
    """The type of the fixture `make_endpoints`."""

    def __call__(
        self,
        columns: Mapping[AnyKey, Sequence[object]] | int = 3,
        *,
        labels: Sequence[Mapping[str, str]] = (),
        pool: Mapping[AnyKey, object] | None = None,
    ) -> Endpoints:
        """Return endpoints whose values were reported just now."""


class MakeHost(Protocol):
    """The type of the fixture `host`."""

    def __call__(self, config: str | None = None, plugins: Mapping[str, type[Plugin[Any]]] | None = None, *, seed: int = 1) -> Host:
        """Return a started host. Raises HostRefused."""


class MakeDistribution(Protocol):
    """The type of the fixture `make_distribution`."""

    def __call__(
        self, name: str, entry_points: Mapping[str, str], modules: Mapping[str, str] | None = None, *, version: str = "1.0"
    ) -> Path:
        """Install a distribution for the test; returns its directory."""


@pytest.fixture
def make_endpoints() -> MakeEndpoints:
    """`make_endpoints({WAITING_QUEUE_SIZE: [3, None, 0]})`: endpoints `default/e0`, `default/e1`, … with these columns.

    None means not reported; `make_endpoints(5)` has no data. Arrays are read-only, as in production. See `endpick.testing.make_pool`.
    """
    from endpick.testing.factories import make_pool

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
    """`make_request("prompt", model="m", headers={...})`: a request as plugins see it."""
    from endpick.testing.factories import make_request

    return make_request


@pytest.fixture
def host() -> Iterator[MakeHost]:
    """`host(CONFIG, {"acme.mine": MyScorer})`: an `endpick.testing.Host`, closed when the test ends."""
    from endpick.testing.host import host_of

    hosts: list[Host] = []

    def make(config: str | None = None, plugins: Mapping[str, type[Plugin[Any]]] | None = None, *, seed: int = 1) -> Host:
        hosts.append(host_of(config, plugins, seed=seed))
        return hosts[-1]

    yield make
    for made_host in hosts:
        made_host.close()


@pytest.fixture
def isolated_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all installed plugins except endpick's own and those of `make_distribution`.

    Commands that a test starts still find them.
    """
    from endpick.host import discovery
    from endpick.host.discovery import HOST_DISTRIBUTION

    find_all = discovery.find_installed

    def visible(path: Sequence[str] | None = None) -> tuple[Installed, ...]:
        return tuple(dist for dist in find_all(path) if dist.key == HOST_DISTRIBUTION or (Path(dist.path) / _MARK).exists())

    monkeypatch.setattr(discovery, "find_installed", visible)


@pytest.fixture
def make_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDistribution:
    """`make_distribution("acme-x", {"acme.x": "acme_x:X"}, {"acme_x": "source"})` installs a distribution for the test.

    Its modules can be imported, and its metadata is real. Returns its directory, now first on the import path.
    """

    def make(name: str, entry_points: Mapping[str, str], modules: Mapping[str, str] | None = None, *, version: str = "1.0") -> Path:
        directory = tmp_path / "distributions" / f"{name}-{version}"
        _write_distribution(directory, name, version, entry_points, modules or {})
        monkeypatch.syspath_prepend(directory)
        return directory

    return make


def _write_distribution(directory: Path, name: str, version: str, entry_points: Mapping[str, str], modules: Mapping[str, str]) -> None:
    from endpick.host.discovery import API_MAJOR, ENTRY_POINT_GROUP_PREFIX

    for module, source in modules.items():
        file = directory / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    metadata = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{plugin_type} = {target}" for plugin_type, target in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}]", *lines, ""]))
    (metadata / _MARK).touch()
