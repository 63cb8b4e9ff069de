"""Runs made by hand: the folder that a study of a given outcome would have left behind, without any training."""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oelm.facts import AttentionStats, Counts, TaskFacts
from oelm.runs.cell_start import CELL_FILE, CellStart, StartedCell
from oelm.runs.files import digest_file
from oelm.runs.layout import PREDICTIONS, RECORD, STEPS
from oelm.runs.lock import lock_study
from oelm.runs.predictions import Predictions, write_predictions
from oelm.runs.provenance import GitState, PeakMemory, Provenance
from oelm.runs.record import RECORD_FILE, AuditOutcome, Launch, ModelScores, ProcessStats, Record, ValidationScore
from oelm.runs.simple_baseline import SimpleBaseline, pack_answers, write_simple_baselines
from oelm.runs.steps import Step, format_step
from oelm.study.cells import Cell, CellSpec, both_stages, compared_cells, resolve_cell, tuning_cells
from oelm.study.load import study_from_dict
from oelm.study.schedule import lr_at
from oelm.study.study import Study

STUDY: dict[str, Any] = {
    "study": "made",
    "version": 1,
    "recipe": {
        "model": {"name": "minilm-l6"},
        "data": {"task": "sst2", "max_length": 128, "validation": 1000},
        "budget": {"steps": 100},
        "batch": {"size": 32},
        "optimizer": {"lr": 1e-4},
        "schedule": {"name": "linear", "warmup": 0.1},
        "evaluate": {"every": 20},
    },
    "arms": {
        "baseline": {"init": "keep", "freeze": "none"},
        "freeze-only": {"init": "keep", "freeze": "qk"},
        "oelm-freeze": {"init": "orthogonalize", "scale": "match", "freeze": "qk"},
    },
    "seeds": [0, 1, 2, 3, 4],
    "compare": {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.02},
}
EXAMPLES = 2000
TRAINABLE = {"none": 22_713_986, "q": 21_826_946, "k": 21_826_946, "qk": 20_939_906}


def study_of(**parts: Any) -> Study:
    """The study above with parts of it replaced."""
    return study_from_dict({**copy.deepcopy(STUDY), **parts})


