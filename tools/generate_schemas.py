"""Generate the JSON Schemas under schemas/ from the code; with `--check` only say whether they are fresh."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from endpick import __version__
from endpick.cli.schema import config_schema, output_schemas, parameter_schemas, schema_text
from endpick.host.discovery import Candidate

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "schemas"
REPAIR = "run `make schemas`"


def main() -> int:
    """Write or compare; the exit code is 1 when something is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is missing, stale or superfluous")
    check = parser.parse_args().check
    wanted = generated()
    superfluous = {path for path in FOLDER.rglob("*.json") if path not in wanted}
    stale = {path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text}
    if check:
        for path in sorted(stale | superfluous):
            print(f"{path.relative_to(ROOT)} is out of date; {REPAIR}")
        return int(bool(stale or superfluous))
    for path in sorted(stale):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for path in sorted(superfluous):
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}")
    return 0


def generated() -> dict[Path, str]:
    """Every file that belongs into the folder, and its text."""
    builtin = builtin_candidates()
    documents = {f"{name}.v{_version(schema)}.json": schema for name, schema in output_schemas().items()}
    documents["config.v1.json"] = config_schema(builtin)
    documents |= {f"plugins/{plugin_type}.json": schema for plugin_type, schema in parameter_schemas(builtin).items()}
    return {FOLDER / name: schema_text(schema) for name, schema in documents.items()}


def _version(schema: Mapping[str, Any]) -> int:
    version: int = schema.get("properties", {}).get("version", {}).get("const", 1)
    return version


def builtin_candidates() -> tuple[Candidate, ...]:
    """The types of endpick's own distributions, from pyproject.toml: the metadata of an editable install may be older."""
    files = (ROOT / "pyproject.toml", *sorted((ROOT / "builtin_plugins").glob("*/pyproject.toml")))
    found = [candidate for file in files for candidate in _offered_in(file)]
    return tuple(sorted(found, key=lambda candidate: candidate.type))


def _offered_in(file: Path) -> Iterator[Candidate]:
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    for plugin_type, target in project["entry-points"]["endpick.plugins.v1"].items():
        yield Candidate(plugin_type, 1, project["name"], __version__, target, str(file))


if __name__ == "__main__":
    sys.exit(main())
