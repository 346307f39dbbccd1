"""`valkey-state-store` and `redis-state-store`: a server between machines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from endpick.api import ConfigurationError, Duration, PluginContext
from endpick.api.fleet import StateStore
from endpick.api.plugin import P, ignored
from endpick_builtin.camel_parameters import CamelParameters

if TYPE_CHECKING:
    from valkey.asyncio import Valkey

T = TypeVar("T")

_SNAPSHOT_SECONDS: Final = 600
_SOCKET_SECONDS: Final = 1.0
_PASSWORD_VARIABLE: Final = "VALKEY_PASSWORD"  # noqa: S105 - a variable's name
_ENCRYPTED: Final = ("valkeys", "rediss")
_SCHEMES: Final = ("valkey", "redis", "unix", *_ENCRYPTED)


class PasswordParameters(CamelParameters):
    """Locates the server's password in a file or an environment variable."""

    password_env: Annotated[str, Field(description="Environment variable with the password, if it is set.")] = _PASSWORD_VARIABLE
    password_file: Annotated[Path | None, Field(description="File with the password, without the line's end, in place of passwordEnv.")] = (
        None
    )

    def password(self) -> str | None:
        """Return the password, None if the variable is unset; raises ConfigurationError if the file is unreadable."""
        if self.password_file is None:
            return os.environ.get(self.password_env)
        try:
            return self.password_file.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(f"the password file {self.password_file} cannot be read: {error.strerror}") from error


class ValkeyParameters(PasswordParameters):
    """Locates the server, and names the fleet."""

    url: Annotated[
        str,
        Field(
            description="`valkey://host:port/db`, `valkeys://` for TLS, or `unix:///path`; `redis://` and `rediss://` are the same. "
            "User names may be part of it, passwords not.",
            examples=["valkey://localhost:6379/0"],
        ),
    ]
    fleet: Annotated[str, Field(min_length=1, description="Pickers with the same name before the same pool share what they learn.")] = (
        "endpick"
    )
    ca_file: Annotated[Path | None, Field(description="CA of the server's certificate, for `valkeys://`.")] = None

    @field_validator("url")
    @classmethod
    def _usable(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(f"write {', '.join(f'{scheme}://' for scheme in _SCHEMES)}, not '{parts.scheme}://'")
        if parts.password:
            raise ValueError("keep the password out of it: name it with passwordEnv or passwordFile")
        if parts.scheme != "unix" and not parts.hostname:
            raise ValueError("it names no host")
        _ = parts.port  # raises ValueError if it is not a number
        return url

    @model_validator(mode="after")
    def _encrypts(self) -> Self:
        scheme = urlsplit(self.url).scheme
        if self.ca_file is not None and scheme not in _ENCRYPTED:
            raise ValueError(f"{scheme}:// is not encrypted, so caFile has no effect; write {_ENCRYPTED[0]}://, or remove caFile")
        return self


class _Store(StateStore[P]):
    """A Valkey or Redis server: messages go over a channel, snapshots are keys that expire."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        try:
            from valkey import asyncio as client  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError("it needs the package valkey", "pip install 'endpick[fleet]'") from error
        self._url, self._prefix, options = self._client_options()

        def connect(**more: Any) -> Valkey:  # noqa: ANN401 - as the library has it
            made: Valkey = client.Valkey.from_url(self._url, socket_connect_timeout=_SOCKET_SECONDS, **options, **more)
            return made

        self._client = connect(socket_timeout=_SOCKET_SECONDS, single_connection_client=True)
        self._listener = connect(socket_timeout=None)

    def _client_options(self) -> tuple[str, str, dict[str, Any]]:
        """Return the URL, the prefix of keys and channels, and options of the client."""
        raise NotImplementedError

    async def stop(self) -> None:
        for client in (self._client, self._listener):
            with suppress(OSError, asyncio.CancelledError):
                await client.aclose()

    async def publish(self, message: bytes) -> None:
        await self._call(self._client.publish(f"{self._prefix}deltas", message))

    async def messages(self) -> AsyncIterator[bytes]:
        channel = self._listener.pubsub()
        try:
            await self._call(channel.subscribe(f"{self._prefix}deltas"))
            while True:
                found = await self._call(channel.get_message(timeout=None))
                if found is not None:
                    yield found["data"] if found["type"] == "message" else b""
        finally:
            await channel.aclose()  # type: ignore[no-untyped-call]

    async def save(self, name: str, snapshot: bytes) -> None:
        await self._call(self._client.set(f"{self._prefix}{name}", snapshot, ex=_SNAPSHOT_SECONDS))

    async def load(self, name: str) -> bytes | None:
        found = await self._call(self._client.get(f"{self._prefix}{name}"))
        return found if isinstance(found, bytes) else None

    async def _call(self, answer: Awaitable[T]) -> T:
        from valkey.exceptions import ValkeyError  # noqa: PLC0415 - an extra

        try:
            return await answer
        except (ValkeyError, OSError) as error:
            raise ConnectionError(f"{self._url}: {error}") from error


class ValkeyStateStore(_Store[ValkeyParameters]):
    """Shares learnt state between the pickers of a pool, through a Valkey or Redis server.

    Messages are not kept. A picker that starts gets a snapshot from another one, or the last that one left within ten minutes. Without
    the server each picker goes on alone.
    """

    def _client_options(self) -> tuple[str, str, dict[str, Any]]:
        parameters = self.parameters
        options: dict[str, Any] = {"password": parameters.password()}
        if parameters.ca_file is not None:
            options["ssl_ca_certs"] = str(parameters.ca_file)
        return parameters.url, f"endpick:{parameters.fleet}:", options


class RedisParameters(PasswordParameters):
    """Locates the server, with the parameter names of llm-d."""

    address: Annotated[str, Field(min_length=1, description="Host and port of the server.")] = "localhost:6379"
    db: Annotated[int, Field(ge=0, description="Number of the database.")] = 0
    state_ttl: Annotated[Duration | None, ignored("stateTTL", "remove it; the load of a silent picker is forgotten after 3.5 s")] = None
    coordination_ttl: Annotated[
        Duration | None,
        ignored("coordinationTTL", "remove it; pickers keep to a revision for three minutes"),
    ] = None


class RedisStateStore(_Store[RedisParameters]):
    """`valkey-state-store` with llm-d's parameters. Its keys and messages are endpick's, so llm-d's pickers do not understand them."""

    def _client_options(self) -> tuple[str, str, dict[str, Any]]:
        parameters = self.parameters
        return f"redis://{parameters.address}/{parameters.db}", "endpick:redis:", {"password": parameters.password()}
