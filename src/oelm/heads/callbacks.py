"""Callbacks for `transformers.Trainer`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oelm.errors import TreatmentError
from oelm.heads.applied import Applied


class AuditCallback(TrainerCallback):
    """Audits at the start, at every save and at the end of training, and raises `AuditFailed` at once.

    Between audits, a frozen tensor that anything has written to is noticed after the very same step. If the treatment
    has an `unfreeze` schedule, the callback follows it.
    """

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self._versions: dict[str, tuple[int, int]] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.applied.treatment.unfreeze is not None and args.world_size > 1:
            raise TreatmentError(
                "an unfreeze schedule does not work with several processes",
                why="DistributedDataParallel has fixed at the start which gradients it reduces",
                hint="one process, or no unfreeze",
            )
        self._audit(kwargs.get("optimizer"), state)
        self._versions = self._now()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        progress = state.global_step / max(state.max_steps, 1)
        if self.applied.advance(progress, optimizer=kwargs.get("optimizer")):
            self._versions = self._now()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # Every write in place raises a tensor's version, so a look at the numbers is enough to know when to hash.
        now = self._now()
        if now != self._versions:
            self._audit(None, state)
            self._versions = now

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._audit(kwargs.get("optimizer"), state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._audit(kwargs.get("optimizer"), state)

    def _audit(self, optimizer: Any, state: TrainerState) -> None:
        # With a warm-up the first step has a learning rate of 0 and moves nothing.
        self.applied.audit(optimizer=optimizer, stepped=state.global_step > 1).check()

    def _now(self) -> dict[str, tuple[int, int]]:
        return {region.key: (region.parameter._version, region.parameter.data_ptr()) for region in self.applied.frozen}
