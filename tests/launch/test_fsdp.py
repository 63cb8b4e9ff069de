"""One cell in shards over several processes: the same result as in one, which keeps all of it."""

import signal

import pytest
import transformers

import oelm
import tiny_study
from oelm.runs.record import ProcessStats
from running import environment, run, start, steps_of, until
from together import check_same, make

pytestmark = pytest.mark.slow

FSDP = ["--set", "recipe.parallel=fsdp"]
TWO = ["--on", "torchrun", "--nproc", 2]


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def test_two_processes_do_what_one_does_with_half_of_it_each(tmp_path, env):
    """GPT-2, whose queries, keys and values are one matrix and whose head is its embedding."""
    config = transformers.GPT2Config(vocab_size=512, n_embd=32, n_layer=3, n_head=4, n_positions=32)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path / "gpt2")
    model = {"name": str(tmp_path / "gpt2"), "from_scratch": True, "dropout": 0.0}
    content = tiny_study.language_study(tmp_path, max_length=16, model=model, batch={"size": 5, "accumulate": 2})
    content["seeds"] = [0]
    study = tiny_study.write_study(tmp_path, content)
    for out, more in (("one", FSDP), ("two", [*FSDP, *TWO])):
        done = run("run", study, "--arm", "oelm-freeze", "--out", out, *more, env=env, cwd=tmp_path, forks=True)
        assert done.returncode == 0, done.stderr
    one, two = (tmp_path / out / "tiny" / "oelm-freeze" / "seed-0" for out in ("one", "two"))
    check_same(one, two)
    alone, record = oelm.read_record(one), oelm.read_record(two)
    assert alone.processes == ProcessStats(number=1), "one has nobody to share with"
    for mine, other in ((alone.start.heads, record.start.heads), (alone.heads, record.heads)):
        assert mine.entropy == pytest.approx(other.entropy, rel=1e-3)
        assert mine.logit_spread == pytest.approx(other.logit_spread, rel=1e-3)
        assert mine.kl == pytest.approx(other.kl, rel=1e-2)
        assert min(mine.kl) > 0
        for ours, theirs in zip(mine.norm["q"], other.norm["q"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)
    assert alone.audits == record.audits
    assert all(audit.passed for audit in record.audits)
    counts, told = record.counts, record.processes
    assert counts.frozen == 3 * 2 * 32 * (32 + 1), "queries and keys of fused matrices, not their values"
    assert (told.number, told.parallel) == (2, "fsdp")
    whole, kept = told.whole_bytes, told.held_bytes
    assert whole["weights"] == 4 * counts.total
    assert whole["gradients"] == whole["weights"] - 4 * counts.frozen < whole["weights"]
    assert 0 < whole["optimizer"] - 2 * whole["gradients"] < 400, "two moments, and the number of steps of each tensor"
    for kind, of_it in kept.items():
        assert of_it == pytest.approx(whole[kind] / 2, rel=0.02), kind
    _, loaded = oelm.from_pretrained(two / "model")
    assert loaded.audit().ok


def test_a_cell_goes_on_however_many_train_it(tmp_path, env):
    """One begins it, two go on with it in shards, and one finishes it: each goes on from what others have written."""
    recipe = {"batch": {"size": 7, "accumulate": 8}, "budget": {"steps": 60}}
    study = make(tmp_path, **recipe, evaluate={"every": 20}, checkpoint={"every": 60})
    words = ["run", study, "--arm", "oelm-freeze"]
    whole = run(*words, "--out", "whole", env=env, cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    cell = tmp_path / "runs" / "tiny" / "oelm-freeze" / "seed-0"
    for more in ([], [*FSDP, *TWO]):
        before = len(steps_of(cell))
        leg = start(*words, *more, env=env, cwd=tmp_path, forks=True)
        until(lambda before=before: len(steps_of(cell)) >= before + 5, what="five steps of its own")
        leg.send_signal(signal.SIGTERM)
        _, said = leg.communicate(timeout=120)
        assert leg.returncode == 128 + signal.SIGTERM, said
        assert oelm.read_record(cell) is None
    done = run(*words, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_same(tmp_path / "whole" / "tiny" / "oelm-freeze" / "seed-0", cell)
    starts = [launch.step for launch in oelm.read_record(cell).launches]
    assert len(starts) == 3
    assert starts == sorted(set(starts))


def test_what_is_refused(tmp_path):
    study = make(tmp_path)
    with pytest.raises(oelm.StudyError, match=r"recipe\.parallel +'fsdb' is not known; did you mean 'fsdp'"):
        oelm.load_study(study, ["recipe.parallel=fsdb"])
    unfrozen = ["arms.oelm-freeze.unfreeze={start: 0.4, end: 0.6}"]
    assert oelm.load_study(study, unfrozen).recipe.parallel == "ddp"
    with pytest.raises(oelm.StudyError, match=r"arms\.oelm-freeze\.unfreeze +does not go with recipe\.parallel 'fsdp'"):
        oelm.load_study(study, [*unfrozen, "recipe.parallel=fsdp"])
