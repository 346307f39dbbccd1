"""`endpick doctor`: examines the environment and says what will make trouble."""

from __future__ import annotations

import json
import platform
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from endpick import __version__
from endpick.cli.console import FORMAT_OPTION, json_text, table
from endpick.diagnostics import Code, Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.diagnostics.text import printable
from endpick.host.discovery import Candidate
from endpick.host.health import Health, Trust, examine, examine_trust, import_place
from endpick.host.lock import FILE_NAME
from endpick.installation import API_MAJOR, request_path

if TYPE_CHECKING:
    from urllib.request import Request

_ASK_SECONDS = 5.0
_OF_CONFIGURATIONS = frozenset({Code.W0303, Code.W0304, Code.W0309})
"""Types with another name, deprecated or experimental ones: `validate` tells of those that a configuration uses."""


@click.command("doctor")
@click.option("--strict", is_flag=True, help="End with exit status 4 if anything was found.")
@click.option("--load", "loads", is_flag=True, help="Import every plugin, to find broken and slow ones.")
@click.option("--serving", "url", help="Ask a serving endpick as well, at its metrics port: http://127.0.0.1:9090.")
@FORMAT_OPTION
def command(strict: bool, loads: bool, url: str | None, output: str) -> None:
    """Examine the environment: doubled, stale and broken installations, clashes, unmet requirements.

    Imports no plugin unless told to with --load. With --serving it also says whether that process is ready, and which plugins it leaves
    out because their circuit is open.
    """
    health = examine()
    told = None if url is None else ask_serving(url)
    loaded = _load(health) if loads else {}
    diagnostics = (*health.diagnostics, *(fault for _, faults in loaded.values() for fault in faults))
    seconds = {candidate: taken for candidate, (taken, _) in loaded.items()}
    click.echo(_json(health, diagnostics, seconds, told) if output == "json" else _text(health, diagnostics, seconds, told), nl=False)
    if strict and told is not None and not told.well:
        raise SystemExit(ExitCode.FAILED)
    if strict and diagnostics:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


@dataclass(frozen=True, slots=True)
class Told:
    """What a serving process says of itself."""

    url: str
    ready: bool
    remarks: tuple[str, ...]
    """Why it is not ready, and who is left out."""

    @property
    def well(self) -> bool:
        """Ready, with nothing to remark."""
        return self.ready and not self.remarks


_MOST_BYTES = 64 * 1024
"""Of what a serving process says of itself that are read."""


