"""Runs ``tuner show``: a profile, a run, or the differences of two things."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tuner.commands.options import ShowOptions
from tuner.commands.shared.next_step import after
from tuner.commands.shared.results import kept_page
from tuner.commands.shared.run_folder import command_of, goes_on, making_sense, read_run
from tuner.errors import ByHandError, InputError, ProfileError, RunError, TargetError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import difference, fit
from tuner.rollout.find import Target, is_profile, read_text
from tuner.runs.cluster.prices import parse_prices, price_of
from tuner.runs.events import Replayed
from tuner.runs.evidence import Evidence
from tuner.runs.journal import Journal
from tuner.system import files
from tuner.system.printable import printable
from tuner.trace.trace import load as load_trace
from tuner.traffic.slo import Slo
from tuner.views import tables
from tuner.views.html import GENERATOR, page_html
from tuner.views.over_time import Steps, steps_sections, traffic_section
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import profile_page, several_page
from tuner.views.text import print_json, print_page

if TYPE_CHECKING:
    import pyarrow as pa


TRACE_COPY = "trace.jsonl"
GO_ON = "Continue the run: tuner resume RUN_DIR."
UNFINISHED = "This run has not ended: what stands here is what was measured until now."


def run(options: ShowOptions) -> None:
    """Print a page, or write it. Raises TunerError."""
    is_profile_wanted = options.output is not None and options.output.suffix in {".yaml", ".yml"}
    _check_together(options)
    if options.slo is not None or options.require or is_profile_wanted:
        from tuner.commands.sweep import decide_again  # noqa: PLC0415 - numba

        decide_again(options)
        return
    if not options.source.exists():
        raise ProfileError(
            f"{options.source}: there is no such file or folder",
            hint="Give the folder of a run (runs/...), or a serving profile.",
        )
    if options.flags:
        profile = profiles.load(options.source)
        fit.check_visible(profile)
        sys.stdout.write(f"{shlex.join(fit.to_paste(profile, pin=True))}\n")
        return
    if options.output is not None:
        _write(options, options.output)
        return
    page = _page(options)
    if options.json:
        print_json(msgspec.to_builtins(page))
    else:
        print_page(page, details=options.details)


def _check_together(options: ShowOptions) -> None:
    """Raise UsageError for options of which one would be ignored."""
    again, path = options.slo is not None or bool(options.require), options.output
    given = {
        "--slo or --require": again,
        "--flags": options.flags,
        "--prices": options.prices is not None,
        "--json": options.json and options.flags,
        f"-o {path}": path is not None and options.flags,
        str(options.other): options.other is not None and (again or options.flags),
    }
    if len(names := [name for name, is_given in given.items() if is_given]) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other", hint="Leave one of them out.")
    if again and path is not None and path.suffix in {".html", ".htm", *tables.FORMATS}:
        raise UsageError(
            f"-o {path}: under another SLO or other requirements a profile is written",
            hint=f"Write it, then show it: -o {path.with_suffix('.yaml')}.",
        )


def _page(options: ShowOptions, *, of_file: bool = False) -> Page:
    source = options.source
    if options.prices is not None:
        return _costs([source, Path(options.other or source)], options.prices)
    if options.other is not None:
        return _differences(profiles.load(source), options)
    if source.is_dir():
        with making_sense(source, is_stored=True):
            return _run_page(source, over_time=of_file)
    profile = profiles.load(source)
    subject = f"Serving profile {source}"
    return profile_page(profile, subject=subject, next_=after(profile, source))


def _run_page(run_dir: Path, *, over_time: bool) -> Page:
    """Return the page of a run: as its command ended, or as far as it came; ``over_time`` with all
    that was replayed."""
    page = kept_page(run_dir)
    if page is not None and not (over_time and (run_dir / "journal.jsonl").exists()):
        return page
    book = read_run(run_dir)
    steps = Steps.of(book)
    if page is None:
        page = _unfinished(book, steps)
    if steps.lost:
        more = f" and {len(steps.lost) - 1} more" * (len(steps.lost) > 1)
        lost = f"A part of this run cannot be read back: {steps.lost[0]}{more}."
        page = msgspec.structs.replace(page, missing=f"{page.missing} {lost}".strip())
    if not over_time:
        return page
    trace, selection = run_dir / TRACE_COPY, Evidence(book).selection()
    windows = () if selection is None else selection.windows
    traffic = [traffic_section(load_trace(trace).requests, windows)] if trace.exists() else []
    sections = [*page.sections, *traffic, *steps_sections(steps, _slo(run_dir))]
    return msgspec.structs.replace(page, sections=sections)


def _slo(run_dir: Path) -> Slo | None:
    path = run_dir / "profile.yaml"
    return profiles.load(path).decision.slo.slo if path.exists() else None


def _unfinished(book: Journal, steps: Steps) -> Page:
    """Return a run that has not ended: a sweep as if it ended now, others by what was measured."""
    plan, missing = book.plan, UNFINISHED
    Evidence(book).check()
    if command_of(book) == "sweep" and "kinds" not in plan:
        from tuner.commands.sweep import rescored, sealed  # noqa: PLC0415 - numba

        try:
            profile = sealed(rescored(book))
        except InputError as problem:
            missing = f"{UNFINISHED} Nothing can be decided yet: {problem}."
        else:
            page = profile_page(profile, subject=f"Sweep {book.run_dir}", next_=goes_on(book))
            return msgspec.structs.replace(page, missing=missing)
    rows: list[list[Cell]] = [[key, str(value)] for key, value in plan.items()]
    count = len(steps.steps)
    return Page(
        subject=f"Run {book.run_dir}",
        title="Not decided yet",
        facts=[("measured", f"{count} step{'s' * (count != 1)}")],
        sections=[
            Section(
                "Plan", tables=[Table([Column("key", "option"), Column("value", "value")], rows)]
            )
        ],
        missing=missing,
        next=goes_on(book),
    )


def _costs(paths: Sequence[Path], prices: str) -> Page:
    """Return what a million output tokens within the SLO cost with each profile."""
    loaded = {str(path): profiles.load(path) for path in dict.fromkeys(paths)}
    by_gpu, each = parse_prices(prices), dict[str, float]()
    for name, profile in loaded.items():
        device = str(profile.provenance.device.get("name"))
        price = price_of(by_gpu, f"{device} {Path(name).stem}")
        if price is None:
            raise UsageError(
                f"--prices {prices}: none for {name}, which was measured on {device}",
                hint=f"Name a part of either: --prices {shlex.quote(Path(name).stem)}=2.5",
            )
        each[name] = price
    return several_page(loaded, each, subject="Prices")


def _differences(profile: ServingProfile, options: ShowOptions) -> Page:
    """Return in what another profile, a deployment file or a server differs from a profile."""
    other, untold = options.other or "", list[str]()
    if "://" in other:
        from tuner.live import server as live_server  # noqa: PLC0415 - slow to load

        server = live_server.ask(other)
        result = difference.of_server(
            profile, server.arguments, server.version, source=other, served=server.served
        )
        untold = difference.untold(profile, server.arguments, served=server.served)
    else:
        result = _from_file(profile, Path(other))
    count = len(result)
    columns = [
        Column("section", "section"), Column("name", "name"),
        Column("profile", str(options.source)),
        Column("other", other), Column("evidence", "evidence"),
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [each.section, each.name, _shown(each.profile), _shown(each.other), each.evidence]
        for each in result
    ]
    return Page(
        subject=f"{options.source} and {other}",
        title=f"{count} difference{'s' * (count != 1)}" if count else "No difference",
        facts=[("unknown", f"the server does not report {', '.join(untold)}")] if untold else [],
        sections=[Section("Differences", tables=[Table(columns, rows)])] if rows else [],
    )


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _from_file(profile: ServingProfile, path: Path) -> list[difference.Difference]:
    text = read_text(path)
    if text is None:
        raise TargetError(f"{path}: no such file", hint="Check the path.")
    if is_profile(text):
        return difference.of_profiles(profile, profiles.parse(text, source=str(path)))
    target = Target.of(path, text)
    try:
        server = target.server()
    except ByHandError as problem:
        flags = " ".join(fit.to_paste(profile))
        raise ByHandError(str(problem), hint=f"{problem.hint} {flags}") from None
    return difference.of_deployment(profile, target.deployment(server))


def _write(options: ShowOptions, path: Path) -> None:
    """Write a page or a table, by the suffix of its file. Raises TargetError, UsageError."""
    is_page = path.suffix in {".html", ".htm"}
    if not is_page and path.suffix not in tables.FORMATS:
        raise UsageError(
            f"-o {path}: {path.suffix or 'no suffix'} is no format",
            hint="Give page.html, or a table as .csv, .parquet or .json.",
        )
    target = files.resolve(path)
    files.check_writable(target)
    if is_page:
        content = page_html(_page(options, of_file=True)).encode()
    else:
        content = tables.content(_table(options, path.stem), path)
    old = files.content(target)
    if old and _kind(old, is_page=is_page) != _kind(content, is_page=is_page):
        raise TargetError(
            f"{path}: exists already and holds something else",
            hint="Choose another -o, or remove it first.",
        )
    files.write_atomically(target, content)
    sys.stderr.write(f"{printable(str(path))}: {len(content) / 1e3:,.0f} kB\n")


def _kind(content: bytes, *, is_page: bool) -> bytes | bool:
    """Return by what a file of ours is known: the generator of a page, the columns of a table."""
    if is_page:
        return f'content="{GENERATOR}"'.encode() in content[:4096]
    return content[:4] if content[:4] == b"PAR1" else content.split(b"\n", 1)[0].split(b":", 1)[0]


def _table(options: ShowOptions, name: str) -> "pa.Table":
    """Return the table that a file of this name holds. Raises RunError."""
    make = tables.TABLES.get(name)
    if make is None:
        result = _page(options).tables
        if not result:
            raise RunError(f"{options.source}: has no table yet", hint=GO_ON)
        return tables.of_page(result[0])
    book = read_run(options.source)
    if not any(book.of(Replayed)):
        raise RunError(f"{options.source}: nothing is measured yet", hint=GO_ON)
    with making_sense(options.source, is_stored=True):
        return make(book)
