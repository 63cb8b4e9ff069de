"""Memory budget: what several arms need together, what is free, and how it shows when nothing is."""

import pytest
import torch

from oelm.bench import memory_budget
from oelm.bench.isolate import is_out_of_memory
from oelm.bench.memory_budget import InsufficientMemory, free_bytes, needed_bytes, reason_to_isolate
from oelm.runs.bench import StepMemory

GIB = 2**30


def arm(*, activations=None):
    return StepMemory(parameters=4 * GIB, gradients=3 * GIB, optimizer=6 * GIB, activations=activations)


def test_gradients_and_activations_are_there_one_at_a_time():
    assert needed_bytes([arm()]) == 13 * GIB
    assert needed_bytes([arm(), arm()]) == 23 * GIB
    assert needed_bytes([arm(activations=5 * GIB), arm(activations=GIB)]) == 28 * GIB


@pytest.mark.parametrize(("free", "allocated", "fits"), [(30, 0, True), (28, 0, False), (24, 4, True), (None, 0, True)])
def test_whether_they_fit(monkeypatch, free, allocated, fits):
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: None if free is None else free * GIB)
    why = reason_to_isolate([arm(), arm()], device="cpu", allocated=allocated * GIB)
    assert (why is None) == fits
    if why is not None:
        assert why == "all 2 arms need 23.0 GiB more, and 80% of the 28.0 GiB that are free may be used"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Writes the files in which a system says how much memory there is."""

    def says(groups="", *, available=64 * GIB, **files):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available // 1024} kB\n")
        (tmp_path / "proc" / "self" / "cgroup").write_text(groups)
        for path, text in files.items():
            file = tmp_path / "groups" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(text) + "\n")

    monkeypatch.setattr(memory_budget, "_SYSTEM", tmp_path / "proc")
    monkeypatch.setattr(memory_budget, "_GROUPS", tmp_path / "groups")
    return says


def test_what_the_machine_has(system):
    system()
    assert free_bytes("cpu") == 64 * GIB


def test_a_limit_around_our_own_group_counts(system):
    files = {
        "batch/job/memory.max": "max",
        "batch/job/memory.current": 2 * GIB,
        "batch/memory.max": 16 * GIB,
        "batch/memory.current": 6 * GIB,
        "batch/memory.stat": f"anon 5\ninactive_file {2 * GIB}\nactive_file 7",
    }
    system("0::/batch/job\n", **files)
    assert free_bytes("cpu") == 12 * GIB, "files that are only kept at hand are given up"


def test_the_older_kind_of_groups(system):
    files = {
        "memory/job/memory.limit_in_bytes": 8 * GIB,
        "memory/job/memory.usage_in_bytes": 3 * GIB,
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 50 * GIB,
        "cpu/job/memory.limit_in_bytes": 1,
        "cpu/job/memory.usage_in_bytes": 1,
    }
    system("5:cpu:/job\n4:memory:/job\n0::/\n", **files)
    assert free_bytes("cpu") == 5 * GIB


def test_inside_a_container_only_the_root_is_seen(system):
    system("0::/somewhere/outside\n", **{"memory.max": 4 * GIB, "memory.current": 5 * GIB})
    assert free_bytes("cpu") == 0, "and less than nothing is not free"


def test_a_system_that_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_budget, "_SYSTEM", tmp_path)
    assert free_bytes("cpu") is None


def test_this_machine_tells():
    assert free_bytes("cpu") is None or free_bytes("cpu") > 0


def test_memory_that_is_full_is_known_by_its_error():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(InsufficientMemory("no"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("not enough memory"))
