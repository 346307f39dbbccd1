"""Compare `upstream.csv` with a checkout of llm-d's router: names that one of the two lacks.

Takes a git directory, a bare one or a work tree's, and a commit: `tools/compare_upstream.py ../llm-d-router/.git main`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from endpick.config.upstream import State, upstream_names

RUNNER = "cmd/epp/runner/runner.go"
OPTIONS = "pkg/epp/server/options.go"
CONFIG = "apix/config/"

_IMPORT = re.compile(r'^\s*(?:(\w+)\s+)?"github\.com/llm-d/llm-d-router/([\w./-]+)"', re.MULTILINE)
_REGISTERED = re.compile(r"\.Register(?!FeatureGate)\w*\(\s*(\w+)\.(\w+),")
_GATE = re.compile(r"RegisterFeatureGate\((\w+)\.(\w+)")
_CONSTANT = re.compile(r'^\s*(?:const\s+)?(\w+)(?:\s+\w+)?\s*=\s*"([\w./-]+)"', re.MULTILINE)
_FLAG = re.compile(r'fs\.\w+Var\w*\(\s*&?[\w.()]+,\s*"([\w-]+)"')
_TAG = re.compile(r'`json:"(\w+)')
_LOGGING_FLAG = re.compile(r"v$|zap-")  # of a library
Names = set[tuple[str, str, str]]  # kind, owner, name


class Checkout:
    """Files of one commit of a git directory."""

    def __init__(self, folder: Path, commit: str) -> None:
        self._folder, self._commit = folder, commit
        self.files = self._git("ls-tree", "-r", "--name-only", commit).splitlines()

    def read(self, path: str) -> str:
        """The text of a file."""
        return self._git("show", f"{self._commit}:{path}")

    def sources(self, folder: str) -> Iterator[str]:
        """The texts of a Go package, without its tests."""
        for path in self.files:
            if path.rpartition("/")[0] == folder.rstrip("/") and path.endswith(".go") and not path.endswith("_test.go"):
                yield self.read(path)

    def constant(self, name: str) -> str:
        """The first string constant of this name, anywhere; the name itself if there is none."""
        lines = self._git("grep", "-hE", rf"\b{name}\b.*=\s*\"", self._commit, "--", "*.go")
        return next((value for key, value in _CONSTANT.findall(lines) if key == name), name)

    def _git(self, *arguments: str) -> str:
        return subprocess.run(["git", "--git-dir", self._folder, *arguments], check=True, capture_output=True, text=True).stdout


def names_in(checkout: Checkout) -> Names:
    """Types and their parameters, fields, flags and gates of a checkout."""
    runner = checkout.read(RUNNER)
    packages = {alias or path.rpartition("/")[2]: path for alias, path in _IMPORT.findall(runner)}
    found: Names = set()
    for pattern, kind in ((_REGISTERED, "type"), (_GATE, "gate")):
        for alias, constant in pattern.findall(runner):
            texts = list(checkout.sources(packages.get(alias, "")))
            name = next((value for text in texts for key, value in _CONSTANT.findall(text) if key == constant), None)
            name = name or checkout.constant(constant)  # some packages take their constant from another
            found.add((kind, "", name))
            if kind == "type":
                found |= {("parameter", name, tag) for text in texts for tag in _TAG.findall(text)}
    found |= {("flag", "", name) for name in _FLAG.findall(checkout.read(OPTIONS))}
    for path in checkout.files:
        if path.startswith(CONFIG) and path.endswith("_types.go"):
            found |= {("field", "", name) for name in _TAG.findall(checkout.read(path))}
    return found


def main() -> int:
    """Print the differences; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("git_directory", type=Path)
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--parameters", action="store_true", help="also list parameters that the table does not mention")
    arguments = parser.parse_args()
    found = names_in(Checkout(arguments.git_directory, arguments.commit))
    known = {(row.kind, row.owner, row.name.rpartition(".")[2] if row.kind == "field" else row.name): row for row in upstream_names()}
    new = {key for key in found - known.keys() if arguments.parameters or key[0] != "parameter"}
    gone = {key for key, row in known.items() if row.state is State.CURRENT and key not in found and not _LOGGING_FLAG.match(key[2])}
    for sign, keys in (("+", new), ("-", gone)):
        for key in sorted(keys):
            print(sign, *filter(None, key))
    return int(bool(new or gone))


if __name__ == "__main__":
    sys.exit(main())
