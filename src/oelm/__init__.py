"""oelm: head-wise orthogonal, frozen queries and keys on any Transformer, applied exactly and audited.

Names are imported when they are first used, so that `import oelm` and `oelm --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oelm.version import __version__

if TYPE_CHECKING:
    from oelm.analysis.flags import Flag
    from oelm.analysis.results import Results, load
    from oelm.analysis.verdicts import Comparison
    from oelm.errors import (
        AuditFailed,
        CellError,
        DataError,
        DiskError,
        FolderError,
        ModelError,
        OelmError,
        ReportError,
        Stopped,
        StudyError,
        TreatmentError,
        UnknownLayout,
    )
    from oelm.heads.applied import Applied
    from oelm.heads.apply import apply
    from oelm.heads.audit import Audit, Finding
    from oelm.heads.callbacks import AuditCallback
    from oelm.heads.count import Counts, count
    from oelm.heads.find import find_heads
    from oelm.heads.layouts import Layout, register_layout
    from oelm.heads.measure import Orthonormality, orthonormality
    from oelm.heads.prove import prove_layout
    from oelm.heads.save import from_pretrained
    from oelm.heads.view import HeadView
    from oelm.launch.compare import compare, run_cell
    from oelm.launch.plan import Plan, plan
    from oelm.records.record import Record, read_record
    from oelm.report.write import write_report
    from oelm.seeds import seed_for
    from oelm.study.load import load_study
    from oelm.study.plan import Cell
    from oelm.study.study import Study
    from oelm.treatment import Treatment, Unfreeze

_HOMES = {
    "Applied": "heads.applied",
    "Audit": "heads.audit",
    "AuditCallback": "heads.callbacks",
    "AuditFailed": "errors",
    "Cell": "study.plan",
    "CellError": "errors",
    "Comparison": "analysis.verdicts",
    "Counts": "heads.count",
    "DataError": "errors",
    "DiskError": "errors",
    "Finding": "heads.audit",
    "Flag": "analysis.flags",
    "FolderError": "errors",
    "HeadView": "heads.view",
    "Layout": "heads.layouts",
    "ModelError": "errors",
    "OelmError": "errors",
    "Orthonormality": "heads.measure",
    "Plan": "launch.plan",
    "Record": "records.record",
    "ReportError": "errors",
    "Results": "analysis.results",
    "Stopped": "errors",
    "Study": "study.study",
    "StudyError": "errors",
    "Treatment": "treatment",
    "TreatmentError": "errors",
    "Unfreeze": "treatment",
    "UnknownLayout": "errors",
    "apply": "heads.apply",
    "compare": "launch.compare",
    "count": "heads.count",
    "find_heads": "heads.find",
    "from_pretrained": "heads.save",
    "load": "analysis.results",
    "load_study": "study.load",
    "orthonormality": "heads.measure",
    "plan": "launch.plan",
    "prove_layout": "heads.prove",
    "read_record": "records.record",
    "register_layout": "heads.layouts",
    "run_cell": "launch.compare",
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
    "Flag",
    "FolderError",
    "HeadView",
    "Layout",
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
    "Treatment",
    "TreatmentError",
    "Unfreeze",
    "UnknownLayout",
    "__version__",
    "apply",
    "compare",
    "count",
    "find_heads",
    "from_pretrained",
    "load",
    "load_study",
    "orthonormality",
    "plan",
    "prove_layout",
    "read_record",
    "register_layout",
    "run_cell",
    "seed_for",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    value = getattr(import_module(f"oelm.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
