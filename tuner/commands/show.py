"""``tuner show``: a profile, a run, or the differences of two things."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tuner.commands.options import ShowOptions
from tuner.commands.shared.next_step import after
from tuner.commands.shared.results import kept_page
from tuner.commands.shared.run_folder import command_of, making_sense, read_run, resume_command
from tuner.errors import ByHandError, InputError, RunError, TargetError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.replay.records import Replay
from tuner.rollout import difference, fit
from tuner.rollout.find import Target, is_profile, read_text
from tuner.runs.cluster.prices import parse_prices, price_of
from tuner.runs.evidence import Evidence
from tuner.runs.journal import JOURNAL, Journal, Replayed
from tuner.system import files
from tuner.system.printable import printable
from tuner.trace.trace import load as load_trace
from tuner.views.html import GENERATOR, page_html
from tuner.views.over_time import steps_section, traffic_section
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import profile_page, several_page
from tuner.views.text import print_json, print_page

if TYPE_CHECKING:
    import pyarrow as pa

PAGES, TABLES, PROFILES = {".html", ".htm"}, {".csv", ".parquet", ".json"}, {".yaml", ".yml"}
"""Suffixes of what ``-o`` writes."""
TRACE_COPY = "trace.jsonl"
"""In the run directory: the requests that were tuned for, so that the run can be decided again."""
CONTINUE = "Continue the run: tuner resume RUN_DIR."
UNFINISHED = "This run has not ended: what stands here is what was measured until now."


def run(options: ShowOptions) -> None:
    """Print a page, or write it. Raises TunerError."""
    path = options.output
    _check_together(options)
    if _decides_again(options) or (path is not None and path.suffix in PROFILES):
        from tuner.commands.sweep import decide_again  # noqa: PLC0415 - numba

        decide_again(options)
    elif options.flags:
        profile = profiles.load(options.source)
        fit.check_visible(profile)
        sys.stdout.write(f"{shlex.join(fit.to_paste(profile, pin=True))}\n")
    elif path is not None:
        _write(options, path)
    elif options.json:
        print_json(_page(options))
    else:
        print_page(_page(options), details=options.details)


def _decides_again(options: ShowOptions) -> bool:
    return options.slo is not None or bool(options.require)


def _check_together(options: ShowOptions) -> None:
    """Raise UsageError for options of which one would be ignored."""
    again, path = _decides_again(options), options.output
    given = {
        "--slo or --require": again,
        "--flags": options.flags,
        "--prices": options.prices is not None,
        "--json": options.json and options.flags,
        f"-o {path}": path is not None and options.flags,
        str(options.target): options.target is not None and (again or options.flags),
    }
    if len(names := [name for name, is_given in given.items() if is_given]) > 1:
        raise UsageError(f"{' and '.join(names)} cannot be combined", hint="Leave one of them out.")
    if again and path is not None and path.suffix not in PROFILES:
        raise UsageError(
            f"-o {path}: under another SLO or other requirements a profile is written",
            hint=f"Write it, then show it: -o {path.with_suffix('.yaml')}.",
        )


def _page(options: ShowOptions) -> Page:
    source = options.source
    if options.prices is not None:
        return _costs(options, options.prices)
    if options.target is not None:
        return _differences(profiles.load(source), str(source), options.target)
    if source.is_dir():
        with making_sense(source, is_stored=True):
            return _run_page(source, over_time=options.output is not None)
    profile = profiles.load(source)
    return profile_page(profile, subject=f"Serving profile {source}", next_=after(profile, source))


def _run_page(run_dir: Path, *, over_time: bool) -> Page:
    """Return the page of a run: as its command ended, or as far as it came; ``over_time`` with all
    that was replayed."""
    page = kept_page(run_dir)
    if page is not None and not (over_time and (run_dir / JOURNAL).exists()):
        return page
    book = read_run(run_dir)
    page = page or _unfinished(book)
    if not over_time:
        return page
    replays, lost = list[Replay](), list[str]()
    for event in book.of(Replayed):
        try:
            replays.append(book.replay(event))
        except RunError as problem:
            lost.append(str(problem))
    if lost:
        words = f"{len(lost)} of its replays cannot be read back: {lost[0]}."
        page = replace(page, missing=f"{page.missing} {words}".strip())
    sections = [*page.sections]
    if (path := run_dir / TRACE_COPY).exists():
        selection = Evidence(book).selection()
        windows = selection.windows if selection else ()
        sections.append(traffic_section(load_trace(path).requests, windows))
    if replays:
        sections.append(steps_section(replays))
    return replace(page, sections=sections)


def _unfinished(book: Journal) -> Page:
    """Return a run that has not ended: a sweep as if it ended now, others by their plan."""
    missing = UNFINISHED
    if command_of(book) == "sweep" and "kinds" not in book.plan:
        from tuner.commands.sweep import rescored, sealed  # noqa: PLC0415 - numba

        try:
            profile = sealed(rescored(book))
        except InputError as problem:
            missing += f" Nothing can be decided yet: {problem}."
        else:
            page = profile_page(
                profile, subject=f"Sweep {book.run_dir}", next_=resume_command(book)
            )
            return replace(page, missing=missing)
    rows: list[list[Cell]] = [[key, str(value)] for key, value in book.plan.items()]
    plan = Table([Column("key", "option"), Column("value", "value")], rows)
    return Page(
        subject=f"Run {book.run_dir}",
        title="Not decided yet",
        facts=[("measured", f"{len(list(book.of(Replayed)))} replays")],
        sections=[Section("Plan", tables=[plan])],
        missing=missing,
        next=resume_command(book),
    )


def _costs(options: ShowOptions, prices: str) -> Page:
    """Return what a million output tokens within the SLO cost with each profile."""
    paths = dict.fromkeys([str(options.source), options.target or str(options.source)])
    loaded = {path: profiles.load(Path(path)) for path in paths}
    by_gpu, each = parse_prices(prices), dict[str, float]()
    for name, profile in loaded.items():
        device, stem = profile.provenance.device.get("name"), Path(name).stem
        price = price_of(by_gpu, f"{device} {stem}")
        if price is None:
            raise UsageError(
                f"--prices {prices}: none for {name}, which was measured on {device}",
                hint=f"Name a part of either: --prices {shlex.quote(stem)}=2.5",
            )
        each[name] = price
    return several_page(loaded, each, subject="Prices")


def _differences(profile: ServingProfile, source: str, target: str) -> Page:
    """Return in what another profile, a deployment file or a server differs from a profile."""
    facts = []
    if "://" in target:
        from tuner.live import server as live_server  # noqa: PLC0415 - slow to load

        server = live_server.ask(target)
        result = difference.of_server(
            profile, server.arguments, server.version, source=target, served=server.served
        )
        if unknown := difference.untold(profile, server.arguments, served=server.served):
            facts.append(("unknown", f"the server does not report {', '.join(unknown)}"))
    else:
        result = _from_file(profile, Path(target))
    columns = [
        Column("section", "section"),
        Column("name", "name"),
        Column("profile", source),
        Column("other", target),
        Column("why", "why"),
    ]
    rows: list[list[Cell]] = [
        [
            each.section,
            each.name,
            *("-" if value is None else str(value) for value in (each.profile, each.other)),
            each.why,
        ]
        for each in result
    ]
    count = len(result)
    return Page(
        subject=f"{source} and {target}",
        title=f"{count} difference{'s' * (count != 1)}" if count else "No difference",
        facts=facts,
        sections=[Section("Differences", tables=[Table(columns, rows)])] if rows else [],
    )


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
        problem.hint = f"{problem.hint} {' '.join(fit.to_paste(profile))}"
        raise
    return difference.of_deployment(profile, target.deployment(server))


def _write(options: ShowOptions, path: Path) -> None:
    """Write a page or a table, by the suffix of its file. Raises TargetError, UsageError."""
    is_page = path.suffix in PAGES
    if not is_page and path.suffix not in TABLES:
        raise UsageError(
            f"-o {path}: {path.suffix or 'no suffix'} is not a format",
            hint="Give page.html, or a table as .csv, .parquet or .json.",
        )
    target = files.resolve(path)
    files.check_writable(target)
    if is_page:
        content = page_html(_page(options)).encode()
    else:
        from tuner.views import tables  # noqa: PLC0415 - pyarrow

        content = tables.content(_table(options, path.stem), path.suffix)
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
    from tuner.views import tables  # noqa: PLC0415 - pyarrow

    if name not in tables.NAMES:
        result = [table for table in _page(options).tables if table.rows]
        if not result:
            raise RunError(f"{options.source}: no table yet", hint=CONTINUE)
        return tables.of_page(result[0])
    book = read_run(options.source)
    if not any(book.of(Replayed)):
        raise RunError(f"{options.source}: nothing measured yet", hint=CONTINUE)
    with making_sense(options.source, is_stored=True):
        return tables.of_run(book, name)
