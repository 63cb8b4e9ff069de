"""A study with everything a report can show, made once: tuning, hypotheses, heads, a bench, and hostile words."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from made_bench import write_bench
from made_runs import STUDY, edit_sealed, make_runs, replace_at, score, study_of
from oelm.analysis.results import Results, read_results
from oelm.facts import AttentionMap, AttentionStats
from oelm.report.blocks import Content
from oelm.report.write import build_content
from oelm.runs.record import Failure

HOSTILE = "<script>window.hacked=1</script> $x$ `code` *bold* | cell #panic(1) &amp;"
ARMS = {
    **STUDY["arms"],
    "oelm-nofreeze": {"init": "orthogonalize", "scale": "match", "freeze": "none"},
    "oelm-random_2": {"init": "gaussian", "scale": 0.02, "freeze": "qk"},
}

RATIOS = {"freeze-only": 0.952, "oelm-freeze": 0.949, "oelm-nofreeze": 1.001, "oelm-random_2": 0.955}


@dataclass(frozen=True)
class Made:
    folder: Path
    results: Results
    content: Content


def rich_study(**parts):
    return study_of(
        **{
            "study": "bert-sst2-fair",
            "arms": ARMS,
            "notes": [HOSTILE],
            "tune": {"optimizer.lr": [2e-5, 5e-5, 1e-4]},
            "hypotheses": {
                "H1": {
                    "statement": f"fewer parameters {HOSTILE}",
                    "estimand": "trainable(oelm-freeze) / trainable(baseline)",
                    "rule": "below",
                    "margin": 0.95,
                },
                "H2": {
                    "statement": "freezing costs at most 2 points",
                    "estimand": "accuracy(oelm-freeze) - accuracy(baseline)",
                    "rule": "above",
                    "margin": -0.02,
                },
                "H3": {
                    "statement": "a step takes less time",
                    "estimand": "step_seconds(oelm-freeze) / step_seconds(oelm-nofreeze)",
                    "rule": "below",
                    "margin": 1.0,
                },
            },
            **parts,
        }
    )


def lively(cell, record):
    """Curves that rise, heads that were measured, and provenance that tries to be code."""
    random = np.random.default_rng([cell.seed, len(cell.arm)])

    def map_of(layer, sharpness):
        weights = np.tril(np.exp(sharpness * random.standard_normal((12, 12))))
        weights = (255 * weights / weights.sum(1, keepdims=True)).round().astype(np.uint8)
        return AttentionMap(layer=layer, head=0, queries=12, weights=weights.tobytes().hex())

    def heads(cosine, kl=0.0):
        return AttentionStats(
            norm=dict.fromkeys("qk", ((5.0,) * 4,) * 3),
            cosine={role: (cosine * (1 + random.random((3, 4)))).tolist() for role in "qk"},
            logit_spread=(1.0,) * 3,
            entropy=(None, *(3 - random.random(2)).tolist()),
            kl=(None, kl, kl * (1 + random.random())),
            maps=(map_of(0, 1), map_of(1, 2), map_of(2, 3)),
        )

    evaluations = []
    for row in record.evaluations:
        accuracy = round(1000 * record.last_evaluation["accuracy"] * (1 - 0.2 / row.step)) / 1000
        evaluations.append(replace(row, metrics={"loss": row.metrics["loss"], "accuracy": accuracy}))
    dose = {"oelm-freeze": 0.4, "oelm-nofreeze": 0.4, "oelm-random_2": 1.3}.get(cell.arm, 0.0)
    record = replace_at(record, "start.heads", heads(1e-6 if cell.arm == "oelm-freeze" else 0.8, dose))
    record = replace_at(record, "start.untreated", (map_of(0, 2), map_of(1, 2), map_of(2, 2)))
    record = replace_at(record, "provenance.host", HOSTILE)
    return replace(record, evaluations=tuple(evaluations), heads=heads(0.9, dose + 0.1))


@pytest.fixture
def undrawn(monkeypatch):
    """Reports without figures, which take five times as long as all else: where none is looked at."""
    monkeypatch.setattr("oelm.report.write.is_installed", lambda package: package != "matplotlib")


@pytest.fixture(scope="session")
def hostile():
    return HOSTILE


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    truth = {"baseline": 0.90, "freeze-only": 0.897, "oelm-freeze": 0.86, "oelm-nofreeze": 0.94, "oelm-random_2": 0.82}
    study = rich_study()
    folder = make_runs(tmp_path_factory.mktemp("rich"), study, accuracy=truth, change=lively)
    write_bench(folder, study, RATIOS, warnings=[f"the machine was busy {HOSTILE}"])
    results = read_results(folder)
    return Made(folder=folder, results=results, content=build_content(results))


@pytest.fixture
def bad_runs(tmp_path):
    """One of everything that can be wrong with records."""

    def change(cell, record):
        if cell.arm == "freeze-only" and cell.seed == 0:
            return score(record, loss=0.5)
        if cell.arm == "freeze-only" and cell.seed == 2:
            error = Failure(what=f"the loss is NaN {HOSTILE}", traceback=None)
            return replace(record, status="diverged", test={}, error=error)
        return None if cell.arm == "freeze-only" and cell.seed == 3 else record

    def unmeasured(data):
        data["test"]["final"]["splits"]["validation"]["accuracy"] = math.nan

    folder = make_runs(tmp_path, change=change)
    edit_sealed(folder / "freeze-only" / "seed-1" / "record.json", unmeasured)
    place = folder / "oelm-freeze"
    (place / "seed-0" / "record.json").write_text('{"format": 1, "status": "do')
    edit_sealed(place / "seed-1" / "record.json", lambda data: data.update(format=99))
    for name in ("record.json", "cell.json"):
        edit_sealed(place / "seed-2" / name, lambda data: data["spec"].update(study="another <b>study</b>"))
    (place / "seed-3" / "record.json").unlink()
    (place / "seed-4" / "predictions.parquet").write_bytes(b"PAR1 not really")
    return folder
