"""The Containerfile without a container tool: its commands as they stand, in namespaces whose file system can be read only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from endpick import __version__
from integration.plugins.serving import serving

pytestmark = pytest.mark.timeout(1800)
"""Whichever test comes first waits for the build."""
ROOT = Path(__file__).parents[3]
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: static-discovery, parameters: {endpoints: [{name: a, address: 10.0.0.1, port: 8000}]}}
- {type: queue-scorer}
dataLayer: {discovery: {endpoints: {pluginRef: static-discovery}}}
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """The instructions between one FROM and the next."""

    instructions: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]

    def one(self, name: str) -> str:
        (found,) = self.all(name)
        return found


def stages(text: str) -> list[Stage]:
    lines = re.sub(r"\\\n", " ", text).splitlines()
    instructions = [tuple(line.split(None, 1)) for line in lines if line.strip() and not line.startswith("#")]
    begins = [index for index, (name, _) in enumerate(instructions) if name == "FROM"]
    return [Stage(tuple(instructions[begin:end])) for begin, end in zip(begins, [*begins[1:], None], strict=True)]


BUILD, IMAGE = stages((ROOT / "deploy" / "Containerfile").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What the first stage leaves; skips where mounts and users cannot be changed."""
    possible = os.geteuid() == 0 and all(map(shutil.which, ("unshare", "setpriv", "cc")))
    if not possible or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("only root with unshare and setpriv, and a C compiler, can do here what a container tool does")
    folder = tmp_path_factory.mktemp("container")
    (folder / "opt").mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / "src" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target)
    for command in BUILD.all("RUN"):
        if "apt-get" not in command:  # this machine has its compiler already
            run = f"cd {folder}/src && export PATH=/mnt/bin:$PATH && {command}"
            subprocess.run(in_namespace(folder, run), env=environment(), check=True, timeout=1500)
    return folder


def environment() -> dict[str, str]:
    """The caller's, without optimisation by the C compiler, which takes minutes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_", "ENDPICK"))}
    return {**kept, "CFLAGS": "-O0"}


def in_namespace(folder: Path, command: str) -> list[str]:
    """A command to which the folder's `opt` is `/opt`, and this Python `/mnt`, where every user can read it."""
    mounts = f"mount --bind {folder}/opt /opt && mount --bind {sys.base_prefix} /mnt"
    return ["unshare", "--mount", "bash", "-euc", f"{mounts}; {command}"]


@pytest.mark.long
@pytest.mark.asyncio
async def test_image_serves_as_a_user_without_write_access(folder):
    assert IMAGE.one("COPY") == "--from=build /opt/endpick /opt/endpick"
    user, group = IMAGE.one("USER").split(":")
    entry = shlex.join(re.findall(r'"([^"]+)"', IMAGE.one("ENTRYPOINT")))
    path = IMAGE.one("ENV").partition("=")[2]
    (folder / "opt" / "config.yaml").write_text(CONFIG)
    drop = f"setpriv --reuid={user} --regid={group} --clear-groups --no-new-privs --bounding-set=-all"
    checks = "for place in / /etc /opt/endpick; do if touch $place/x 2>/dev/null; then exit 1; fi; done; touch /tmp/x"
    inside = (
        "mount -t tmpfs -o mode=1777,size=64m tmpfs /tmp; mount -o remount,bind,ro /opt; mount -o remount,bind,ro /; "
        f"cd /opt; shift 3; export PATH={path} LD_LIBRARY_PATH=/mnt/lib; {drop} sh -euc '{checks}'; exec {drop} {entry} \"$@\""
    )
    python = folder / "python"
    python.write_text(f'#!/bin/bash\nexec {shlex.join(in_namespace(folder, inside))} {shlex.quote("bash")} "$@"\n')
    python.chmod(0o755)
    async with serving(folder, python=python, path=None) as picker:
        assert await picker.ask() == ("10.0.0.1:8000", 0)
        assert (await picker.health())[0] == 200
        status = await asyncio.to_thread(Path(f"/proc/{picker.process.pid}/status").read_text)
        assert re.search(rf"^Uid:\t{user}\t{user}", status, re.MULTILINE)
        assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)


@pytest.mark.long
def test_its_request_path_is_compiled(folder):
    doctor = subprocess.run(in_namespace(folder, "/opt/endpick/bin/endpick doctor"), capture_output=True, text=True, check=True)
    assert "request path compiled" in doctor.stdout


@pytest.mark.long
def test_bill_of_materials_lists_what_is_installed(folder):
    listed = subprocess.run(in_namespace(folder, "/opt/endpick/bin/pip list --format=json"), capture_output=True, text=True, check=True)
    components = json.loads((folder / "opt" / "endpick" / "sbom.cdx.json").read_text())["components"]
    installed = {(each["name"], each["version"]) for each in json.loads(listed.stdout)}
    assert ("endpick", __version__) in installed
    assert installed <= {(each["name"], each["version"]) for each in components}


def test_the_stages_are_the_ones_that_the_test_knows():
    assert {name for name, _ in BUILD.instructions} == {"FROM", "RUN", "WORKDIR", "COPY"}
    assert [name for name, _ in IMAGE.instructions] == ["FROM", "COPY", "ENV", "USER", "ENTRYPOINT"]
    assert BUILD.one("COPY") == ". ."
    assert "/opt/endpick" in BUILD.all("RUN")[-1]
