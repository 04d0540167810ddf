"""Look at reports in a real Chromium: what it complains of, and how they look.

    python scripts/shots.py                 # make docs/shots: every report and a terminal
    python scripts/shots.py PAGE --out DIR  # check one page, and take its pictures

A page is opened from disk at 400, 800 and 1600 pixels, light and dark. It is a fault when the
browser logs an error, when anything is fetched, when a script of a stranger ran, when the page is
wider than the window, or when its first chart tells no value or does not zoom. Faults are printed,
and the exit code is 1. Without a Chromium it is 3.
"""

import argparse
import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (400, 800, 1600)
STARTS_WITHIN_S = 60.0
OPENED_MARK = "SHOTS"
NO_BROWSER = 3


class Browser:
    """One tab of a Chromium, driven through its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.number = socket, 0
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        """Call a method and return its result; events that come meanwhile are kept.

        Raises RuntimeError with Chromium's own error.
        """
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": params})
        while True:
            message = json.loads((await self.socket.receive()).data)
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
            self.events.append(message)

    async def until(self, event: str) -> None:
        """Wait for an event."""
        while not any(one.get("method") == event for one in self.events):
            self.events.append(json.loads((await self.socket.receive()).data))

    async def value(self, expression: str) -> Any:  # noqa: ANN401 - whatever the page has
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")


@asynccontextmanager
async def browser(program: str) -> AsyncIterator[Browser]:
    """Start a Chromium without a window, for the time of the block.

    Raises RuntimeError when it ends at once, TimeoutError when it does not start.
    """
    folder = tempfile.mkdtemp(prefix="tuner-shots-")
    process = await asyncio.create_subprocess_exec(
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
        "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(STARTS_WITHIN_S):
            line = b""
            while b"DevTools listening on ws://" not in line:
                line = await process.stderr.readline()
                if not line:
                    raise RuntimeError(f"{program} ended before it could be asked")
        address = line.split(b"ws://")[1].split(b"/")[0].decode()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as answer:
                tab = next(one for one in await answer.json() if one["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
        shutil.rmtree(folder, ignore_errors=True)


async def looked_at(tab: Browser, page: str) -> tuple[list[str], dict[str, bytes]]:
    """Open a page at every width, light and dark; return its faults, and its pictures by name."""
    faults, pictures = list[str](), dict[str, bytes]()
    for domain in ("Page", "Log", "Runtime", "Network"):
        await tab.call(f"{domain}.enable")
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            await _sized(tab, width, scheme)
            tab.events.clear()
            await tab.call("Page.navigate", url=page)
            await tab.until("Page.loadEventFired")
            where = f"{width} px, {scheme}"
            faults += [f"{where}: {one}" for one in await _faults(tab, width, page)]
            picture = await tab.call("Page.captureScreenshot", format="png")
            pictures[f"{width}-{scheme}.png"] = base64.b64decode(picture["data"])
    faults += [f"{WIDTHS[-1]} px: {one}" for one in await _tried(tab)]
    return faults, pictures


FIRST_CHART = """(() => {
  const chart = document.querySelector(".chart");
  if (!chart) return null;
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  chart.scrollIntoView({ block: "center", behavior: "instant" });
  const box = chart.querySelector("svg").getBoundingClientRect();
  return [box.left, box.top, box.width, box.height];
})()"""
CHART = "document.querySelector('.chart')"
IS_ZOOMED = f"{CHART}.classList.contains('zoomed')"
IS_WHOLE = f"!{IS_ZOOMED}"
TELLS = f"!{CHART}.querySelector('output').hidden"


async def _tried(tab: Browser) -> list[str]:
    """Read values off the first chart and zoom it, by pointer and by keyboard; return what failed.
    The chart is left zoomed, with the pointer on it."""
    box = await tab.value(FIRST_CHART)
    if box is None:
        return []
    hand = _Hand(tab, *box)
    moves: Sequence[tuple[Callable[[], Awaitable[None]], str, str]] = (
        (hand.points, TELLS, "a pointer on a chart is told nothing"),
        (hand.drags, IS_ZOOMED, "dragging over a chart does not zoom"),
        (hand.clicks_twice, IS_WHOLE, "a double click does not show all of a chart"),
        (hand.comes_by_keyboard, TELLS, "an arrow key is told nothing"),
        (lambda: hand.types("+"), IS_ZOOMED, "the plus key does not zoom"),
        (lambda: hand.types("Escape"), IS_WHOLE, "Escape does not show all of a chart"),
        (hand.drags, IS_ZOOMED, "what was reset does not zoom"),
    )
    faults = []
    for move, condition, fault in moves:
        await move()
        if not await tab.value(condition):
            faults.append(fault)
    return faults


class _Hand:
    """A pointer and keys on a chart, whose places are shares of its width and height."""

    def __init__(self, tab: Browser, left: float, top: float, width: float, height: float) -> None:
        self.tab, self.box = tab, (left, top, width, height)

    async def mouse(self, kind: str, across: float, down: float, clicks: int = 0) -> None:
        left, top, width, height = self.box
        await self.tab.call(
            "Input.dispatchMouseEvent", type=kind, x=left + across * width, y=top + down * height,
            button="left" if clicks else "none", buttons=min(1, clicks), clickCount=clicks,
        )  # fmt: skip

    async def types(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.tab.call("Input.dispatchKeyEvent", type=kind, key=name)

    async def points(self) -> None:
        for part in (0.3, 0.4):
            await self.mouse("mouseMoved", part, 0.3)

    async def drags(self) -> None:
        await self.points()
        await self.mouse("mousePressed", 0.4, 0.3, 1)
        for part in (0.45, 0.5, 0.6):
            await self.mouse("mouseMoved", part, part, 1)
        await self.mouse("mouseReleased", 0.6, 0.6, 1)

    async def clicks_twice(self) -> None:
        for clicks in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                await self.mouse(kind, 0.5, 0.4, clicks)

    async def comes_by_keyboard(self) -> None:
        await self.mouse("mouseMoved", -0.02, 0.4)
        await self.tab.value(f"{CHART}.focus()")
        await self.types("ArrowRight")


async def _sized(tab: Browser, width: int, scheme: str, height: int = 1000) -> None:
    await tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    feature = {"name": "prefers-color-scheme", "value": scheme}
    await tab.call("Emulation.setEmulatedMedia", features=[feature])


async def _faults(tab: Browser, width: int, page: str) -> list[str]:
    wide = await tab.value("document.documentElement.scrollWidth")
    marked = await tab.value(f"typeof window.{OPENED_MARK}")
    found = [] if wide <= width else [f"is {wide} pixels wide"]
    found += [] if marked == "undefined" else ["a script of a stranger ran"]
    for event in tab.events:
        params = event.get("params", {})
        match event.get("method"):
            case "Log.entryAdded" if params["entry"]["level"] in {"error", "warning"}:
                found.append(f"the browser says: {params['entry']['text']}")
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                found.append(f"a script ran: {params}")
            case "Network.requestWillBeSent":
                url = str(params["request"]["url"])
                if url != page and not url.startswith("data:"):
                    found.append(f"fetches {url[:200]}")
            case _:
                pass
    return found


def chromium() -> str | None:
    """Return the Chromium on PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


