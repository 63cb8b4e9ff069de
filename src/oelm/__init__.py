"""oelm: head-wise orthogonal, frozen queries and keys on any Transformer, applied exactly and audited.

Names are imported when they are first used, so that `import oelm` and `oelm --help` do not wait for torch.
transformers' Auto classes know the small GPT of `oelm.models.gpt` as soon as both packages are imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oelm.errors import explain_import
from oelm.models.register import register_with_transformers
from oelm.version import __version__

if TYPE_CHECKING:  # what is renamed to its own name is exported, as type checkers see it
    from oelm.analysis.checks.registry import Issue as Issue
    from oelm.analysis.results import Results as Results
    from oelm.analysis.results import load as load
    from oelm.analysis.verdicts import Comparison as Comparison
    from oelm.claims.judge import judge_claim as judge_claim
    from oelm.claims.load import load_ledger as load_ledger
    from oelm.data.tasks import Hub as Hub
    from oelm.data.tasks import Task as Task
    from oelm.data.tasks import register_task as register_task
    from oelm.errors import AuditFailed as AuditFailed
    from oelm.errors import CellError as CellError
    from oelm.errors import DataError as DataError
    from oelm.errors import DiskError as DiskError
    from oelm.errors import FolderError as FolderError
    from oelm.errors import MissingPart as MissingPart
    from oelm.errors import ModelError as ModelError
    from oelm.errors import OelmError as OelmError
    from oelm.errors import ReportError as ReportError
    from oelm.errors import Stopped as Stopped
    from oelm.errors import StudyError as StudyError
    from oelm.errors import TreatmentError as TreatmentError
    from oelm.errors import UnknownLayout as UnknownLayout
    from oelm.facts import Counts as Counts
    from oelm.heads.applied import Applied as Applied
    from oelm.heads.apply import apply as apply
    from oelm.heads.audit import Audit as Audit
    from oelm.heads.audit import Finding as Finding
    from oelm.heads.count import count as count
    from oelm.heads.find import find_heads as find_heads
    from oelm.heads.layouts import Layout as Layout
    from oelm.heads.layouts import register_layout as register_layout
    from oelm.heads.measure import Orthonormality as Orthonormality
    from oelm.heads.measure import orthonormality as orthonormality
    from oelm.heads.projection import HeadView as HeadView
    from oelm.heads.prove import prove_layout as prove_layout
    from oelm.heads.save import from_pretrained as from_pretrained
    from oelm.heads.trainer import AuditCallback as AuditCallback
    from oelm.launch.plan import Plan as Plan
    from oelm.launch.plan import plan as plan
    from oelm.launch.run import run as run
    from oelm.metrics import Metric as Metric
    from oelm.metrics import register_metric as register_metric
    from oelm.report.write import write_report as write_report
    from oelm.runs.record import Record as Record
    from oelm.runs.record import read_record as read_record
    from oelm.seeds import seed_for as seed_for
    from oelm.study.cells import Cell as Cell
    from oelm.study.load import load_study as load_study
    from oelm.study.optimizers import register_optimizer as register_optimizer
    from oelm.study.study import Study as Study
    from oelm.treatment import Treatment as Treatment
    from oelm.treatment import Unfreeze as Unfreeze

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

__all__ = ["__version__", *_HOMES]

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
