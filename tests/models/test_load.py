"""Loading by hub name, for real against a hub on the loopback interface; and what is never run."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

import oelm
from loopback_hub import loopback_hub
from oelm.models.load import load_config, load_model
from zoo import FAMILIES

GPT2 = next(f for f in FAMILIES if f.name == "gpt2")


COMMANDS = """
import contextlib, io, json, sys
from oelm.cli.main import main
for line in sys.stdin:
    sys.argv = ["oelm", *json.loads(line)]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps({"returncode": code, "stdout": out.getvalue(), "stderr": err.getvalue()}), flush=True)
"""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@contextmanager
def oelm_process(**environment: str):
    """Runs `oelm WORDS`, one after the other, in one process: the hub's address is read when its client is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    words, pipe = [sys.executable, "-c", COMMANDS], subprocess.PIPE
    with subprocess.Popen(words, env=kept | environment, stdin=pipe, stdout=pipe, text=True) as process:

        def run_oelm(*words: object) -> Done:
            print(json.dumps([*map(str, words)]), file=process.stdin, flush=True)
            return Done(**json.loads(process.stdout.readline()))

        guard = threading.Timer(120, process.kill)  # then it says nothing more, and whoever waits for it fails
        guard.start()
        try:
            yield run_oelm
        finally:
            guard.cancel()


@pytest.mark.slow
def test_a_hub_name_is_inspected_and_audited(tmp_path):
    base, treated = tmp_path / "base", tmp_path / "treated"
    model = GPT2.model()
    model.save_pretrained(base)
    oelm.apply(model, init="orthogonalize", freeze="qk").save_pretrained(treated)
    with loopback_hub({"someone/tiny-gpt2": base}) as (address, requests):
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
        with oelm_process(**hub) as run_oelm:
            inspect_and_audit(run_oelm, treated, requests)


def inspect_and_audit(run_oelm: Callable[..., Done], treated, requests):
    done = run_oelm("inspect", "someone/tiny-gpt2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["qk"] == oelm.count(GPT2.model()).qk
    assert any("model.safetensors" in request for request in requests)

    requests.clear()
    done = run_oelm("inspect", "--config", "someone/tiny-gpt2")
    assert done.returncode == 0, done.stderr
    assert not any("safetensors" in request for request in requests), "a configuration needs no weights"

    done = run_oelm("audit", treated, "--against", "someone/tiny-gpt2")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "8 of 8 tensors as the treatment makes them from the base" in done.stdout

    done = run_oelm("inspect", "someone/other")
    assert done.returncode == 2
    assert "no model configuration found at someone/other" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_offline_and_absent_says_what_to_do(tmp_path):
    with oelm_process(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) as run_oelm:
        done = run_oelm("inspect", "someone/tiny-gpt2")
    assert done.returncode == 2
    assert "offline, use the path of a folder" in done.stderr


@pytest.mark.parametrize("load", [load_model, load_config])
def test_code_beside_the_weights_is_not_run(tmp_path, load):
    """A folder may bring a Python file and ask for it to be run; only the user can allow that."""
    folder, trace = tmp_path / "model", tmp_path / "it-ran"
    GPT2.model().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "strange", "auto_map": {"AutoConfig": "strange.Config", "AutoModel": "strange.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "strange.py").write_text(f"open({str(trace)!r}, 'w').close()")
    with pytest.raises(oelm.FolderError, match="custom code"):
        load(folder)
    assert not trace.exists()
