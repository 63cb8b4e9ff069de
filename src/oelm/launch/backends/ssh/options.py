"""SSH options."""

from dataclasses import dataclass

from oelm.launch.backends.options import BackendOptions, option


@dataclass(frozen=True, kw_only=True)
class SshOptions(BackendOptions):
    workers: int | None = option("Cells at once [default: GPUs, or 1]", at_least=1)
    config: str | None = option("File for `ssh -F`", is_cli=False)
    python: str = option("Python for the virtual environment there", default="python3", is_cli=False)
