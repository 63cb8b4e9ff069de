"""Launch: start what is missing of a study where it is to run, and keep what is needed to ask about it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.analysis.results import Results
from oelm.errors import LaunchError
from oelm.launch.compare import Begun, Runner, begin, compare, in_this_process, looked_at, release
from oelm.launch.jobs import Job, keep_job
from oelm.launch.where import LOCAL, SLURM, TORCHRUN, Where
from oelm.study.study import Study
from oelm.train.watch import Watch

if TYPE_CHECKING:
    from oelm.launch.cluster import Cluster
    from oelm.launch.slurm import Submission


@dataclass(frozen=True, kw_only=True)
class Launch:
    study: Study
    where: Where
    out: Path
    arms: list[str] | None = None
    seeds: list[int] | None = None

    def begun(self) -> Begun:
        return looked_at(self.study, out=self.out, arms=self.arms, seeds=self.seeds)

    def job(self) -> Job:
        """What is kept of it."""
        names = tuple(str(cell) for stage in self.begun().stages for cell in stage)
        options = {"where": self.where.to_dict(), "arms": self.arms, "seeds": self.seeds}
        return Job(on=self.where.on, cells=names, options=options)

    def here(self, watch: Watch) -> Results:
        """Run it, and wait for it: on this machine, in one process or in several."""
        runner, job = runner_for(self.where), self.job()
        return compare(self.study, out=self.out, arms=self.arms, seeds=self.seeds, watch=watch, runner=runner, job=job)

    def elsewhere(self, told: Callable[[str], None]) -> Job:
        """Have it run, and do not wait for it. `told` hears of what is done for it."""
        from oelm.launch.cluster import load_cluster

        begun, cluster = self.begun(), load_cluster()
        stages, kept = _stages(begun), self.job()
        begin(begun)
        stops = release(begun)  # before: a task may start at once
        try:
            if self.where.kind == SLURM:
                from oelm.launch import slurm

                job = slurm.submit(self._submission(begun, cluster), stages)
            else:
                from oelm.launch import remote
                from oelm.launch.place import place_from

                job = remote.launch(
                    self.study,
                    study_file=begun.file,
                    place=place_from(self.where.on),
                    out=self.out,
                    cells=kept.cells,
                    arms=self.arms,
                    seeds=self.seeds,
                    workers=self.where.workers,
                    cluster=cluster,
                    told=told,
                )
        except BaseException:  # nothing was started: what was stopped stays so
            with suppress(OSError):
                for stop in stops:
                    stop.touch()
            raise
        job = replace(kept, facts=job.facts)
        keep_job(begun.folder, job)
        return job

    def scripts(self) -> list[str]:
        """What `elsewhere` would give to Slurm."""
        from oelm.launch import slurm
        from oelm.launch.cluster import load_cluster

        begun = self.begun()
        return slurm.rendered(self._submission(begun, load_cluster()), _stages(begun))

    def _submission(self, begun: Begun, cluster: Cluster) -> Submission:
        from oelm.launch.slurm import Slurm, Submission

        return Submission(
            name=self.study.name,
            study=begun.file.absolute(),
            out=self.out.absolute(),
            folder=begun.folder.absolute(),
            options=Slurm(**self.where.said()),
            cluster=cluster,
            workdir=Path.cwd(),
        )


def _stages(begun: Begun) -> list[list[str]]:
    """The cells that are missing, by name."""
    stages = [[str(cell) for cell in stage] for stage in begun.stages]
    if not stages:
        raise LaunchError(f"nothing is missing of {begun.folder}", hint=f"oelm report {begun.folder}")
    return stages


def runner_for(where: Where) -> Runner:
    if where.kind == TORCHRUN:
        from oelm.launch.torchrun import Torchrun

        assert where.nproc is not None
        return Torchrun(
            nproc=where.nproc,
            nnodes=where.nnodes or 1,
            meeting=where.meeting,
            interface=where.interface or "lo",
        )
    assert where.kind == LOCAL
    from oelm.launch.workers import Workers, visible_gpus

    number = max(1, len(visible_gpus())) if where.workers is None else where.workers
    return in_this_process if number == 1 else Workers(number=number)
