"""Recipe: everything the arms of a study share. Pure data: plain frozen dataclasses, documented field by field."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Len

from oelm.data.limit import Limit
from oelm.study.forbid_extra import ForbidExtra, as_in_file

_Text = Annotated[str, Len(1)]
_Positive = Annotated[int, Ge(1)]
_Fraction = Annotated[float, Interval(ge=0, lt=1)]

SIZE_FIELDS = ("layers", "width", "heads", "ffn", "context")
BUDGET_FIELDS = ("epochs", "steps", "tokens")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ForbidExtra):
    name: _Text | None = None
    """`oelm-gpt`, a packaged model (`minilm-l6`), a folder, or a hub name."""
    from_: _Text | None = None
    """Instead of a name: the run folder of another study (`runs/STUDY`), whose cells left the models to start from."""
    arm: _Text = "same"
    """With `from`: the arm of that study, the one of the same name or one for all."""
    seed: Literal["same"] = "same"
    """With `from`: every seed starts from the model of the same seed."""
    freeze: Literal["keep", "none"] = "keep"
    """With `from`: whether queries and keys that were frozen there stay so."""
    revision: str | None = None
    """Commit, tag or branch of a hub name."""
    preset: Literal["mini-128", "mini-256", "medium-512", "gpt2-768", "gpt2-1024", "gpt2-1280", "gpt2-1600"] | None = (
        None
    )
    """Sizes of `oelm-gpt`; those of GPT-2 go up to XL. What is said below goes before it."""
    layers: _Positive | None = None
    """Of `oelm-gpt`; without a preset, it, `width` and `heads` must be said."""
    width: _Positive | None = None
    """Of `oelm-gpt`: a multiple of `heads`."""
    heads: _Positive | None = None
    """Of `oelm-gpt`, in every layer."""
    ffn: _Positive | None = None
    """Of `oelm-gpt`: width of the feed-forward layers; left out, that of the preset, or four times another `width`."""
    context: Annotated[int, Ge(2)] | None = None
    """Of `oelm-gpt`: the most tokens of a sequence; left out, that of the preset, or `data.max_length`."""
    causal: bool = True
    """Of `oelm-gpt`: whether a token sees only those before it."""
    pooling: Literal["last", "mean"] = "last"
    """Of `oelm-gpt`: which hidden states the classifier reads. With `last`, a saved model keeps its own."""
    qk_norm: bool = False
    """Of `oelm-gpt`: whether the queries and keys of every head are divided by their root mean square (RMSNorm)."""
    dropout: _Fraction | None = None
    """Every dropout of the model; left out, the model's own."""
    from_scratch: bool = False
    """Take only the configuration of `name` and draw the weights anew. `oelm-gpt` always does."""

    @property
    def size(self) -> str:
        """Of `oelm-gpt`, in a few words: its preset, and what departs from it."""
        said = [f"{name} {value}" for name in SIZE_FIELDS if (value := getattr(self, name)) is not None]
        return ", ".join([*([self.preset] if self.preset else []), *said])

    @property
    def label(self) -> str:
        """Its name, or the study that its weights come from."""
        return self.name or f"from {Path(self.from_ or '?').name}"


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(ForbidExtra):
    name: str | None = None
    """A folder or hub name."""
    revision: str | None = None
    """Commit, tag or branch of a hub name."""
    train: Literal["bpe", "words"] | None = None
    """Train one on the training split, instead of taking one by name: on bytes that are merged (BPE), or one token for
    every word between spaces."""
    vocab: Annotated[int, Ge(257)] = 8192
    """Entries of a trained one: 256 bytes, the end of text, and merges; of words, at most as many."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.train is None):
            raise ValueError("say either `name` or `train`")
        if self.revision is not None and self.name is None:
            raise ValueError("`revision` goes with `name`")


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig(ForbidExtra):
    """Of the tasks `recall` and `induction`, whose examples are made."""

    pairs: Annotated[int, Interval(ge=2, le=7)] = 4
    """In an example: more are harder. Without attention one answer in as many is right."""
    seed: Annotated[int, Ge(0)] = 0
    """Of the examples, which are the same for every arm and seed of the study."""


@dataclass(frozen=True, kw_only=True)
class LimitConfig(ForbidExtra, Limit):
    """Exactly one of the three: `examples`, or of language modeling `documents` or `tokens`."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(ForbidExtra):
    task: _Text = "classification"
    """A row of the table of tasks: sst2, imdb, tinystories, ...; of your own data: classification, pairs, regression,
    text. Left out, labels and whether examples are pairs are found in the data."""
    path: str | dict[str, str] | None = None
    """A folder or file to read instead of the hub, or one for each split."""
    hub: _Text | None = None
    """A data set of the hub for a task of your own data, by its name: `owner/name`."""
    config: str | None = None
    """Of `hub`: the configuration (subset), where it has several."""
    revision: str | None = None
    """Of `hub`: commit, tag or branch; left out, the main branch when it is first fetched. The commit is recorded."""
    splits: dict[Literal["train", "validation", "test"], _Text] | None = None
    """Of `hub`: what the splits are called there, or patterns of their files; left out, the usual names."""
    columns: dict[Literal["text", "text_a", "text_b", "label"], _Text] | None = None
    """What the columns are called: `{text: review, label: stars}`; left out, text (text_a and text_b) and label."""
    max_length: Annotated[int, Ge(2)] = 128
    """Tokens: longer examples are cut; text for language modeling comes in windows of this length."""
    max_target: Annotated[int, Ge(2)] | None = None
    """Of sequence to sequence: tokens of a target, where longer ones are cut, and of what a model writes at most; left
    out, those of the task."""
    validation: _Positive | None = None
    """Training examples held out to choose checkpoints and settings on; where the task has a split for that, it may be
    left out. Of text: documents, or, of fewer than 20, pieces of about 2,000 characters."""
    overlap: Literal["drop", "keep"] = "drop"
    """Training examples that are also in the validation or test split, or nearly: dropped, or kept as published."""
    limit: LimitConfig | None = None
    """What to train on, the same for every arm and seed; the simple baseline learns from it too. Left out, all."""
    group: str | None = None
    """A column, such as the document of a sentence: examples with the same value in it are held out together."""
    pair_separator: str | None = None
    """Text between the two parts of a pair, for a tokenizer that has no form for pairs."""
    tokenizer: TokenizerConfig | None = None
    """Left out, the model's own."""
    synthetic: SyntheticConfig | None = None
    """Of a synthetic task; left out, its defaults."""


