"""SSH as a backend: all cells of a study on another machine."""

from collections.abc import Callable, Sequence
from pathlib import Path

from oelm.launch.backends.base import RemoteBackend
from oelm.launch.backends.options import SshOptions
from oelm.launch.backends.ssh.address import parse_address
from oelm.launch.backends.ssh.fetch import fetch_records
from oelm.launch.backends.ssh.remote import fetch_status, start_remote, stop_remote, stream_log
from oelm.launch.study_run import StudyRun
from oelm.runs.jobs import Job
from oelm.runs.status import CellStatus


class SshBackend(RemoteBackend):
    name = "ssh"
    has_address = True
    shares_folder = False

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_address(self.on)

    @property
    def options(self) -> SshOptions:
        return SshOptions.resolve(self.given, defaults=self.settings.ssh)

    def submit(self, study_run: StudyRun, *, log: Callable[[str], None]) -> dict[str, str]:
        started = start_remote(
            study_run,
            address=parse_address(self.on),
            workers=self.options.workers,
            cluster=self.settings,
            log=log,
        )
        return started.to_facts()

    def status(self, job: Job) -> dict[str, CellStatus]:
        return {status.cell: status for status in fetch_status(job, self.settings)}

    def stop(self, job: Job, cells: Sequence[str]) -> None:
        stop_remote(job, cells, self.settings)

    def stream_logs(
        self, job: Job, *, cell: str, follow: bool, write: Callable[[str], None], log: Callable[[str], None]
    ) -> int | None:
        return stream_log(job, cell, follow=follow, cluster=self.settings, write=write, log=log)

    def fetch(self, job: Job, *, study: Path, models: bool, log: Callable[[str], None]) -> int | None:
        return fetch_records(job, here=study, models=models, cluster=self.settings, log=log)