def ask_serving(url: str) -> Told:
    """Read `/healthz`; a process that does not answer, or not in time, is not ready, and neither is one that sends us elsewhere.

    What answers may be anything, and what it says is shown on a terminal.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--serving takes the address of a metrics port, such as http://127.0.0.1:9090, not '{url}'")
    answers: list[Told] = []
    # In a thread, because a server that sends a byte now and then is never too slow for a socket.
    asking = threading.Thread(target=lambda: answers.append(_answer(url)), daemon=True)
    asking.start()
    asking.join(_ASK_SECONDS)
    return answers[0] if answers else Told(url, False, (f"no answer: none within {_ASK_SECONDS:g} s",))


def _answer(url: str) -> Told:
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """A metrics port has no reason to send its client elsewhere, and one that does is not followed."""

        def redirect_request(self, *_: object) -> Request | None:
            return None

    try:
        with build_opener(NoRedirects).open(f"{url.rstrip('/')}/healthz", timeout=_ASK_SECONDS) as response:
            return Told(url, True, _lines(response.read(_MOST_BYTES))[1:])
    except HTTPError as refusal:
        return Told(url, False, _lines(refusal.read(_MOST_BYTES)) or (f"no answer: {refusal}",))
    except (OSError, HTTPException, ValueError) as problem:
        return Told(url, False, _lines(f"no answer: {str(problem) or type(problem).__name__}".encode(errors="replace")))


def _lines(said: bytes) -> tuple[str, ...]:
    return tuple(map(printable, said.decode(errors="replace").splitlines()))


def _load(health: Health) -> dict[Candidate, tuple[float, tuple[Diagnostic, ...]]]:
    from endpick.host.loader import load  # imports numpy, pydantic and jsonschema
    from endpick.host.resolution import Reference

    usable = (one for one in health.candidates if one.is_usable)
    loadings = {candidate: load(candidate, Reference(candidate.type)) for candidate in usable}
    return {
        candidate: (
            loading.loaded.load_seconds if loading.loaded else 0.0,
            tuple(told for told in loading.diagnostics if told.code not in _OF_CONFIGURATIONS),
        )
        for candidate, loading in loadings.items()
    }


def _text(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float], told: Told | None) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    parts = [f"endpick {__version__}, plugin API {API_MAJOR}, request path {request_path()}\n{python}\n{_trust_text(_trust(health))}\n"]
    rows = ((copy.name, copy.version or "-", _installation(copy.source_path), copy.path) for copy in health.copies)
    parts.append(table(("DISTRIBUTION", "VERSION", "INSTALLED", "METADATA"), rows))
    if health.hook_objects:
        parts.append(table(("HOOK OBJECT", "FROM", "TARGET"), ((one.type, one.origin, one.target) for one in health.hook_objects)))
    if seconds:
        slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
        rows_loaded = ((one.type, one.origin, f"{taken * 1000:.1f} ms", import_place(one.module)) for one, taken in slowest)
        parts.append(table(("TYPE", "FROM", "IMPORT", "MODULE"), rows_loaded))
    if told is not None:
        parts.append("".join(f"{line}\n" for line in (f"{printable(told.url)} is {'ready' if told.ready else 'not ready'}", *told.remarks)))
    if diagnostics:
        parts.append(render_text(diagnostics, colour=wants_colour(sys.stdout)))
    count = len(diagnostics)
    parts.append("nothing wrong was found\n" if not count else f"{count} finding{'s' if count > 1 else ''}\n")
    return "\n".join(parts)


def _trust(health: Health) -> Trust:
    return examine_trust(Path(FILE_NAME), (*health.candidates, *health.hook_objects))


_LOCKED = {
    "matches": f"{FILE_NAME} is as installed: `endpick serve --locked` refuses anything else",
    "differs": f"{FILE_NAME} differs from what is installed; see `endpick lock --check`",
    "unusable": f"{FILE_NAME} cannot be used; see `endpick lock --check`",
    "missing": f"no {FILE_NAME} here: nothing is pinned",
}


def _trust_text(trust: Trust) -> str:
    path = [
        "without the working directory"
        if trust.safe_path
        else "the working directory was on it until endpick began; `python -P` prevents it",
        *(f"PYTHONPATH puts {place} first" for place in trust.python_path),
        *([f"the user's own packages in {trust.user_site}"] if trust.user_site else []),
    ]
    return f"lock: {_LOCKED[trust.lock]}\nimport path: {'; '.join(path)}"


def _installation(source_path: str) -> str:
    return f"editable from {source_path}" if source_path else "wheel"


def _json(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float], told: Told | None) -> str:
    trust = _trust(health)
    return json_text(
        {
            "endpick": __version__,
            "api": API_MAJOR,
            "requestPath": request_path(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "trust": {
                "safePath": trust.safe_path,
                "pythonPath": list(trust.python_path),
                "userSite": trust.user_site,
                "lock": trust.lock,
            },
            "distributions": [
                {"name": copy.name, "version": copy.version, "metadataPath": copy.path, "sourcePath": copy.source_path}
                for copy in health.copies
            ],
            "hookObjects": [{"name": one.type, "distribution": one.distribution, "target": one.target} for one in health.hook_objects],
            "importSeconds": {f"{one.type} ({one.distribution})": round(taken, 6) for one, taken in seconds.items()},
            "serving": None if told is None else {"url": told.url, "ready": told.ready, "remarks": list(told.remarks)},
            "findings": json.loads(render_json(diagnostics)),
        }
    )