async def _looked_at(program: str, page: str) -> tuple[list[str], dict[str, bytes]]:
    async with browser(program) as tab:
        return await looked_at(tab, page)


def check(program: str, page: Path, out: Path) -> list[str]:
    """Return the faults of a page, and keep its pictures in a folder."""
    faults, pictures = asyncio.run(_looked_at(program, page.resolve().as_uri()))
    out.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (out / f"{page.stem}-{name}").write_bytes(picture)
    return [f"{page.name}, {one}" for one in faults]


async def pictured(program: str, page: str, *, width: int, height: int) -> bytes:
    """Return one picture of a page."""
    async with browser(program) as tab:
        await tab.call("Page.enable")
        await _sized(tab, width, "light", height)
        await tab.call("Page.navigate", url=page)
        await tab.until("Page.loadEventFired")
        picture = await tab.call("Page.captureScreenshot", format="png")
        return base64.b64decode(picture["data"])


SIM = (
    *("--trace", str(ROOT / "traces" / "translation.jsonl"), "--engine", "sim"),
    *("--world", str(ROOT / "examples" / "worlds" / "article-noisy.yaml")),
)
COMMANDS = {
    "sweep": ("sweep", *SIM, "--slo", "e2el=20s,tpot=60ms", "--run-dir", "runs/sweep"),
    "refine": ("refine", "profile.yaml", *SIM, "--run-dir", "runs/refine"),
    "compare": (
        *("compare", "--profile", "profile.yaml", *SIM, "--run-dir", "runs/compare"),
        *("--loads", "heavy", "--repeats", "3"),
    ),
    "verify": ("verify", "profile.yaml", *SIM, "--run-dir", "runs/verify"),
}
"""Command → what is run in one folder, one after the other: each needs the sweep's profile."""

