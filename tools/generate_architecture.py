"""Generate the drawn and listed parts of docs/explanation/architecture.md; with `--check` only say whether they are fresh."""

from __future__ import annotations

import argparse
import configparser
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docs_pictures.observe import Function, calls
from docs_pictures.one_run import run
from docs_pictures.sequence import Arrow, arrows, label, sequence
from docs_reference.markdown import code, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
REPAIR = "run `make schemas`"
_REFERENCE = re.compile(r"See (?:the class|`([\w.]+)`)")
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write or compare; the exit code is 1 when something is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the page or a picture is missing or stale")
    check = parser.parse_args().check
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if check:
            print(f"{path.relative_to(ROOT)} is out of date; {REPAIR}")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return int(check and bool(stale))


def generated() -> dict[Path, str]:
    """The page and its pictures, and their text."""
    observed = run()
    startup = arrows(calls(observed.startup, "", depth=1, repeat=True))
    request = arrows(calls(observed.request, "gateway", depth=len(layers())))
    parts = {"packages": _packages(), "startup": _steps(startup), "request": _steps(request)}
    page = _PART.sub(lambda part: f"{part[1]}\n{parts[part[2]]}\n\n{part[3]}", PAGE.read_text(encoding="utf-8"))
    return {
        PAGE: page,
        PAGE.with_name("architecture-startup.svg"): sequence("What starts endpick serve", startup),
        PAGE.with_name("architecture-request.svg"): sequence("The way of a chat request through endpick", request),
    }


def layers() -> tuple[tuple[str, ...], ...]:
    """The packages of each layer, the top one first, as `make check` enforces them."""
    contracts = configparser.ConfigParser()
    contracts.read_string((ROOT / ".importlinter").read_text(encoding="utf-8"))
    lines = contracts["importlinter:contract:layers"]["layers"].strip().splitlines()
    return tuple(tuple(name.strip() for name in line.split("|")) for line in lines)


def _packages() -> str:
    rows = [
        (str(number), code(name.removeprefix("endpick.")), _first_sentence(importlib.import_module(name)))
        for number, layer in enumerate(layers(), 1)
        for name in layer
    ]
    return table(("layer", "package", "what it is for"), rows)


def _steps(shown: tuple[Arrow, ...]) -> str:
    rows = [
        (str(number) if not at else "", f"{arrow.caller} → {arrow.callee}" if not at else "", code(_where(function)), _purpose(function))
        for number, arrow in enumerate(shown, 1)
        for at, function in enumerate(arrow.functions)
    ]
    return table(("", "from → to", "function", "what it does"), _told_once(rows))


def _told_once(rows: list[tuple[str, str, str, str]]) -> Iterator[tuple[str, str, str, str]]:
    told: set[str] = set()
    for number, between, function, purpose in rows:
        yield number, between, function, "as above" if function in told else purpose
        told.add(function)


def _where(function: Function) -> str:
    return f"{function.module.removeprefix('endpick.')}.{label(function)}"


def _purpose(function: Function) -> str:
    """The first sentence about the function, or what that refers to; where there is none, the first one about its class."""
    owner, found = _resolved(importlib.import_module(function.module), function.name)
    own = "" if function.name.endswith(".__init__") else _first_sentence(found)
    if (reference := _REFERENCE.match(own)) is not None:
        own = _first_sentence(_referred_to(reference[1] or "", function.name.rpartition(".")[2]))
    return own or _first_sentence(owner)


def _referred_to(name: str, method: str) -> object:
    """The interface that an implementation names instead of saying the same again; None when there is none of that name."""
    top = name.partition(".")[0]
    for module in [module for path, module in sorted(sys.modules.items()) if path.startswith("endpick.") and top in vars(module)]:
        _, found = _resolved(module, name)
        return getattr(found, method, None) if inspect.isclass(found) else found
    return None


def _resolved(module: object, name: str) -> tuple[object, object]:
    """What a dotted name stands for, and what that belongs to."""
    owner = found = module
    for part in name.split("."):
        owner, found = found, getattr(found, part, None)
    return owner, found


def _first_sentence(documented: object) -> str:
    paragraph = "" if documented is None else " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) ", paragraph, maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
