"""Callbacks for `transformers.Trainer`."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from oelm.errors import TreatmentError
from oelm.heads.applied import Applied, fingerprint


class AuditCallback(TrainerCallback):
    """Audits at the start, at every save and at the end of training, and raises `AuditFailed` immediately.

    Between audits, a write to a frozen tensor is detected after the same step. If the treatment has an `unfreeze`
    schedule, the callback follows it; rows that are kept orthonormal are made so after every step.
    """

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self._fingerprints: dict[int, int] = {}
        self._first_step = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.applied.treatment.unfreeze is not None and args.world_size > 1:
            raise TreatmentError(
                "an unfreeze schedule is not supported with several processes",
                why="DistributedDataParallel fixes at the start which gradients it reduces",
                hint="use one process, or no unfreeze",
            )
        self._first_step = state.global_step  # more than 0 if training is resumed
        self._audit(kwargs.get("optimizer"), state)
        self._fingerprints = self._compute_fingerprints()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        progress = state.global_step / max(state.max_steps, 1)
        if self.applied.advance(progress, optimizer=kwargs.get("optimizer")):
            self._fingerprints = self._compute_fingerprints()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.applied.retract()
        # A checksum is cheap enough for every step, and shows when to hash.
        if self._compute_fingerprints() != self._fingerprints:
            self._audit(None, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._audit(kwargs.get("optimizer"), state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._audit(kwargs.get("optimizer"), state)

    def _audit(self, optimizer: Any, state: TrainerState) -> None:
        # With warm-up, the first step has a learning rate of 0 and moves nothing.
        self.applied.audit(optimizer=optimizer, stepped=state.global_step - self._first_step > 1).check()

    def _compute_fingerprints(self) -> dict[int, int]:
        parameters = {id(param_slice.parameter): param_slice.parameter for param_slice in self.applied.frozen}
        return {key: fingerprint(parameter) for key, parameter in parameters.items()}
