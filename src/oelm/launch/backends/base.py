"""Backend: where and how the cells of a study run. One class each; everything else asks through this protocol."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from oelm.launch.backends.cluster import Cluster, load_cluster
from oelm.launch.backends.options import BackendOptions
from oelm.launch.study_run import StudyRun
from oelm.runs.jobs import Job
from oelm.runs.layout import LOG
from oelm.runs.status import CellStatus
from oelm.study.cells import Cell
from oelm.train.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Backend(ABC):
    """A `LocalBackend` or a `RemoteBackend`. A job in jobs.jsonl keeps `on` and `given`, which make it again."""

    name: ClassVar[str]
    """In `--on`, and its part of cluster.yaml."""
    has_address: ClassVar[bool] = False
    """Whether `--on` says more than the name: `ssh://user@host`."""
    shares_folder: ClassVar[bool] = True
    """Whether its cells write to the run folder that is seen here."""

    on: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    """The options that were given; cluster.yaml says the rest."""
    cluster: Cluster | None = None
    """None: cluster.yaml, read when it is needed."""

    @property
    def settings(self) -> Cluster:
        return load_cluster() if self.cluster is None else self.cluster

    @property
    @abstractmethod
    def options(self) -> BackendOptions:
        """What was given, over what cluster.yaml says."""

    def __post_init__(self) -> None:
        self.options  # noqa: B018  bad ones are refused before anything is done

    def status(self, job: Job) -> dict[str, CellStatus]:
        """By cell, what the run folder does not say."""
        return {}

    def stop(self, job: Job, cells: Sequence[str]) -> None:
        """Take cells out of a queue, or ask elsewhere; those that write here have been asked by a file already."""
        return

    def logs(self, job: Job, *, study: Path, cell: str) -> list[Path]:
        """The files here that hold the log of a cell, its own first."""
        return [study / cell / LOG]

    def stream_logs(
        self, job: Job, *, cell: str, follow: bool, write: Callable[[str], None], log: Callable[[str], None]
    ) -> int | None:
        """Write a log that is not here as it comes; an exit code, or None if `logs` has it all."""
        return None

    def fetch(self, job: Job, *, study: Path, models: bool, log: Callable[[str], None]) -> int | None:
        """Copy records into the folder of a study; how many cells have one then, or None if there are none to copy."""
        return None


class LocalBackend(Backend):
    """Runs cells, and waits for them."""

    @abstractmethod
    def run(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress) -> None:
        """Bring cells as far as they come; of those that fail, the progress hears why."""

    @abstractmethod
    def devices(self, study_run: StudyRun) -> str:
        """The device of every cell."""

    def is_inline(self, study_run: StudyRun) -> bool:
        """Whether cells run in this very process."""
        return False


class RemoteBackend(Backend):
    """Hands cells over, and returns."""

    @abstractmethod
    def submit(self, study_run: StudyRun, *, log: Callable[[str], None]) -> dict[str, str]:
        """Have all missing cells run, or none; returns what is needed to ask about them."""

    def render(self, study_run: StudyRun) -> list[str] | None:
        """The scripts that `submit` would hand over; None if there are none to look at."""
        return None
