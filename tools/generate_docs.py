"""Generate docs/reference/ and a section of compatibility.md from the code, or check that it is fresh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from docs_reference import admin, api, cli, compatibility, configuration, data_keys, diagnostics, hooks, metrics, plugins, testing

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
REPAIR = "run `make schemas`"
HAND_WRITTEN = frozenset({"index.md", "endpoint-files.md", "protocol.md"})

PAGES: dict[str, Callable[[], str]] = {
    "admin-api.md": admin.page,
    "api.md": api.page,
    "cli.md": cli.page,
    "configuration.md": configuration.page,
    "data-keys.md": data_keys.page,
    "diagnostics.md": diagnostics.page,
    "hooks.md": hooks.page,
    "metrics.md": metrics.page,
    "plugins.md": plugins.page,
    "testing.md": testing.page,
}


def main() -> int:
    """Write or compare; the exit code is 1 when something is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is missing, stale or superfluous")
    check = parser.parse_args().check
    wanted = {FOLDER / name: page() for name, page in PAGES.items()} | {FOLDER / name: text for name, text in plugins.pages().items()}
    wanted[compatibility.PAGE] = compatibility.page()
    superfluous = {path for path in FOLDER.rglob("*.md") if path not in wanted and str(path.relative_to(FOLDER)) not in HAND_WRITTEN}
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


if __name__ == "__main__":
    sys.exit(main())
