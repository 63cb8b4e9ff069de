"""The ceiling of a treatment, without a study; and the work of a step as torch counts it."""

import copy

from torch.utils.flop_counter import FlopCounterMode

from oelm.bench.flops import Ceiling, work_of
from oelm.heads.applied import Applied
from oelm.heads.find import projections_in
from oelm.heads.freeze import set_requires_grad, should_freeze, split_fused
from oelm.heads.projection import param_slices


def ceiling(model, treatment=None, *, batch, length):
    """Of an untreated model and a treatment; or of what `apply` returned, against the same model without it."""
    if isinstance(model, Applied):
        frozen = {id(region.parameter) for region in model.frozen if region.key in model.freezable}
        learns = [parameter for parameter in model.model.parameters() if id(parameter) in frozen]
        treated = work_of(model.model, batch=batch, length=length)
        for parameter in learns:
            parameter.requires_grad_(True)
        baseline = work_of(model.model, batch=batch, length=length)
        for parameter in learns:
            parameter.requires_grad_(False)
        return Ceiling(baseline=baseline, treated=treated)
    frozen = copy.deepcopy(model)
    _freeze(frozen, treatment)
    return Ceiling(
        baseline=work_of(model, batch=batch, length=length), treated=work_of(frozen, batch=batch, length=length)
    )


def counted(model, *, batch, length):
    """The products of the step whose work is counted."""
    with FlopCounterMode(display=False) as counter:
        work_of(model, batch=batch, length=length)
    return counter.get_total_flops()


def _freeze(model, treatment):
    """What `apply` does to what learns, also on the meta device."""
    treated = projections_in(model, treatment.layers)
    list(split_fused([projection for projection in treated if projection.role in treatment.frozen_roles]))
    regions = [region for projection in treated for region in param_slices(projection)]
    set_requires_grad([region for region in regions if should_freeze(treatment, region)], False)