@dataclass(frozen=True, kw_only=True)
class Budget(ForbidExtra):
    """Exactly one of the three."""

    epochs: Annotated[float, Gt(0)] | None = None
    """Times through the training split."""
    steps: _Positive | None = None
    """Optimizer steps."""
    tokens: _Positive | None = None
    """Tokens trained on, padding not counted."""

    def __post_init__(self) -> None:
        given = [name for name in BUDGET_FIELDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"say exactly one of epochs, steps and tokens, not {' and '.join(given) or 'none'}")


@dataclass(frozen=True, kw_only=True)
class BatchConfig(ForbidExtra):
    size: _Positive = 32
    """Examples (windows) in a forward pass."""
    accumulate: _Positive = 1
    """Forward passes in an optimizer step."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ForbidExtra):
    lr: Annotated[float, Gt(0)]
    """Peak learning rate."""
    qk_lr: Annotated[float, Gt(0)] | None = None
    """Learning rate of queries and keys as a share of `lr`, at every step: 0.1 is a tenth of it. Left out, they learn
    like all else."""
    name: _Text = "adamw"
    """adamw, adam, sgd, adafactor, muon, or one that a plugin registers."""
    betas: tuple[_Fraction, _Fraction] = (0.9, 0.999)
    """Of adamw, adam, and what AdamW does beside muon."""
    eps: Annotated[float, Gt(0)] = 1e-8
    """Of the same."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """What decays: matrices and embeddings, or biases and norms too."""
    options: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    """Those of this optimizer alone, such as `{momentum: 0.9, nesterov: true}` of sgd; see `study/optimizers.py`."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(ForbidExtra):
    name: Literal["linear", "cosine", "constant"] = "linear"
    warmup: Annotated[float, Ge(0)] = 0.0
    """Below 1 a fraction of the budget, from 1 on a number of steps."""
    floor: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Where the decay ends, as a fraction of the peak."""

    def __post_init__(self) -> None:
        if self.name == "constant" and self.floor:
            raise ValueError("a constant schedule has no floor")


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ForbidExtra):
    every: _Positive = 500
    """Steps between measurements on the validation split; the last step is always measured."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(ForbidExtra):
    every: _Positive | None = None
    """Steps between checkpoints; left out, one after each measurement."""
    keep: Literal["none", "final", "best"] = "best"
    """Which model a finished cell keeps: none, the final one, or the best on the validation split."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ForbidExtra):
    model: ModelConfig
    data: DataConfig
    budget: Budget
    optimizer: OptimizerConfig
    batch: BatchConfig = field(default_factory=BatchConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    max_grad_norm: Annotated[float, Gt(0)] | None = 1.0
    """Longest gradient; `null` clips nothing."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the arithmetic; weights and optimizer stay in float32."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    compile: bool = False
    """Use `torch.compile`."""
    gradient_checkpointing: bool = False
    """Compute activations anew in the backward pass: less memory, more time."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Where several processes train a cell (`--on torchrun`): each has the whole model, or, for models that do not fit,
    a shard of weights, gradients and optimizer state."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the file."""
        return asdict(self, dict_factory=as_in_file)


# What may differ between two starts of one cell: it has no part in the result. Where the data lie is not asked
# either; what is in them is.
WITHOUT_EFFECT = ("checkpoint", "parallel", "trackers", "data.path")