def make_runs(
    root: Path,
    study: Study | None = None,
    *,
    accuracy: dict[str, float] | None = None,
    spread: float = 0.004,
    examples: int = EXAMPLES,
    classes: int = 2,
    steps: int = 100,
    change: Any = None,
    best: dict[str, int] | None = None,
    second_stage: bool = False,
) -> Path:
    """Write the folder of a study and return it.

    `accuracy` is the true one of every arm, or of a cell (`baseline/seed-0`), `spread` how far seeds scatter around it;
    all arms of a seed err on mostly the same examples, as real ones do. `change(cell, record)` may return another
    record, or None to leave it out. With `second_stage`, its seeds are there too.
    `best` is the place in the grid, by arm, of what does best when tuned: the middle, if it is not said.
    """
    study = study or study_of()
    folder = root / study.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    lock = lock_study(folder, study).digest
    write_floor(folder, accuracy=0.3, majority=1 / classes, classes=classes)
    run = both_stages(study) if second_stage else study
    for cell in (*tuning_cells(run), *compared_cells(run)):
        grid = study.tune.grid.items() if study.tune is not None else ()
        tuned = tuple((path, values[(best or {}).get(cell.arm, len(values) // 2)]) for path, values in grid)
        spec = resolve_cell(study, cell, tuned if cell.point is None else None)
        known = accuracy or {}
        made = _outcome(
            cell.seed,
            list(study.arms).index(cell.arm),
            accuracy=known.get(str(cell), known.get(cell.arm, 0.9)),
            less=0.05 * (cell.point is not None and cell.point != tuned),
            spread=spread,
            examples=examples,
            classes=classes,
        )
        record = _record(spec, dict(made.metrics), examples, steps, lock)
        changed = change(cell, record) if change is not None else record
        if changed is not None:
            place = folder / cell.folder
            place.mkdir(parents=True, exist_ok=True)
            CELL_FILE.write(place, StartedCell(spec=changed.spec, start=changed.start))
            recipe, freeze = changed.spec.recipe, changed.spec.treatment.freeze
            log = _steps_log(changed.spec.seed, freeze, rates=changed.lr, last=recipe.optimizer.lr, steps=steps)
            (place / STEPS).write_text(log)
            if cell.point is None:
                (place / PREDICTIONS).write_bytes(made.predictions)
            files = {name: digest for name in (STEPS, PREDICTIONS) if (digest := digest_file(place / name)) is not None}
            RECORD_FILE.write(place, replace(changed, files=files))
    return folder


@dataclass(frozen=True)
class _Outcome:
    """What a cell is said to have answered."""

    metrics: dict[str, float]
    predictions: bytes
    """The content of its file."""


# Most tests have the same cells: what does not hang on the study is made once.
@functools.cache
def _outcome(
    seed: int, arm: int, *, accuracy: float, less: float, spread: float, examples: int, classes: int
) -> _Outcome:
    draw = np.random.default_rng([seed, arm])
    target = accuracy + spread * draw.standard_normal() - less
    hardness = np.random.default_rng(7).random(examples)
    labels = np.random.default_rng(8).integers(0, classes, examples)
    seed_noise = np.random.default_rng([seed, 99]).standard_normal(examples) * 0.05
    difficulty = hardness + seed_noise + 0.02 * draw.standard_normal(examples)
    right = difficulty <= np.quantile(difficulty, np.clip(target, 0.0, 1.0))
    predicted = np.where(right, labels, (labels + 1) % classes)
    loss = np.where(right, 0.1, 1.5) + 0.01 * draw.random(examples)
    kept = Predictions(row=np.arange(examples), label=labels, prediction=predicted, loss=loss)
    file = io.BytesIO()
    write_predictions(file, _of_both_models(kept))  # type: ignore[arg-type]
    return _Outcome(metrics=_metrics(labels, predicted, loss), predictions=file.getvalue())


def _of_both_models(kept: Predictions, split: str = "validation") -> dict[Any, Predictions]:
    return {("final", split): kept, ("best", split): kept}


def keep_predictions(place: Path, kept: Predictions, split: str = "validation") -> None:
    """The same of the final and of the best model."""
    write_predictions(place / PREDICTIONS, _of_both_models(kept, split))
    seal_files(place)


def seal_files(place: Path) -> None:
    """Let the record of a cell say that its files are as they should be."""
    edit_sealed(place / RECORD, lambda data: data.update(files=digests(place)))


def digests(place: Path) -> dict[str, Any]:
    found = {name: digest_file(place / name) for name in (STEPS, PREDICTIONS)}
    return {name: asdict(digest) for name, digest in found.items() if digest is not None}


def edit_sealed(path: Path, change: Callable[[Any], object]) -> None:
    """Change a file with a checksum, and give it the checksum of what it is then: no accident, but somebody's work."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(sealed(json.dumps(data)))


def sealed(text: str) -> str:
    """A text with the checksum that it should have, wherever there is one."""
    head = re.match(r'\{\s*"format": \d+,\s*"sha256": "(.*?)",', text)
    if head is None:
        return text
    checksum = hashlib.sha256(text[head.end() :].encode("utf-8", "surrogateescape")).hexdigest()
    return text[: head.start(1)] + checksum + text[head.end(1) :]


def replace_at(content: Any, path: str, value: Any) -> Any:
    """A dataclass with one thing replaced, however deep: `start.data.sizes.train`."""
    name, _, rest = path.partition(".")
    inside = getattr(content, name) if is_dataclass(content) else content[name] if rest else None
    new = replace_at(inside, rest, value) if rest else value
    return replace(content, **{name: new}) if is_dataclass(content) else {**content, name: new}  # type: ignore[type-var]


def score(record: Record, **metrics: float) -> Record:
    """The record with these metrics alone on its test split, of both models."""
    measured = ModelScores(step=record.start.steps, splits={"validation": metrics})  # type: ignore[union-attr]
    return replace(record, test={"final": measured, "best": measured})


def write_floor(
    folder: Path,
    *,
    right: NDArray[np.bool_] | None = None,
    majority: float = 0.5,
    classes: int = 2,
    **metrics: float,
) -> None:
    """What a cheap model is said to reach on the rows of these runs, and which of them it has right."""
    simple = SimpleBaseline(
        data="rows",
        tokenizer="words" if "perplexity" in metrics else None,
        splits={"validation": metrics, "test": metrics},
        majority={"validation": majority},
        right={} if right is None else {"validation": pack_answers(right)},
        classes=classes,
        kind="bigrams" if "perplexity" in metrics else "tf-idf + logistic regression",
        rows=60000,
        capped=False,
    )
    write_simple_baselines(folder, [simple])


def launch(**parts: Any) -> Launch:
    """A start of a cell on the machine of these records."""
    usual = {"step": 0, "time": PROVENANCE.time, "host": "somewhere", "device": "cpu", "threads": 2, "processes": 1}
    code = {"oelm": PROVENANCE.oelm, "code": PROVENANCE.code, "python": PROVENANCE.python}
    return Launch(**{**usual, **code, "versions": PROVENANCE.versions, **parts})


# Too few heads for any figure, and none of them measured.
NO_HEADS = AttentionStats(norm={}, cosine={}, logit_spread=(), entropy=())


def made_record(cell: Cell, metrics: dict[str, float], *, examples: int = EXAMPLES, steps: int = 100) -> Record:
    """The record of a cell of the study above."""
    return _record(resolve_cell(study_of(), cell), metrics, examples, steps)


def _record(spec: CellSpec, metrics: dict[str, float], examples: int, steps: int, lock: str = "") -> Record:
    recipe, seed = spec.recipe, spec.seed
    evaluations = [
        ValidationScore(
            step=step, metrics={name: round(value * (0.9 + 0.1 * step / steps), 3) for name, value in metrics.items()}
        )
        for step in range(steps // 5, steps + 1, steps // 5)
    ]
    lr = [
        (step + 1, lr_at(step, total=steps, peak=recipe.optimizer.lr, schedule=recipe.schedule))
        for step in range(0, steps, max(1, steps // 200))
    ]
    frozen = TRAINABLE["none"] - TRAINABLE[spec.treatment.freeze]
    measured = ModelScores(step=steps, splits={"validation": metrics})
    data = TaskFacts(
        data="rows",
        tokenizer="words",
        files={"train": ("aa.parquet",), "validation": ("bb.parquet",)},
        sizes={"train": 60000, "validation": 1000, "test-validation": examples},
        cut={},
        overlap=(),
    )
    start = CellStart(
        lock=lock,
        data=data,
        weights=f"weights-{seed}",
        new_weights=("classifier.bias", "classifier.weight"),
        dropped_weights=(),
        steps=steps,
        padding=0.0,
        device="cpu (2 threads)",
        heads=NO_HEADS,
    )
    return Record(
        status="done",
        spec=spec,
        start=start,
        batches=f"batches-{seed}",
        counts=Counts(total=TRAINABLE["none"], trainable=TRAINABLE[spec.treatment.freeze], buffers=0, qk=1_774_080),
        evaluations=tuple(evaluations),
        test={"final": measured, "best": measured} if spec.tuning is None else {},
        lr=tuple(lr),
        seconds={"training": 0.27 * steps * 1.01, "evaluation": 3.0, "data": 0.1, "checkpoints": 0.2},
        peak_memory=PeakMemory(process=1_800_000_000 - 12 * frozen, gpu=None),
        audits=tuple(AuditOutcome(step=step, passed=True, findings=()) for step in (0, steps)),
        provenance=PROVENANCE,
        launches=(),
        processes=ProcessStats(number=1),
        heads=None,
        files={},
    )


PROVENANCE = Provenance(
    oelm="0.1.0",
    code=GitState(commit="0" * 40, dirty=False),
    folder=None,
    python="3.11.7",
    versions={"torch": "2.13.0"},
    platform="Linux",
    host="somewhere",
    cpu="a CPU",
    cores=2,
    command="oelm run made",
    environment={},
    time="2026-11-16T00:00:00+0000",
    device="cpu",
    gpu=None,
    threads=2,
)


def _metrics(labels: Any, predicted: Any, loss: Any) -> dict[str, float]:
    counts = [
        ((predicted == c).sum() + (labels == c).sum(), (predicted == c) & (labels == c)) for c in np.unique(labels)
    ]
    f1 = [2 * right.sum() / there for there, right in counts]
    found = {"accuracy": float((labels == predicted).mean()), "macro_f1": float(np.mean(f1))}
    return found | ({"f1": float(f1[1])} if len(f1) == 2 else {}) | {"loss": float(loss.mean())}


@functools.cache
def _steps_log(seed: int, freeze: str, *, rates: tuple[tuple[int, float], ...], last: float, steps: int) -> str:
    random = np.random.default_rng(seed)
    slower = 0.95 if freeze == "qk" else 1.0
    known = dict(rates)
    lines = []
    for step in range(1, steps + 1):
        last = known.get(step, last)
        row = Step(
            step=step,
            loss=float(0.1 + 0.6 * np.exp(-3 * step / steps) + 0.02 * random.random()),
            lr=last,
            grad_norm=float(0.5 + random.random()),
            seconds=float(slower * (0.265 + 0.01 * random.random())),
        )
        lines.append(format_step(row))
    return "".join(lines)


TEXT: dict[str, Any] = {
    **STUDY,
    "recipe": {
        **STUDY["recipe"],
        "model": {"name": "oelm-gpt", "preset": "medium-512"},
        "data": {
            "task": "tinystories",
            "max_length": 128,
            "validation": 1000,
            "tokenizer": {"train": "bpe", "vocab": 512},
        },
    },
    "compare": {"baseline": "baseline", "metric": "perplexity", "min_effect": 0.02},
}


def text_study_of(**parts: Any) -> Study:
    """A study of language models, with parts of it replaced."""
    return study_from_dict({**copy.deepcopy(TEXT), **parts})


def make_text_runs(
    root: Path,
    study: Study | None = None,
    *,
    perplexity: dict[str, float] | None = None,
    spread: float = 0.002,
    documents: int = 40,
    change: Any = None,
) -> Path:
    """The same for language models: `spread` is that of the loss, and every document of text is kept."""
    study = study or text_study_of()
    tokens = np.random.default_rng(6).lognormal(5, 0.5, documents).astype(np.int64)
    kept = {}

    def as_text(cell: Cell, record: Record) -> Record | None:
        draw = np.random.default_rng([cell.seed, list(study.arms).index(cell.arm), 1])
        hard = 0.2 * np.random.default_rng(5).standard_normal(documents)
        level = np.log((perplexity or {}).get(cell.arm, 10.0)) + spread * draw.standard_normal()
        loss = level + hard - np.average(hard, weights=tokens) + 0.001 * draw.standard_normal(documents)
        kept[cell] = loss * tokens
        mean = kept[cell].sum() / tokens.sum()
        metrics = {"loss": float(mean), "perplexity": float(np.exp(mean))}
        last = record.steps or 1
        rows = [
            replace(row, metrics={name: value * (2 - row.step / last) for name, value in metrics.items()})
            for row in record.evaluations
        ]
        made = replace(score(record, **metrics), evaluations=tuple(rows))
        return made if change is None else change(cell, made)  # type: ignore[no-any-return]

    folder = make_runs(root, study, examples=10, steps=20, change=as_text)
    for cell, loss in kept.items():
        if (folder / cell.folder).is_dir():
            keep_predictions(folder / cell.folder, Predictions(row=np.arange(documents), loss=loss, tokens=tokens))
    return folder
