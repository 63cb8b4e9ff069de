"""oelm: head-wise orthogonal, frozen queries and keys on any Transformer, applied exactly and audited.

Names are imported when they are first used, so that `import oelm` and `oelm --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oelm.version import __version__

if TYPE_CHECKING:
    from oelm.errors import AuditFailed, FolderError, ModelError, OelmError, TreatmentError, UnknownLayout
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
    from oelm.seeds import seed_for
    from oelm.treatment import Treatment, Unfreeze

_HOMES = {
    "Applied": "heads.applied",
    "Audit": "heads.audit",
    "AuditCallback": "heads.callbacks",
    "AuditFailed": "errors",
    "Counts": "heads.count",
    "Finding": "heads.audit",
    "FolderError": "errors",
    "HeadView": "heads.view",
    "Layout": "heads.layouts",
    "ModelError": "errors",
    "OelmError": "errors",
    "Orthonormality": "heads.measure",
    "Treatment": "treatment",
    "TreatmentError": "errors",
    "Unfreeze": "treatment",
    "UnknownLayout": "errors",
    "apply": "heads.apply",
    "count": "heads.count",
    "find_heads": "heads.find",
    "from_pretrained": "heads.save",
    "orthonormality": "heads.measure",
    "prove_layout": "heads.prove",
    "register_layout": "heads.layouts",
    "seed_for": "seeds",
}

__all__ = [
    "Applied",
    "Audit",
    "AuditCallback",
    "AuditFailed",
    "Counts",
    "Finding",
    "FolderError",
    "HeadView",
    "Layout",
    "ModelError",
    "OelmError",
    "Orthonormality",
    "Treatment",
    "TreatmentError",
    "Unfreeze",
    "UnknownLayout",
    "__version__",
    "apply",
    "count",
    "find_heads",
    "from_pretrained",
    "orthonormality",
    "prove_layout",
    "register_layout",
    "seed_for",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'oelm' has no attribute {name!r}")
    value = getattr(import_module(f"oelm.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
