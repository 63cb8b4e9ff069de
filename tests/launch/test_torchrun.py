"""One cell over several processes: the same result as over one, with less said between them where Q/K are frozen."""

import contextlib
import signal
import threading
from pathlib import Path

import pytest
import yaml

import oelm
import tiny_study
from oelm.errors import LaunchError
from oelm.launch.backends.torchrun import TorchrunBackend
from running import environment, run, start, steps_of, until
from together import check_same, make

pytestmark = pytest.mark.slow


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def test_two_processes_do_what_one_does(tmp_path, env):
    study = make(tmp_path)
    words = ["run", study, "--arm", "oelm-freeze"]
    one = run(*words, "--out", "one", env=env, cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    # As users start it; in the other tests it is forked.
    two = run(*words, "--out", "two", "--on", "torchrun", "--nproc", 2, env=env, cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    cells = [tmp_path / out / "tiny" / "oelm-freeze" / "seed-0" for out in ("one", "two")]
    check_same(*cells)
    record = oelm.read_record(cells[1])
    said = record.processes
    assert said.number == 2
    assert said.spared_bytes == 4 * record.counts.frozen > 0
    assert said.reduced_bytes == 4 * record.counts.trainable, "and nothing for what is frozen"
    assert not list((tmp_path / "two").rglob(".store*")), "the file by which they met is gone"


def test_rows_are_made_orthonormal_again_in_every_process(tmp_path, env):
    """Each process does it by itself, from the same weights: they stay the same, and the audit of both finds so."""
    content = yaml.safe_load(make(tmp_path).read_text(encoding="utf-8"))
    content["arms"]["kept"] = {"init": "orthogonal", "scale": "match", "keep_orthonormal": True}
    study = tiny_study.write_study(tmp_path, content)
    for out, options in (("one", []), ("two", ["--on", "torchrun", "--nproc", 2])):
        done = run("run", study, "--arm", "kept", "--out", out, *options, env=env, cwd=tmp_path, forks=True)
        assert done.returncode == 0, done.stderr
    check_same(*(tmp_path / out / "tiny" / "kept" / "seed-0" for out in ("one", "two")))


def test_a_language_model_that_gives_layers_back(tmp_path, env):
    """What begins to learn in the middle is added up from then on, also after a stop."""
    content = tiny_study.language_study(
        tmp_path,
        max_length=16,
        model={"name": "oelm-gpt", "preset": "mini-128", "dropout": 0.0},
        batch={"size": 5},
        budget={"steps": 100},
        evaluate={"every": 100},
        checkpoint={"every": 100},
    )
    content["arms"] = {
        "baseline": {"init": "keep", "freeze": "none"},
        "given-back": {"init": "orthogonal", "freeze": "qk", "unfreeze": {"start": 0.1, "end": 0.2}},
    }
    content["seeds"] = [0]
    study = tiny_study.write_study(tmp_path, content)
    words = ["run", study, "--arm", "given-back"]
    done = run(*words, "--out", "one", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, two = (tmp_path / out / "tiny" / "given-back" / "seed-0" for out in ("one", "two"))
    stopped = start(*words, "--out", "two", "--on", "torchrun", "--nproc", 2, env=env, cwd=tmp_path, forks=True)
    until(lambda: len(steps_of(two)) >= 30, what="thirty steps")
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=120)
    assert stopped.returncode == 128 + signal.SIGTERM, said
    assert "given-back/seed-0 stopped at step " in said
    assert "has no record" not in said
    done = run("resume", "two", env=env, cwd=tmp_path, forks=True)
    assert done.returncode == 0, done.stderr
    starts = oelm.read_record(two).launches
    assert starts[1].step >= 30
    assert [one.processes for one in starts] == [2, 2]
    check_same(one, two)


def listeners(started: set[int]) -> set[str]:
    """Addresses, in hexadecimal, on which processes listen that these have started, and no others of this machine."""
    listening = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
            listening |= {f"socket:[{row[9]}]": row[1].split(":")[0] for row in rows if row[3] == "0A"}
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if is_below(int(folder.name), started):
                for file in (folder / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        found |= {listening[str(file.readlink())]} if str(file.readlink()) in listening else set()
    return found


def is_below(pid: int, ancestors: set[int]) -> bool:
    while pid > 1:
        if pid in ancestors:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def is_loopback(address: str) -> bool:
    return address in ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def test_two_agents_stop_go_on_and_listen_on_loopback_alone(tmp_path, env):
    study = make(tmp_path, budget={"steps": 60}, evaluate={"every": 30}, checkpoint={"every": 60})
    whole = run("run", study, "--out", "one", "--arm", "oelm-freeze", env=env, cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    cell = tmp_path / "two" / "tiny" / "oelm-freeze" / "seed-0"

    def agents(rdzv_id: str):
        words = ["run", study, "--out", "two", "--arm", "oelm-freeze", "--on", "torchrun", "--nproc", 1]
        return [start(*words, "--nnodes", 2, "--rdzv-id", rdzv_id, env=env, cwd=tmp_path, forks=True) for _ in range(2)]

    started, seen, over = set(), set(), threading.Event()

    def look():
        while not over.wait(0.2):
            seen.update(listeners(set(started)))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    first = agents("first")
    started |= {agent.pid for agent in first}
    until(lambda: len(steps_of(cell)) >= 10, what="ten steps")
    for agent in first:
        agent.send_signal(signal.SIGTERM)
    for agent in first:
        _, said = agent.communicate(timeout=120)
        assert agent.returncode == 128 + signal.SIGTERM, said
    assert "the checkpoint is written" in (cell / "log.txt").read_text()
    assert oelm.read_record(cell) is None
    second = agents("second")
    started |= {agent.pid for agent in second}
    for agent in second:
        _, said = agent.communicate(timeout=240)
        assert agent.returncode == 0, said
    over.set()
    looking.join()
    assert seen, "the processes talk to each other somewhere"
    assert [address for address in seen if not is_loopback(address)] == []
    check_same(tmp_path / "one" / "tiny" / "oelm-freeze" / "seed-0", cell)
    starts = oelm.read_record(cell).launches
    assert len(starts) == 2
    assert starts[1].step >= 10


def test_a_cell_that_others_hold_is_waited_for(tmp_path, env):
    study = make(tmp_path, budget={"steps": 150}, evaluate={"every": 150}, checkpoint={"every": 150})
    words = ["run", study, "--arm", "baseline"]
    first = start(*words, env=env, cwd=tmp_path)
    cell = tmp_path / "runs/tiny/baseline/seed-0"
    until(lambda: steps_of(cell), what="a step")
    second = start(*words, "--on", "torchrun", "--nproc", 2, env=env, cwd=tmp_path, forks=True)
    _, said = second.communicate(timeout=240)
    first.communicate(timeout=240)
    assert (first.returncode, second.returncode) == (0, 0), said
    assert "waiting for cells that others run: baseline/seed-0 (process" in said
    assert len(oelm.read_record(cell).launches) == 1


def backend(**given):
    return TorchrunBackend(on="torchrun", given=given)


def test_what_is_refused():
    with pytest.raises(LaunchError, match="--nproc: must be 1 or more, got 0"):
        backend(nproc=0)
    with pytest.raises(LaunchError, match="--rdzv-id: 2 machines need a name to meet by"):
        backend(nproc=1, nnodes=2)
    with pytest.raises(LaunchError, match="--rdzv-id: must be letters, digits"):
        backend(nproc=1, nnodes=2, rdzv_id="a b")
    words = backend(nproc=2).command(store="/a b/c", rdzv_id="m")
    assert "--rdzv-endpoint=/a b/c.agents" in words, "one word, whatever is in it"
    assert backend(nproc=2).environment("/a")["GLOO_SOCKET_IFNAME"] == "lo"
