"""Reads the endpoints, and what they have reported, that `endpick try` decides about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from endpick.api.data import AnyKey, Scope
from endpick.api.endpoints import Endpoint
from endpick.diagnostics import did_you_mean
from endpick.testing.host import Host


class SituationError(ValueError):
    """The file cannot be used; the message lists what is wrong with it."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Entry(_Closed):
    name: str
    namespace: str = "default"
    address: str
    port: Annotated[int, Field(ge=1, le=65535)]
    labels: Mapping[str, str] = {}
    data: Mapping[str, object] = {}


class Situation(_Closed):
    """Endpoints in the format of `file-discovery`, each with `data:`, its values by data key; `pool:` has those of the whole pool."""

    endpoints: tuple[_Entry, ...]
    pool: Mapping[str, object] = {}


def read_situation(text: bytes) -> Situation:
    """Read YAML or JSON. Raises SituationError."""
    try:
        return Situation.model_validate(YAML(typ="safe", pure=True).load(text.decode()))
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise SituationError(f"it is not YAML: {error}") from error
    except ValidationError as error:
        found = [f"{'.'.join(map(str, one['loc'])) or 'the document'}: {one['msg']}" for one in error.errors(include_url=False)]
        raise SituationError("\n".join(found)) from error


def arrange(host: Host, situation: Situation) -> None:
    """Put endpoints and data into the host's table, as reported just now.

    Raises:
        SituationError: there is no such data key in the host's configuration, or a value is not of its type.
    """
    known = host.keys
    mistakes: list[str] = []
    endpoints = {f"{entry.namespace}/{entry.name}": entry for entry in situation.endpoints}
    if len(endpoints) < len(situation.endpoints):
        mistakes.append("endpoints: two have the same name")
    host.table.replace_all(Endpoint(name, entry.address, entry.port, entry.labels) for name, entry in endpoints.items())
    for name, entry in endpoints.items():
        endpoint = host.table.find(name)
        assert endpoint is not None
        for key, value in _read(entry.data, Scope.ENDPOINT, known, f"data of {name}", mistakes):
            host.table.write(key, endpoint, value)
    for key, value in _read(situation.pool, Scope.POOL, known, "pool", mistakes):
        host.table.write_pool(key, value)
    if mistakes:
        raise SituationError("\n".join(mistakes))


def _read(
    data: Mapping[str, object], scope: Scope, known: Mapping[str, AnyKey], where: str, mistakes: list[str]
) -> Iterable[tuple[AnyKey, object]]:
    names = sorted(name for name, key in known.items() if key.scope is scope)
    for name, written in data.items():
        if name not in names:
            hint = did_you_mean(name, names) or f"known are {', '.join(names) or 'none'}"
            mistakes.append(f"{where}: there is no data key '{name}' of scope '{scope}'; {hint}")
            continue
        try:
            yield known[name], TypeAdapter(known[name].type).validate_python(written)
        except ValidationError as error:
            mistakes.append(f"{where}: {written!r} is no value of '{name}': {error.errors(include_url=False)[0]['msg']}")
