"""Asks a running endpick at its metrics port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

DEFAULT_URL = "http://127.0.0.1:9090"
_TIMEOUT_SECONDS = 10.0

URL_OPTION = click.option("--url", default=DEFAULT_URL, show_default=True, help="Metrics port of the running endpick.")
TOKEN_OPTION = click.option(
    "--token-file", type=click.Path(path_type=Path), help="File with the token, if the picker has --admin-token-file."
)


class AdminError(Exception):
    """Raised if the admin API is unreachable or refuses; the message contains the remedy."""


class AdminClient:
    """Reads the admin API of a running picker."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """Raises UsageError for a URL that is not HTTP or a token file that cannot be read."""
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"'{url}' is not the address of a metrics port; write for example {DEFAULT_URL}")
        self.url = url.rstrip("/")
        try:
            self._token = "" if token_file is None else token_file.read_text().strip()
        except OSError as error:
            raise click.UsageError(f"{token_file} cannot be read: {error.strerror}") from error

    def get(self, *path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON document at `path`. Raises AdminError."""
        return json.loads(self.text(*path, **query))

    def text(self, *path: str, **query: str) -> str:
        """Return the text at `path`. Raises AdminError."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        where = "/".join((self.url, *(quote(part, safe="") for part in path))) + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            with urlopen(Request(where, headers=headers), timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - checked above
                return str(response.read().decode(errors="replace"))
        except HTTPError as refusal:
            raise AdminError(_reason(refusal.read()) or f"{where} answers {refusal.code}") from refusal
        except (OSError, HTTPException, ValueError) as error:
            problem = str(getattr(error, "reason", error)).strip()
            raise AdminError(f"no answer from {self.url}: {problem}; is endpick running there?") from error


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
