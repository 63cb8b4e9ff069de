"""Attacks on what is read: run folders, studies, model folders and data that are damaged, or written by an enemy."""

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

import torch
import yaml
from transformers import BertConfig, BertForSequenceClassification

import made_bench
import made_runs
import oelm
import tiny_study
from oelm.analysis.results import Results, load
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.errors import OelmError
from oelm.runs.jobs import Job, append_job
from oelm.study.shipped import shipped_studies
from torture.attack import Attack, command
from torture.mutate import DEEP, damage, mutate_bytes, mutate_json

_SEEDS = [0, 1, 2]


def make_study_folder(folder: Path) -> None:
    """The folder of a study as it is left behind, with a file of every kind."""
    study = made_runs.study_of(seeds=_SEEDS)
    runs = made_runs.make_runs(folder, study, accuracy={"baseline": 0.9, "oelm-freeze": 0.8}, examples=300, steps=40)
    made_bench.write_bench(runs, study, {"freeze-only": 0.95, "oelm-freeze": 0.95})
    cells = tuple(f"{arm}/seed-{seed}" for arm in study.arms for seed in study.seeds)
    append_job(runs, Job(on="local", cells=cells))
    for cell in cells:
        (runs / cell / "log.txt").write_text("a line\n", encoding="utf-8")


def _verdicts(results: Results) -> dict[str, object]:
    return {arm: one.verdict for arm, one in results.comparisons.items()}


_READING = (
    ("check", "made", "--json"),
    ("status", "made", "--json"),
    ("claims", "check", "--runs", "made"),
    ("report", "made", "--format", "html", "--out", "report"),
    ("report", "made", "--format", "md", "--out", "report"),
    ("logs", "baseline/seed-0", "--runs", "made"),
)


def damage_runs(choose: random.Random, prepared: Path, folder: Path) -> str:
    """One or two files of a run folder are damaged: commands end well, and no verdict changes without a word."""
    shutil.copytree(prepared / "made", folder / "made")
    clean = _verdicts(load(prepared / "made"))
    files = sorted(path for path in (folder / "made").rglob("*") if path.is_file())
    what = "; ".join(damage(choose, path) for path in choose.sample(files, choose.choice((1, 1, 2))))
    for words in choose.sample(_READING, 2):
        command(*words)
    try:
        results = load(folder / "made")
        found = _verdicts(results)
    except OelmError:
        return what
    said = " ".join(map(str, [*results.excluded, *results.checks]))
    named = [path for path in files if str(path.parent.relative_to(folder / "made")) in said or path.name in said]
    assert found == clean or named, f"{what}: {found} instead of {clean}, and nothing says why"
    return what


def forge_runs(choose: random.Random, prepared: Path, folder: Path) -> str:
    """A JSON file of a run folder says something else, with a checksum that fits: no command breaks on it."""
    shutil.copytree(prepared / "made", folder / "made")
    files = sorted(path for path in (folder / "made").rglob("*.json") if path.is_file())
    path = choose.choice(files)
    data, what = mutate_json(choose, json.loads(path.read_text(encoding="utf-8")))
    path.write_text(made_runs.sealed(json.dumps(data)), encoding="utf-8")
    for words in choose.sample(_READING, 2):
        command(*words)
    return f"{path.name}: {what}"


def _no_preparation(folder: Path) -> None:
    pass


_YAML_BITS = (
    "!!python/object/apply:os.system ['touch owned']",
    "*a",
    "&a [*a]",
    "<<: {x: 1}",
    "? [1]\n: 2",
    "- - - - -",
    "{" * DEEP,
    "[" * 3000,
    "a: &b [" + "x," * 10 + "]\nc: [" + "*b," * 10_000 + "]",
    "2026-11-17",
    "0o17",
    "1e999",
    "\x00",
    "\u202e",
    "yes",
    "~",
    "'" * 999,
)


def mutate_studies(choose: random.Random, prepared: Path, folder: Path) -> str:
    """A study file with one thing wrong, or all of it."""
    shipped = choose.choice(sorted(shipped_studies().values()))
    text = shipped.read_text(encoding="utf-8")
    way = choose.choice(("bytes", "value", "value", "line"))
    if way == "bytes":
        data, what = mutate_bytes(choose, text.encode())
    elif way == "value":
        content, what = mutate_json(choose, yaml.safe_load(text))
        data = json.dumps(content).encode()
    else:
        lines = text.splitlines()
        at = choose.randrange(len(lines))
        bit = choose.choice(_YAML_BITS)
        lines[at] = choose.choice((bit, f"{lines[at].split(':')[0]}: {bit}"))
        data, what = "\n".join(lines).encode(), f"line {at} is {bit[:40]!r}"
    (folder / "study.yaml").write_bytes(data)
    command("check", "study.yaml")
    assert not (folder / "owned").exists(), "something was run"
    return f"{shipped.name}: {what}"


def make_model_folder(folder: Path) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = BertForSequenceClassification(config)
    model.save_pretrained(folder / "base")
    oelm.apply(model, init="orthogonalize", freeze="qk", seed=0).save_pretrained(folder / "treated")


def mutate_models(choose: random.Random, prepared: Path, folder: Path) -> str:
    """The folder of a saved model with one file changed: inspected and audited, or refused; never believed."""
    shutil.copytree(prepared / "treated", folder / "treated")
    path = folder / "treated" / choose.choice(("config.json", "oelm.json", "model.safetensors"))
    if path.suffix == ".json" and choose.random() < 0.6:
        data, what = mutate_json(choose, json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(data), encoding="utf-8")
        what = f"{path.name}: {what}"
    else:
        what = damage(choose, path)
    command("inspect", "treated")
    command("inspect", "--config", "treated/config.json")
    audited = command("audit", "treated", "--against", prepared / "base")
    if path.name == "oelm.json":
        assert audited.code, f"{what}: the audit passes"
    return what


def _write_data(choose: random.Random, folder: Path, kind: str) -> Path:
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows = tiny_study.texts(60, seed=choose.randrange(100))
    path = folder / f"train.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows), encoding="utf-8")
        return path
    table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
    parquet.write_table(table, path) if kind == "parquet" else csv.write_csv(table, path)
    return path


def mutate_data(choose: random.Random, prepared: Path, folder: Path) -> str:
    """Data files that are damaged, or not what they seem: read, or refused in one message."""
    kind = choose.choice(("csv", "jsonl", "parquet"))
    path = _write_data(choose, folder, kind)
    if kind == "jsonl" and choose.random() < 0.4:
        lines = path.read_text(encoding="utf-8").splitlines()
        row, what = mutate_json(choose, json.loads(lines[0]))
        deep = "[" * DEEP + "]" * DEEP
        lines[0] = choose.choice((json.dumps(row), f'{{"text": {deep}, "label": 0}}', '{"text": "' + "a" * 3_000_000))
        path.write_text("\n".join(lines), encoding="utf-8")
        what = f"line 1: {what}"
    else:
        what = damage(choose, path)
    shutil.copy(tiny_study.write_data(folder / "other") / "validation.csv", folder / "validation.csv")
    where = {"train": str(path), "validation": str(folder / "validation.csv")}
    with suppress(OelmError):
        SplitReader(find_source(task_named("sst2"), where), 5).tables()
    return f"{path.name}: {what}"


ATTACKS = (
    Attack("run-folders", make_study_folder, damage_runs),
    Attack("forged-records", make_study_folder, forge_runs),
    Attack("studies", _no_preparation, mutate_studies),
    Attack("model-folders", make_model_folder, mutate_models),
    Attack("data-files", _no_preparation, mutate_data),
)
