"""``tuner show``: a profile, a run, or the differences of two things."""

import shlex
import sys
from pathlib import Path

from msgspec.structs import replace

from tuner.commands.options import ShowOptions
from tuner.commands.shared.next_step import after, command
from tuner.commands.shared.run_folder import kept_page, making_sense, read_run
from tuner.errors import ByHandError, RunError, TargetError, UsageError
from tuner.profile import profile as profiles
from tuner.profile.profile import ServingProfile
from tuner.rollout import difference, fit
from tuner.rollout.find import Target, is_profile, read_text
from tuner.runs.cluster.nodes import parse_prices, price_of
from tuner.runs.journal import JOURNAL, Replayed
from tuner.system import files
from tuner.system.printable import printable
from tuner.trace.trace import load
from tuner.views.html import GENERATOR, page_html
from tuner.views.over_time import steps_section, traffic_section
from tuner.views.page import Cell, Column, Page, Section, Table
from tuner.views.profile import profile_page, several_page
from tuner.views.tables import content
from tuner.views.text import print_json, print_page

TABLES, PROFILES = {".csv", ".parquet", ".json"}, {".yaml", ".yml"}
"""Suffixes of what ``-o`` writes, beside pages."""


def run(options: ShowOptions) -> None:
    """Print a page, or write it. Raises TunerError."""
    path, again = options.output, options.slo is not None or bool(options.require)
    given = {
        "--slo or --require": again,
        "--flags": options.flags,
        "--prices": options.prices is not None,
        "--json": options.json and options.flags,
        f"-o {path}": path is not None
        and (options.flags or (again and path.suffix not in PROFILES)),
        str(options.target): options.target is not None and (again or options.flags),
    }
    if len(names := [name for name, is_given in given.items() if is_given]) > 1:
        raise UsageError(f"{' and '.join(names)} cannot be combined", hint="Leave one of them out.")
    if again or (path is not None and path.suffix in PROFILES):
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


def _page(options: ShowOptions) -> Page:
    source = options.source
    if options.prices is not None:
        return _costs(options)
    if options.target is not None:
        return _differences(profiles.load(source), str(source), options.target)
    if source.is_dir():
        with making_sense(source):
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
    if page is None:
        page = Page(
            subject=f"Run {run_dir}",
            title=f"Not decided yet, {len(list(book.of(Replayed)))} replays are kept",
            warnings=["this run has not ended: what stands here is what was measured until now"],
            next=command("resume", run_dir.parent if book.planned.is_part else run_dir),
        )
    if not over_time:
        return page
    sections, replays = [*page.sections], [book.replay(event) for event in book.of(Replayed)]
    if (path := run_dir / "trace.jsonl").exists():
        sections.append(traffic_section([each.arrival_s for each in load(path).requests]))
    if replays:
        sections.append(steps_section(replays))
    return replace(page, sections=sections)


def _costs(options: ShowOptions) -> Page:
    """Return what a million output tokens within the SLO cost with each profile."""
    by_gpu, each = parse_prices(options.prices or ""), dict[str, float]()
    names = filter(None, (str(options.source), options.target))
    loaded = {name: profiles.load(Path(name)) for name in names}
    for name, profile in loaded.items():
        device, stem = profile.provenance.device.get("name"), Path(name).stem
        price = price_of(by_gpu, f"{device} {stem}")
        if price is None:
            raise UsageError(
                f"--prices {options.prices}: none for {name}, which was measured on {device}",
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
    headings = ("section", "name", source, target, "why")
    rows: list[list[Cell]] = [
        [value if value is None else str(value) for value in each] for each in result
    ]
    table = Table(list(map(Column, difference.Difference._fields, headings)), rows)
    count = len(result)
    return Page(
        subject=f"{source} and {target}",
        title=f"{count} difference{'s' * (count != 1)}" if count else "No difference",
        facts=facts,
        sections=[Section("Differences", tables=[table])] if rows else [],
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
        problem.hint += f" {' '.join(fit.to_paste(profile))}"
        raise
    return difference.of_deployment(profile, target.deployment(server))


def _write(options: ShowOptions, path: Path) -> None:
    """Write a page or a table, by the suffix of its file. Raises TargetError, UsageError."""
    is_page = path.suffix == ".html"
    if not is_page and path.suffix not in TABLES:
        raise UsageError(
            f"-o {path}: {path.suffix or 'no suffix'} is not a format",
            hint="Give page.html, or a table as .csv, .parquet or .json.",
        )
    target = files.resolve(path)
    files.check_writable(target)
    new = page_html(_page(options)).encode() if is_page else _table(options, path)
    old = files.content(target)
    if old and GENERATOR not in old[:4096]:  # a page may be written again
        raise TargetError(f"{path}: exists already", hint="Choose another -o, or remove it first.")
    files.write_atomically(target, new)
    sys.stderr.write(f"{printable(str(path))}: {len(new) / 1e3:,.0f} kB\n")


def _table(options: ShowOptions, path: Path) -> bytes:
    """Return the content of a file with the first table. Raises RunError."""
    for table in _page(options).tables:
        if table.rows:
            return content(table, path.suffix)
    hint = "Continue the run: tuner resume RUN_DIR."
    raise RunError(f"{options.source}: nothing measured yet", hint=hint)