VERDICTS = {0, 5, 6}
COLUMNS = 80
SLOWER = 1.25
"""Of the server that is watched, against what its profile promises."""


def shipped(program: str, out: Path) -> list[str]:
    """Make the pictures of the docs: every command's report, and the last screen of a sweep. Return
    the faults of the reports."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        said = {one: _run(command, folder, words) for one, command in COMMANDS.items()}
        with chdir(folder):  # so that no place of this machine is in a picture
            _watch(Path("runs") / "watch")
        faults = []
        for one in (*COMMANDS, "watch"):
            page = folder / f"{one}.html"
            _run(("report", f"runs/{one}", "-o", page.name), folder, {})
            _picture(program, page, out / f"report-{one}.png", width=1000, height=1180)
            faults += check(program, page, folder / "shots")
        screen = folder / "screen.html"
        console = Console(width=COLUMNS, record=True, file=io.StringIO())
        console.print(Text.from_ansi(said["sweep"]))
        screen.write_text(console.export_html(inline_styles=True), encoding="utf-8")
        _picture(program, screen, out / "terminal.png", width=800, height=490)
        return faults


def _run(command: Sequence[str], folder: Path, words: Mapping[str, str]) -> str:
    """Run a command of tuner, and return what it printed."""
    done = subprocess.run(  # noqa: S603 - our own program
        [str(Path(sys.executable).with_name("tuner")), *command],
        cwd=folder,
        env=os.environ | words,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in VERDICTS:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def _watch(run_dir: Path) -> None:
    """Watch a simulated server that is slower than its profile says, on a clock that nobody waits
    for."""
    from tests.live.watch.test_watch import CAP, CAPS, RATE, STORED, WORLD  # noqa: PLC0415
    from tests.support.live_sim import poisson, profile_of, simulated  # noqa: PLC0415
    from tests.support.served_metrics import FreeClock, page_of, serving  # noqa: PLC0415
    from tuner.commands.watch.options import WatchOptions  # noqa: PLC0415
    from tuner.commands.watch.run import run  # noqa: PLC0415
    from tuner.errors import TunerError  # noqa: PLC0415
    from tuner.profile.profile import save  # noqa: PLC0415

    promised = profile_of(WORLD, STORED, 600.0, cap=CAP, caps=CAPS)
    save(promised, Path("watched.yaml"))
    step = WORLD.step
    slow = replace(WORLD, step=replace(step, a=SLOWER * step.a, b=SLOWER * step.b))
    server = simulated(slow, poisson(RATE, 900.0, seed=2), cap=CAP, until_s=900.0)
    clock = FreeClock()
    with (
        serving(page_of(server), clock) as url,
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        suppress(TunerError),
    ):
        options = WatchOptions(profile=Path("watched.yaml"), url=url, for_="800s", run_dir=run_dir)
        run(options, clock=clock)


def _picture(program: str, page: Path, out: Path, *, width: int, height: int) -> None:
    """Take one picture of a page, a small one where pngquant is there."""
    out.write_bytes(asyncio.run(pictured(program, page.as_uri(), width=width, height=height)))
    if quant := shutil.which("pngquant"):
        shrink = [quant, "--force", "--ext", ".png", str(out)]
        subprocess.run(shrink, check=True)  # noqa: S603 - our own picture


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("page", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "shots")
    asked = parser.parse_args()
    program = chromium()
    if program is None:
        sys.stderr.write(f"no Chromium on PATH ({', '.join(NAMES)}): apt-get install chromium\n")
        return NO_BROWSER
    if asked.page is None:
        faults = shipped(program, asked.out)
    else:
        faults = check(program, asked.page, asked.out)
    sys.stdout.write("".join(f"{one}\n" for one in faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
