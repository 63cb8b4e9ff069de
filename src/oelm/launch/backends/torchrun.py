"""Torchrun: one cell over several processes, on this machine or, with an agent on each, on several.

The processes find each other through a file in the folder of the cell, which all of them see anyway; so nothing of
torchrun's listens on a socket. What they send each other goes over the given interface, loopback by default.
"""

import os
import secrets
import sys
from collections.abc import Sequence

from oelm.errors import LaunchError
from oelm.launch.backends.base import LocalBackend
from oelm.launch.backends.child import Child, cell_arguments, run_children, start_child
from oelm.launch.backends.options import TorchrunOptions
from oelm.launch.study_run import CellQueue, StudyRun
from oelm.study.cells import Cell
from oelm.train.progress import Progress


class TorchrunBackend(LocalBackend):
    """One cell after the other, each over `nproc` processes on `nnodes` machines."""

    name = "torchrun"

    def __post_init__(self) -> None:
        if self.options.nproc is None:
            raise LaunchError("--on torchrun needs the number of processes", hint="--nproc 2")

    @property
    def options(self) -> TorchrunOptions:
        return TorchrunOptions.resolve(self.given, defaults=self.settings.torchrun)

    @property
    def nproc(self) -> int:
        assert self.options.nproc is not None
        return self.options.nproc

    def devices(self, study_run: StudyRun) -> str:
        from oelm.train.device import describe_device

        return f"{describe_device()}, {self.nproc * self.options.nnodes} processes a cell"

    def run(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress) -> None:
        # Agents of one launch go through the same cells at the same time: what is leased is leased by one of them.
        has_peers = self.options.nnodes > 1

        def remove_store(cell: Cell) -> None:
            if not has_peers:  # they may still look at it; it goes with the next lease
                for file in (study_run.folder / cell.folder).glob(".store-*"):
                    file.unlink(missing_ok=True)

        run_children(
            study_run,
            CellQueue(study_run, study_run.missing(cells), progress, include_leased=has_peers),
            progress,
            slots=1,
            start=lambda slot, cell: self._start(study_run, cell),
            ended=remove_store,
            stopped="stopped; `oelm logs` shows at which step",
        )

    def _start(self, study_run: StudyRun, cell: Cell) -> Child:
        folder = study_run.folder / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        rdzv_id = self.options.rdzv_id or secrets.token_hex(4)
        store = (folder / f".store-{rdzv_id}").absolute()
        if store.exists():  # it is made when all agents have met
            raise LaunchError(
                f"the rendezvous '{rdzv_id}' was used already",
                where=str(folder),
                hint="the same command on every machine, with a new --rdzv-id",
            )
        words = [*self.command(store=str(store), rdzv_id=rdzv_id), *cell_arguments(study_run, cell)]
        return start_child(words, cell, env=self.environment(str(store)))

    def command(self, *, store: str, rdzv_id: str) -> list[str]:
        words = [sys.executable, "-P", "-m", "torch.distributed.run"]
        words += [f"--nnodes={self.options.nnodes}", f"--nproc-per-node={self.nproc}", "--max-restarts=0"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={store}.agents", "--rdzv-conf=store_type=file"]
        words += ["--local-addr=127.0.0.1"] if self.options.interface == "lo" else []
        return [*words, f"--rdzv-id={rdzv_id}"]

    def environment(self, store: str) -> dict[str, str]:
        from oelm.train.distributed import STORE_VARIABLE

        threads = max(1, len(os.sched_getaffinity(0)) // self.nproc)
        return {
            STORE_VARIABLE: store,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # it would listen on every interface
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",  # seconds for a checkpoint; else it has 30
            "GLOO_SOCKET_IFNAME": self.options.interface,
            "NCCL_SOCKET_IFNAME": self.options.interface,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        }
