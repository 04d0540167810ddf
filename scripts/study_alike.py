"""How often does `tuner refine` tell two engines apart that serve alike?

    python scripts/study_alike.py [--worlds 60] [--first 1] [--processes 2]
    python scripts/study_alike.py --smoke

In the article's world a KV cache block of 15 tokens changes nothing against one of 16; nothing else
is searched, so that each comparison is of equals, on fresh engines, and by replays alone. Every
world has another seed, so other noise. Printed: each stated interval of goodput, how many of them
leave out that nothing was gained, and how many knees were replaced for nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import yaml
from study_sweeps import parsed

ROOT = Path(__file__).resolve().parent.parent
TUNER = Path(sys.executable).with_name("tuner")
SAME = ("block_size=15", "max_num_seqs=16", "max_num_batched_tokens=2048")


def refined(seed: int, *, world: dict[str, Any]) -> dict[str, Any]:
    """Return what the command says of one world."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "world.yaml").write_text(yaml.safe_dump({**world, "seed": seed}))
        trace = ("--trace", str(ROOT / "traces" / "translation.jsonl"))
        sim = ("--engine", "sim", "--world", "world.yaml", *trace)
        searched = [word for one in SAME for word in ("--search", one)]
        ask = partial(subprocess.run, cwd=folder, capture_output=True, text=True, check=True)
        ask([TUNER, "sweep", *sim, "-o", "profile.yaml"])
        done = ask([TUNER, "refine", "profile.yaml", *sim, *searched, "-o", "r.yaml", "--json"])
    found: dict[str, Any] = {"seed": seed, **json.loads(done.stdout)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=60)
    parser.add_argument("--first", type=int, default=1, help="seed of the first world")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parsed(parser, smoke="--worlds 1 --processes 1")
    world = yaml.safe_load((ROOT / "examples" / "worlds" / "article.yaml").read_text())
    seeds = range(options.first, options.first + options.worlds)
    compared = missed = replaced = 0
    with Pool(options.processes) as pool:
        for found in pool.imap(partial(refined, world=world), seeds):
            if "goodput" not in found["ratios"]:
                continue
            one = found["ratios"]["goodput"]
            outside = not one["low"] <= 1 <= one["high"]
            compared, missed = compared + 1, missed + outside
            replaced += found["refined"]
            print(
                f"{found['seed']:3} {one['value'] - 1:+.1%} ({one['low'] - 1:+.1%} to "
                f"{one['high'] - 1:+.1%}) over {found['pairs']} pairs"
                f"{', missed' if outside else ''}{', replaced' if found['refined'] else ''}",
                flush=True,
            )
    print(
        f"{options.worlds} worlds: {compared} compared, {missed} intervals leave out that nothing "
        f"was gained, {replaced} knees replaced"
    )


if __name__ == "__main__":
    main()
