"""Checkpoint: what is read is what was written, and a damaged one falls back to the one before."""

import errno
import json
import math
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from misplaced import PLACED, place_in
from oelm.runs.layout import CHECKPOINTS
from oelm.runs.lease import acquire
from oelm.runs.train_state import BestScore, CheckpointState, TrainState
from oelm.train.checkpoint import (
    latest_checkpoint,
    load_optimizer_,
    load_weights_,
    optimizer_tensors,
    save_checkpoint,
    weights_of,
)


@pytest.fixture
def folder(tmp_path):
    """The folder of a cell's checkpoints."""
    return tmp_path / CHECKPOINTS


def newest(folder):
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    return max(steps, default=0)


def save(folder, step, **more):
    tensors = {"model": {"w": torch.full((3,), float(step))}, "best": {"w": torch.zeros(2)}}
    write(folder, state_at(step), tensors, **more)


def state_at(step, **parts):
    return CheckpointState(train=TrainState(step=step, **parts), frozen={}, scaler=None, groups=(), tensors={})


def write(folder, state, tensors, **more):
    """As whoever holds the cell that the folder of checkpoints is in."""
    assert folder.name == CHECKPOINTS
    with acquire(folder.parent) as lease:
        save_checkpoint(lease, state, tensors, **more)


def latest(folder):
    """(checkpoint, what was logged)."""
    logged = []
    return latest_checkpoint(folder, log=logged.append), logged


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def trained(seed, steps, state=None):
    torch.manual_seed(seed)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    if state is not None:
        load_weights_(model, state.tensors["model"])
        load_optimizer_(model, optimizer, state.tensors["optimizer"])
    for step in steps:
        tokens = torch.tensor([step % 5, 1, 2])
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_a_training_goes_on_with_the_same_bits(folder):
    model, optimizer = trained(0, range(4))
    tensors = {"model": weights_of(model), "optimizer": optimizer_tensors(model, optimizer)}
    history = {"batches": "é", "seconds": {"training": 1.5}, "best": BestScore(step=3, value=math.nan)}
    write(folder, state_at(4, **history), tensors)
    found, logged = latest(folder)
    assert (found.step, found.state.train.batches, logged) == (4, "é", [])
    assert found.state.train.seconds == {"training": 1.5}
    assert math.isnan(found.state.train.best.value)
    resumed, _ = trained(9, range(4, 8), found)
    whole, _ = trained(0, range(8))
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_tied_weights_are_kept_once_and_stay_tied():
    model = Tied()
    weights = weights_of(model)
    assert "embed.weight" in weights
    assert "head.weight" not in weights
    other = Tied()
    load_weights_(other, weights)
    assert torch.equal(other.head.weight, model.embed.weight)
    assert other.head.weight is other.embed.weight
    weights["embed.weight"] += 1
    assert not torch.equal(weights["embed.weight"], model.embed.weight), "a copy"


@pytest.mark.parametrize("change", [{"embed.weight": None}, {"more": torch.zeros(1)}])
def test_weights_of_another_model_are_refused(change):
    weights = {name: value for name, value in (weights_of(Tied()) | change).items() if value is not None}
    with pytest.raises(ValueError, match="weights of another model"):
        load_weights_(Tied(), weights)


def test_the_last_two_are_kept(folder):
    for step in (5, 10, 9_999_999, 10_000_000):
        save(folder, step)
        assert newest(folder) == step
    assert sorted(path.name for path in folder.iterdir()) == ["step-10000000", "step-9999999"]
    assert latest(folder)[0].step == 10_000_000


def test_none_yet(folder):
    assert latest(folder / "none") == (None, [])
    assert newest(folder / "none") == 0


def test_what_has_not_changed_is_linked(folder):
    save(folder, 1)
    save(folder, 2, same={"best"})
    first, second = (folder / f"step-000000{n}" for n in (1, 2))
    assert first.joinpath("best.safetensors").samefile(second / "best.safetensors")
    assert not first.joinpath("model.safetensors").samefile(second / "model.safetensors")
    save(folder, 3, same={"best"})
    assert latest(folder)[0].tensors["best"]["w"].tolist() == [0, 0], "though the first is gone"


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS])
def test_what_cannot_be_linked_is_written(folder, monkeypatch, code):
    def refuse(old, new):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        save(folder, step, same={"best"})
    found, logged = latest(folder)
    assert (found.step, found.tensors["best"]["w"].tolist(), logged) == (3, [0, 0], [])


