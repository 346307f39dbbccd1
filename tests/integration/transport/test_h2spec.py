"""The HTTP/2 conformance suite h2spec, strict mode, against the h2 transport."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

pytestmark = pytest.mark.long

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
INSTALL_SECONDS = 240
RUN_SECONDS = 100
PASSED = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


async def run(*command: str | Path, seconds: float, **environment: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env={**os.environ, **environment}
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return -1, f"no end after {seconds} s"
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest_asyncio.fixture
async def h2spec(tmp_path: Path) -> Path:
    """The binary of $ENDPICK_H2SPEC or the path, or one built by Go."""
    named = os.environ.get("ENDPICK_H2SPEC") or shutil.which("h2spec")
    if named:
        return Path(named)
    go = shutil.which("go")
    if go is None:
        pytest.skip("neither h2spec nor a Go toolchain to build it: set ENDPICK_H2SPEC, or install Go")
    code, output = await run(go, "install", H2SPEC, seconds=INSTALL_SECONDS, GOBIN=str(tmp_path))
    if code:
        pytest.skip(f"h2spec could not be built: {output.strip().splitlines()[-1]}")
    return tmp_path / "h2spec"


@pytest.mark.asyncio
@pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS + 20)
async def test_h2spec_passes_in_strict_mode(open_h2, h2spec):
    async with open_h2() as serving:
        code, output = await run(h2spec, "--strict", "-o", "5", "-h", "127.0.0.1", "-p", str(serving.port), seconds=RUN_SECONDS)
    summary = PASSED.search(output)
    assert summary is not None, output
    tests, passed, skipped, failed = map(int, summary.groups())
    assert (code, failed, skipped) == (0, 0, 0), output
    assert passed == tests >= 146
