"""AdaLoRA: what it needs of every step beside its weights: a penalty on the loss, and the ranks that it takes away."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import ModelError
from oelm.study.adapter import rank_steps_problem

_AVERAGES = ("ipt", "exp_avg_ipt", "exp_avg_unc")  # importance of every weight, kept by PEFT's allocator
_RANKS = "rank_pattern"


class RankBudget:
    """The ranks of an AdaLoRA adapter over a training of `total` steps."""

    def __init__(self, tuner: Any, *, total: int):
        self._tuner, self._allocator = tuner, tuner.rankallocator
        self._config = tuner.peft_config[tuner.trainable_adapter_name]
        problem = rank_steps_problem(tinit=self._config.tinit, tfinal=self._config.tfinal, total=total)
        if problem is not None:
            raise ModelError(problem, where="adapter")
        self._allocator.set_total_step(total)

    def penalty(self) -> Tensor:
        """How far its singular vectors are from orthonormal, times `orth_reg_weight`: a part of the loss."""
        factors = [
            parameter if "lora_A" in name else parameter.mT
            for name, parameter in self._tuner.model.named_parameters()
            if "lora_A" in name or "lora_B" in name
        ]
        grams = [rows @ rows.mT for rows in factors]
        apart = [torch.linalg.matrix_norm(gram - torch.eye(len(gram), device=gram.device)) for gram in grams]
        return torch.stack(apart).mean() * float(self._config.orth_reg_weight)

    def advance(self, step: int, *, skipped: bool = False) -> None:
        """After a step of the optimizer, the first being 1, while its gradients are still there.

        Those of a step that was skipped are not finite (fp16), and say nothing of importance. The last ranks are taken
        away in any case, by what was measured before.
        """
        if not skipped or step >= self._config.total_step - self._config.tfinal:
            self._tuner.update_and_allocate(step)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on, for a checkpoint."""
        kept = {f"{part}|{name}": one for part in _AVERAGES for name, one in getattr(self._allocator, part).items()}
        kept |= {f"{_RANKS}|{name}": torch.tensor(ranks) for name, ranks in (self._config.rank_pattern or {}).items()}
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._allocator.reset_ipt()
        weights, ranks = dict(self._tuner.model.named_parameters()), {}
        for key, tensor in tensors.items():
            part, name = key.split("|")
            if part == _RANKS:
                ranks[name] = tensor.tolist()
            else:
                getattr(self._allocator, part)[name] = tensor.to(weights[name].device)
        self._config.rank_pattern = ranks or None


def find_rank_budget(model: nn.Module, *, total: int) -> RankBudget | None:
    """None of a model without AdaLoRA."""
    tuner = getattr(model, "base_model", None)
    return RankBudget(tuner, total=total) if hasattr(tuner, "rankallocator") else None
