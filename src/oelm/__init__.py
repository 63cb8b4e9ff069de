"""oelm: head-wise orthogonal, frozen queries and keys on any Transformer, applied exactly and audited.

Names are imported when they are first used, so that `import oelm` and `oelm --help` do not wait for torch.
transformers' Auto classes know the small GPT of `oelm.models.gpt` as soon as both packages are imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oelm.errors import explain_import
from oelm.models.register import register_with_transformers
from oelm.version import __version__

if TYPE_CHECKING:
    from oelm.analysis.checks.registry import Issue
    from oelm.analysis.results import Results, load
    from oelm.analysis.verdicts import Comparison
    from oelm.claims.judge import judge_claim
    from oelm.claims.load import load_ledger
    from oelm.data.tasks import Hub, Task, register_task
    from oelm.errors import (
        AuditFailed,
        CellError,
        DataError,
        DiskError,
        FolderError,
        MissingPart,
        ModelError,
        OelmError,
        ReportError,
        Stopped,
        StudyError,
        TreatmentError,
        UnknownLayout,
    )
    from oelm.facts import Counts
    from oelm.heads.applied import Applied
    from oelm.heads.apply import apply
    from oelm.heads.audit import Audit, Finding
    from oelm.heads.count import count
    from oelm.heads.find import find_heads
    from oelm.heads.layouts import Layout, register_layout
    from oelm.heads.measure import Orthonormality, orthonormality
    from oelm.heads.projection import HeadView
    from oelm.heads.prove import prove_layout
    from oelm.heads.save import from_pretrained
    from oelm.heads.trainer import AuditCallback
    from oelm.launch.plan import Plan, plan
    from oelm.launch.run import run
    from oelm.metrics import Metric, register_metric
    from oelm.report.write import write_report
    from oelm.runs.record import Record, read_record
    from oelm.seeds import seed_for
    from oelm.study.cells import Cell
    from oelm.study.load import load_study
    from oelm.study.optimizers import register_optimizer
    from oelm.study.study import Study
    from oelm.treatment import Treatment, Unfreeze

_HOMES = {
    "Applied": "heads.applied",
    "Audit": "heads.audit",
    "AuditCallback": "heads.trainer",
    "AuditFailed": "errors",
    "Cell": "study.cells",
    "CellError": "errors",
    "Comparison": "analysis.verdicts",
    "Counts": "facts",
    "DataError": "errors",
    "DiskError": "errors",
    "Finding": "heads.audit",
    "FolderError": "errors",
    "HeadView": "heads.projection",
    "Hub": "data.tasks",
    "Issue": "analysis.checks.registry",
    "Layout": "heads.layouts",
    "Metric": "metrics",
    "MissingPart": "errors",
    "ModelError": "errors",
    "OelmError": "errors",
    "Orthonormality": "heads.measure",
    "Plan": "launch.plan",
    "Record": "runs.record",
    "ReportError": "errors",
    "Results": "analysis.results",
    "Stopped": "errors",
    "Study": "study.study",
    "StudyError": "errors",
    "Task": "data.tasks",
    "Treatment": "treatment",
    "TreatmentError": "errors",
    "Unfreeze": "treatment",
    "UnknownLayout": "errors",
    "apply": "heads.apply",
    "count": "heads.count",
    "find_heads": "heads.find",
    "from_pretrained": "heads.save",
    "judge_claim": "claims.judge",
    "load": "analysis.results",
    "load_ledger": "claims.load",
    "load_study": "study.load",
    "orthonormality": "heads.measure",
    "plan": "launch.plan",
    "prove_layout": "heads.prove",
    "read_record": "runs.record",
    "register_layout": "heads.layouts",
    "register_metric": "metrics",
    "register_optimizer": "study.optimizers",
    "register_task": "data.tasks",
    "run": "launch.run",
    "seed_for": "seeds",
    "write_report": "report.write",
}

__all__ = [
    "Applied",
    "Audit",
    "AuditCallback",
    "AuditFailed",
    "Cell",
    "CellError",
    "Comparison",
    "Counts",
    "DataError",
    "DiskError",
    "Finding",
    "FolderError",
    "HeadView",
    "Hub",
    "Issue",
    "Layout",
    "Metric",
    "MissingPart",
    "ModelError",
    "OelmError",
    "Orthonormality",
    "Plan",
    "Record",
    "ReportError",
    "Results",
    "Stopped",
    "Study",
    "StudyError",
    "Task",
    "Treatment",
    "TreatmentError",
    "Unfreeze",
    "UnknownLayout",
    "__version__",
    "apply",
    "count",
    "find_heads",
    "from_pretrained",
    "judge_claim",
    "load",
    "load_ledger",
    "load_study",
    "orthonormality",
    "plan",
    "prove_layout",
    "read_record",
    "register_layout",
    "register_metric",
    "register_optimizer",
    "register_task",
    "run",
    "seed_for",
    "write_report",
]

register_with_transformers()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"oelm.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        missing = explain_import(error, needed_by=f"oelm.{name}")
        if missing is None:
            raise
        raise missing from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