def test_a_damaged_file_is_not_passed_on(folder):
    save(folder, 1)
    (folder / "step-0000001" / "best.safetensors").write_bytes(b"not it")
    save(folder, 2, same={"best"})
    found, logged = latest(folder)
    assert (found.step, found.tensors["best"]["w"].tolist(), logged) == (2, [0, 0], [])


def test_a_step_is_written_again(folder):
    save(folder, 1)
    save(folder, 1, same={"best"})
    assert [path.name for path in folder.iterdir()] == ["step-0000001"]
    assert latest(folder)[1] == []


@pytest.mark.parametrize("name", ["model.safetensors", "best.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "gone"])
def test_a_damaged_one_falls_back_and_tells(folder, name, damage):
    save(folder, 1)
    save(folder, 2)
    file = folder / "step-0000002" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if name == "state.json" else -1] ^= 1  # the last byte is of a number
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"truncated": content[:-3], "flipped": content, "empty": b""}[damage])
    found, logged = latest(folder)
    assert (found.step, found.tensors["model"]["w"].tolist()) == (1, [1, 1, 1])
    assert len(logged) == 1
    assert "step-0000002 is damaged" in logged[0]
    assert newest(folder) == 1
    assert (folder / "damaged-step-0000002").is_dir(), "put aside, not deleted"


@pytest.mark.parametrize("name", ["model.safetensors", "best.safetensors", "state.json"])
@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_falls_back_and_tells(folder, name, kind):
    save(folder, 1)
    save(folder, 2)
    place_in(folder / "step-0000002" / name, kind)
    (folder / "damaged-step-0000002").write_text("in the way of what is put aside")
    found, logged = latest(folder)
    assert found.step == 1
    assert [line.split("(")[0] for line in logged] == ["checkpoint step-0000002 is damaged "]
    assert (folder / "damaged-step-0000002").is_dir()
    save(folder, 2, same={"best"})
    assert latest(folder)[0].step == 2


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_checkpoint_is_replaced(folder, kind):
    save(folder, 1)
    place_in(folder / "step-0000002", kind)
    found, logged = latest(folder)
    assert found.step == 1
    assert [line.split("(")[0] for line in logged] == ["checkpoint step-0000002 is damaged "]
    place_in(folder / "step-0000002", kind)
    save(folder, 2, same={"best"})
    assert latest(folder)[0].step == 2


def test_one_that_cannot_be_read_at_the_moment_is_not_damaged(folder, monkeypatch):
    save(folder, 1)

    def too_many(*given, **more):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", too_many)
        with pytest.raises(OSError, match="Too many"):
            latest(folder)
    assert latest(folder)[0].step == 1


def test_all_damaged_is_none(folder):
    for step in (1, 2):
        save(folder, step)
        (folder / f"step-000000{step}" / "model.safetensors").write_bytes(b"")
    found, logged = latest(folder)
    assert found is None
    assert len(logged) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=30)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["format", "sha256", "train"]), inner)
        ),
    ).map(lambda data: json.dumps(data).encode())
)
def test_any_state_file_is_damaged(folder, content):
    save(folder, 1)
    (folder / "step-0000001" / "state.json").write_bytes(content)
    assert latest(folder)[0] is None


def test_a_partial_one_is_not_seen(folder):
    save(folder, 1)
    (folder / "step-0000001").rename(folder / ".step-0000001.partial")
    assert latest(folder) == (None, [])
    with pytest.raises(TypeError):
        write(folder, state_at(1, batches=object()), {})
    assert [path.name for path in folder.iterdir()] == [".step-0000001.partial"]
    assert list(folder.parent.iterdir()) == [folder], "nothing is left of what could not be written"
