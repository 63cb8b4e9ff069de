"""Registry: every backend by its name in `--on`."""

from collections.abc import Mapping
from typing import Any

from oelm.errors import LaunchError, did_you_mean
from oelm.launch.backends.base import Backend, RemoteBackend
from oelm.launch.backends.cluster import Cluster, load_cluster
from oelm.launch.backends.options import BackendOptions, cli_fields
from oelm.launch.backends.slurm.backend import SlurmBackend
from oelm.launch.backends.ssh.backend import SshBackend
from oelm.launch.backends.torchrun import TorchrunBackend
from oelm.launch.backends.workers import WorkersBackend
from oelm.launch.launched import check_launched, check_programs
from oelm.runs.jobs import Job

BACKENDS: dict[str, type[Backend]] = {
    one.name: one for one in (WorkersBackend, TorchrunBackend, SlurmBackend, SshBackend)
}


def backend_options() -> dict[str, type[BackendOptions]]:
    return {name: type(options) for name, options in Cluster().options.items()}


def parse_backend(on: str, given: Mapping[str, Any], *, cluster: Cluster | None = None) -> Backend:
    """The backend that `--on` names, with the options that were given. Without a `cluster`, cluster.yaml is read."""
    chosen = backend_class(on)
    known = {backend: {one.name for one in cli_fields(options)} for backend, options in backend_options().items()}
    for key, value in given.items():
        if key not in known[chosen.name]:
            users = [backend for backend, names in known.items() if key in names]
            raise LaunchError(
                f"--{key.replace('_', '-')} {value} does not apply to --on {on}",
                hint=", ".join(f"--on {backend}" for backend in users) or None,
            )
    return chosen(on=on, given=dict(given), cluster=cluster)


def backend_class(on: str) -> type[Backend]:
    name, address, _ = on.partition("://")
    if name not in BACKENDS or bool(address) != BACKENDS[name].has_address:
        raise LaunchError(
            f"unknown backend '{on}'{did_you_mean(name, BACKENDS)}",
            hint="--on local, torchrun, slurm or ssh://user@host/folder",
        )
    return BACKENDS[name]


def is_remote(on: str) -> bool:
    """Whether somebody else is asked about what runs there: another machine, or a queue."""
    return issubclass(backend_class(on), RemoteBackend)


def backend_of(job: Job) -> Backend:
    """The backend that a job was given to, as it was asked for then. One that was not launched from here is refused."""
    check_launched(job)
    cluster = load_cluster() if is_remote(job.on) else None
    if cluster is not None:
        check_programs(job, cluster)
    return parse_backend(job.on, job.given, cluster=cluster)
