"""The table of kinds: a task whose kind is not in it is a classification, or text for language modeling."""

from oelm.data.kinds.kind import ExampleKind
from oelm.data.kinds.qa import QuestionAnswering
from oelm.data.kinds.seq2seq import SequenceToSequence
from oelm.data.kinds.tokens import TokenClassification
from oelm.data.tasks import TaskKind

TASK_KINDS: dict[TaskKind, ExampleKind] = {
    "tokens": TokenClassification(),
    "qa": QuestionAnswering(),
    "seq2seq": SequenceToSequence(),
}
