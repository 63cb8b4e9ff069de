"""All benchmarks, one after the other, each in a process of its own, and their results on one page.

    python benchmarks [--only trainer,families] [--quick] [--out benchmarks/RESULTS.md]

It takes about an hour, with nothing else running. Ctrl-C keeps what has been measured. What is in NOTES.md, beside
the scripts, is written by hand, and goes below the targets that are not reached.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from oelm.bench.system import usable_cores
from oelm.format import format_duration
from oelm.runs.files import write_text
from oelm.runs.provenance import collect_provenance
from result import Result
from table import page

HERE = Path(__file__).parent
SCRIPTS = (
    "startup",
    "launching",
    "memory",
    "text_memory",
    "overlap",
    "report",
    "apply",
    "overhead",
    "spinning",
    "predecessor",
    "trainer",
    "language_model",
    "families",
    "same",
    "instrument",
)
INTERRUPTED = 130


def main(words: Sequence[str] | None = None, *, folder: Path = HERE, scripts: Sequence[str] = SCRIPTS) -> int:
    """The exit code: 1 if a script failed."""
    options = _options(words, scripts)
    facts = _facts()  # before the page is written anew: it is part of the working copy
    notes = folder / "NOTES.md"
    why = notes.read_text(encoding="utf-8") if notes.exists() else None
    results: list[Result] = []
    waiting, interrupted, began = list(options.only), False, time.monotonic()
    while waiting and not interrupted:
        name = waiting.pop(0)
        number = len(options.only) - len(waiting)
        print(f"[{number}/{len(options.only)}] {name}, after {format_duration(time.monotonic() - began)}", flush=True)
        found, interrupted = _run(folder / f"{name}.py", quick=options.quick)
        results += found
        if options.out is not None:
            write_text(options.out, page(results, facts=facts, not_run=waiting, why=why))
    print(
        f"It took {format_duration(time.monotonic() - began)}.",
        "" if options.out is None else f"Results: {options.out}",
    )
    return INTERRUPTED if interrupted else int(any(result.failed for result in results))


def _options(words: Sequence[str] | None, scripts: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(scripts), help="some of %(default)s")
    parser.add_argument("--quick", action="store_true", help="the smallest runs there are, to see that they work")
    parser.add_argument("--out", type=Path, help="the page; of a whole run RESULTS.md beside the scripts")
    options = parser.parse_args(words)
    options.only = options.only.split(",")
    for name in options.only:
        if name not in scripts:
            parser.error(f"there is no benchmark '{name}': one of {', '.join(scripts)}")
    if options.out is None and options.only == list(scripts) and not options.quick:
        options.out = HERE / "RESULTS.md"
    return options


def _run(script: Path, *, quick: bool) -> tuple[list[Result], bool]:
    """Its results, also those before it failed, and whether it was interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "results.jsonl"
        words = [sys.executable, str(script), "--json", str(kept), *(["--quick"] if quick else [])]
        failed, interrupted = "", False
        try:
            done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
        except KeyboardInterrupt:
            failed, interrupted = "interrupted", True
        else:
            if done.returncode:
                print(done.stderr, file=sys.stderr, flush=True)
                lines = done.stderr.strip().splitlines()
                failed = lines[-1] if lines else f"it ended with code {done.returncode}"
        results = [Result.from_json(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    if failed:
        results.append(Result(question=script.stem, what="", note=failed, failed=True))
    return results, interrupted


def _facts() -> dict[str, str]:
    """The machine and the code, by name."""
    known = collect_provenance()
    code = known.code
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "machine": f"{known.cpu}, {usable_cores()} of {known.cores} cores, {memory:.0f} GiB, {known.gpu or 'no GPU'}",
        "date": known.time[:10],
        "commit": "none" if code is None else code.commit[:10] + (" with changes" if code.dirty else ""),
        "versions": f"Python {known.python}, torch {torch.__version__}, "
        f"transformers {known.versions['transformers']}, oelm {known.oelm}",
        "threads": str(known.threads),
    }


if __name__ == "__main__":
    sys.exit(main())
