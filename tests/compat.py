"""The contract on every family of the zoo with older transformers, each in an environment of its own: `make compat`.

An environment has its own transformers, tokenizers and huggingface_hub, and takes all else, torch above all, from the
environment of the Python that runs this. Other versions than the usual ones are given as arguments. A version that has
passed is not run again until a file of the source or the tests changes.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-compat"
OWN = ("transformers", "tokenizers", "huggingface_hub")
OLDER = ("4.48.3", "4.53.3", "5.0.0")  # the oldest that is promised, one between, and the great change of names
TESTS = [
    "contract",
    "heads/test_attention.py",
    "heads/test_audit.py",
    "heads/test_init.py",
    "heads/test_inits.py",
    "heads/test_save.py",
    "models/test_weights.py",
]
OTHERS = "(other tests)"
NOT_THERE = "not in transformers"  # the beginning of why the zoo skips a family


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def environment(version: str) -> Path:
    """The Python of an environment with this transformers, made where it is not there."""
    folder = HOME / version
    python = folder / "bin" / "python"
    base = sysconfig.get_paths()["purelib"]
    ready = folder / "ready"
    if ready.is_file() and ready.read_text(encoding="utf-8") == base:
        return python
    venv.create(folder, clear=True)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    (own / "base.pth").write_text(f"{base}\n", encoding="utf-8")  # comes after what the environment has itself
    constraints = folder / "constraints.txt"
    kept = [f"{name}=={number}\n" for name, number in pinned().items() if name not in OWN]
    constraints.write_text("".join(kept), encoding="utf-8")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", f"transformers=={version}"],
        env=os.environ | {"PIP_CONSTRAINT": str(constraints)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"transformers {version} could not be installed:\n{done.stderr}")
    ready.write_text(base, encoding="utf-8")
    return python


def run_tests(version: str) -> Path:
    """The tests of the method in one environment; returns what pytest writes about them."""
    python = environment(version)
    results, partial = HOME / version / "results.xml", HOME / version / "partial.xml"
    if has_passed(results):
        return results
    # What an old transformers warns of is its own affair.
    options = ["-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short"]
    done = subprocess.run(
        [python, "-m", "pytest", *options, f"--junitxml={partial}", *(f"tests/{path}" for path in TESTS)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    (HOME / version / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in (0, 1):  # 1: some tests failed
        sys.exit(f"the tests could not be run with transformers {version}:\n{done.stdout[-2000:]}{done.stderr}")
    return partial.replace(results)  # only now: pytest writes one also when it is interrupted


def has_passed(results: Path) -> bool:
    """Whether every test has passed with the source and the tests as they are."""
    if not results.is_file():
        return False
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    if results.stat().st_mtime <= max(path.stat().st_mtime for path in files):
        return False
    return not any(case.tag in ("failure", "error") for case in ElementTree.parse(results).iter())


def outcomes(results: Path, families: list[str]) -> dict[str, str]:
    """By family: `passed` with the number of tests, `not in it`, or `FAILED`."""
    cases: dict[str, list[ElementTree.Element]] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        cases.setdefault(family_of(case, families), []).append(case)
    return {family: outcome(cases.get(family, [])) for family in [*families, OTHERS]}


def family_of(case: ElementTree.Element, families: list[str]) -> str:
    if "contract" not in case.get("classname", ""):
        return OTHERS
    parameters = "-" + case.get("name", "").partition("[")[2].removesuffix("]")
    fitting = [family for family in families if parameters.endswith(f"-{family}")]
    return max(fitting, key=len, default=OTHERS)


def outcome(cases: list[ElementTree.Element]) -> str:
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    if failed or not cases:
        return f"FAILED {failed} of {len(cases)}"
    whys = [skipped.get("message", "") for case in cases if (skipped := case.find("skipped")) is not None]
    if len(whys) == len(cases) and all(NOT_THERE in why or "share one set" in why for why in whys):
        return "not in it"
    return f"passed {len(cases) - len(whys)}"


def main(versions: list[str]) -> int:
    from oelm.format import format_columns
    from zoo import FAMILIES

    families = [family.name for family in FAMILIES]
    columns = {}
    for version in versions:
        print(f"transformers {version} ...", flush=True)
        columns[version] = outcomes(run_tests(version), families)
    rows = [("family", *versions), *((name, *(columns[v][name] for v in versions)) for name in [*families, OTHERS])]
    print("\n".join(format_columns(rows, left=rows[0])))
    failed = sorted({version for version in versions if any("FAILED" in text for text in columns[version].values())})
    for version in failed:
        print(f"what failed with {version}: {HOME / version / 'output.txt'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*OLDER, pinned()["transformers"]]))
