"""The HTML report in a real browser: ENDPICK_CHROMIUM names its binary, which is asked over its DevTools protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from click.testing import CliRunner
from websockets.sync.client import ClientConnection, connect

from endpick.cli.main import main

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
WORKLOAD = "duration: 20s\ntraffic: [{rate: 4, questionTokens: 200, outputTokens: 20, tenants: 2, prefixTokens: 640}]\n"
LAYOUT = """
({
  plots: [...document.querySelectorAll('svg')].filter(each => each.getBoundingClientRect().height > 100).length,
  width: innerWidth,
  text: document.body.innerText,
  wider: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  outside: [...document.querySelectorAll('body *')].filter(each => each.checkVisibility() && !each.closest('.wide, svg'))
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 80)),
  rows: [...document.querySelectorAll('td:first-child')].map(each => { const box = each.getBoundingClientRect();
    return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === each })
})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of its DevTools."""
    binary = os.environ.get("ENDPICK_CHROMIUM")
    if not binary:
        pytest.skip("no browser: set ENDPICK_CHROMIUM to the binary of a Chromium")
    profile = tmp_path_factory.mktemp("chromium")
    with Popen(
        [binary, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"], stderr=PIPE, text=True
    ) as process:
        assert process.stderr is not None
        yield next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening on"))
        process.terminate()
        process.stderr.read()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'endpick[simulate]'")
    folder = tmp_path_factory.mktemp("report")
    (folder / "load.yaml").write_text(WORKLOAD)
    arguments = ["--trace", str(folder / "load.yaml"), "--servers", "2", "--kv-blocks", "500", "--html", str(folder / "report.html")]
    ran = CliRunner().invoke(main, ["simulate", "default", "llm-d", *arguments])
    assert ran.exit_code == 0, ran.output
    return folder / "report.html"


class Page:
    """One tab; keeps what it complains about."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._events: list[dict] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict:
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters} | session))
        while (message := self._receive()).get("id") != number:
            self._events.append(message)
        return message["result"]

    def open(self, url: str, width: int) -> dict:
        """Lay a page out, and measure it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=20_000, deviceScaleFactor=1, mobile=width < 600)
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive())
        return self.call("Runtime.evaluate", expression=LAYOUT, returnByValue=True)["result"]["value"]

    @property
    def complaints(self) -> list[dict]:
        """Messages on the console, exceptions and failed requests."""
        methods = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event for event in self._events if event.get("method") in methods]

    def _receive(self) -> dict:
        return json.loads(self._socket.recv(timeout=30))


@pytest.mark.parametrize("width", [1280, 390])  # 80 rem, and a phone
def test_the_report_is_laid_out_without_overflow(browser: str, report: Path, width: int) -> None:
    with connect(browser, max_size=2**24) as socket:
        page = Page(socket)
        seen = page.open(report.as_uri(), width)
        assert page.complaints == []
    assert (seen["width"], seen["plots"], seen["wider"], seen["outside"]) == (width, 3, 0, [])
    assert "TTFT MEAN" in seen["text"]
    assert seen["rows"] == [True] * 4
