"""The cost model: its arithmetic, that it counts the bytes that are there, and that its page shows what it says."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import oelm
from oelm.bench.memory import checkpoint_bytes
from oelm.data.batches import BatchSampler
from oelm.heads.count import freezing_savings
from oelm.launch.backends.cluster import load_cluster
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.runs import lease
from oelm.study.cells import compared_cells, restrict_study, tuning_cells
from oelm.study.load import load_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(BENCHMARKS)
    import cost
    from cost import Load, Phase, Site, Weights, phases, share_of, study_seconds, wave_seconds

PAGE = Path(__file__).parents[2] / "docs" / "clusters.md"
LOAD = Load(
    steps=100,
    passes=30.0,
    checkpoints=4,
    model=Weights(total=1000, learning=900),
    files=50,
    read=2000,
    keeps_model=False,
)
SITE = Site(
    step_seconds=0.5,
    queue_seconds=10.0,
    start_seconds=5.0,
    read_speed=1000.0,
    write_speed=6080.0,
    starts=2.0,
    opens=100.0,
    bandwidth=15200.0,
)


def test_a_phase_takes_as_long_as_a_cell_or_as_what_all_of_them_share():
    phase = Phase(alone=10.0, shared=0.5)
    assert [phase.seconds(number) for number in (1, 20, 21, 40)] == [10.0, 10.0, 10.5, 20.0]
    assert phase.saturates_at == 20
    assert Phase(alone=1.0).saturates_at == math.inf
    assert Phase(alone=1.0).seconds(10**6) == 1.0


def test_the_phases_of_a_cell():
    assert LOAD.checkpoint == 4 * (1000 + 2 * 900 + 1000) == 15_200
    assert LOAD.written == 4 * 15_200
    assert phases(LOAD, SITE) == {
        "queue": Phase(alone=10.0, shared=0.5),
        "start": Phase(alone=5.0, shared=0.5),
        "read": Phase(alone=2.0, shared=2000 / 15200),
        "train": Phase(alone=50.0),
        "evaluate": Phase(alone=5.0),
        "save": Phase(alone=10.0, shared=4.0),
    }
    assert wave_seconds(LOAD, SITE, 1) == 82.0
    assert wave_seconds(LOAD, SITE, 20) == 10 + 10 + 20 * 2000 / 15200 + 50 + 5 + 80
    assert wave_seconds(LOAD, SITE, 20, in_step=False) == 82.0, "20 * 4 seconds of writing fit into the rest"
    assert wave_seconds(LOAD, SITE, 30, in_step=False) == 30 * 4.0


def test_a_study_is_waves_and_its_second_part_waits_for_the_first():
    whole, rest = wave_seconds(LOAD, SITE, 8), wave_seconds(LOAD, SITE, 3)
    assert study_seconds(LOAD, SITE, stages=[19], gpus=8) == 2 * whole + rest
    assert study_seconds(LOAD, SITE, stages=[3, 16], gpus=8) == 2 * whole + rest
    assert study_seconds(LOAD, SITE, stages=[3, 3], gpus=8) == 2 * rest


def tiny_llama():
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return LlamaForCausalLM(config)


def test_a_checkpoint_has_the_bytes_that_are_said():
    applied = oelm.apply(tiny_llama(), freeze="qk")
    learning = [parameter for parameter in applied.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning)
    applied.model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    found = checkpoint_bytes(applied.model, optimizer)
    counts = oelm.count(applied.model)
    load = Load(
        steps=1,
        passes=0.0,
        checkpoints=1,
        model=Weights(total=counts.total, learning=counts.trainable),
        files=0,
        read=0,
    )
    counters = 4 * len(learning)  # AdamW counts the steps of every tensor
    assert load.checkpoint == 2 * found.weights + found.optimizer - counters
    assert load.written == load.checkpoint + found.weights


def test_the_figures_of_the_7b_model():
    with torch.device("meta"):
        llama = LlamaForCausalLM(LlamaConfig())
    total, layer = oelm.count(llama).total, oelm.count(llama.model.layers[0]).total
    saved = freezing_savings(llama, oelm.Treatment(init="orthogonal", freeze="qk"))
    assert (total, layer) == (6_738_415_616, 202_383_360)
    assert saved.frozen == 2 * 32 * 4096**2 == 2**30
    work = Weights(total=0, learning=0)
    for gpus in (1, 2, 4, 8, 64):
        learn, frozen = (
            share_of(Weights(total=total, learning=total - number), gpus=gpus, at_work=work)
            for number in (0, saved.frozen)
        )
        assert learn.kept == 16 * total / gpus
        assert learn.kept - frozen.kept == saved.memory_bytes / gpus == 12 * 2**30 / gpus


def test_what_is_gathered_is_in_the_precision_of_the_arithmetic():
    model, work = Weights(total=1000, learning=900), Weights(total=100, learning=90)
    assert share_of(model, gpus=1, at_work=work).gathered == 0, "it is there already"
    assert share_of(model, gpus=2, at_work=work).gathered == 4 * 190
    assert share_of(model, gpus=2, at_work=work, bf16=True).gathered == 2 * 190
    assert share_of(model, gpus=2, at_work=work, bf16=True).optimizer == share_of(model, gpus=2, at_work=work).optimizer


SHARDS = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
import oelm

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
model = oelm.apply(LlamaForCausalLM(config), freeze="qk", init="orthogonal").model
mesh = init_device_mesh("cpu", (2,))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(learning)
model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
optimizer.step()
moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
parts = {
    "parameters": model.parameters(),
    "gradients": [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
    "optimizer": moments,
}
print(json.dumps({name: sum(tensor.to_local().nbytes for tensor in tensors) for name, tensors in parts.items()}))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_hold_the_shares_that_are_said(tmp_path, forked_python):
    """FSDP as it is, over gloo: what each process has of a small model with frozen queries and keys."""
    script = tmp_path / "shards.py"
    script.write_text(SHARDS)
    surroundings = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings,
        )
        for rank in (0, 1)
    ]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    counts = oelm.count(oelm.apply(tiny_llama(), freeze="qk", init="orthogonal").model)
    assert counts.frozen == 2 * 2 * 32 * 32
    said = share_of(
        Weights(total=counts.total, learning=counts.trainable), gpus=2, at_work=Weights(total=0, learning=0)
    )
    for out, _ in answers:
        found = json.loads(out.splitlines()[-1])
        assert found == {name: getattr(said, name) for name in ("parameters", "gradients", "optimizer")}


# -- the page ------------------------------------------------------------------------------------------------------


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_the_script_prints(forked_python):
    texts = blocks("text")
    tables = [cost.format_waves(), cost.format_saturation(), cost.format_7b_shares()]
    for table in tables:
        assert f"{table}\n" in texts
    done = subprocess.run([sys.executable, BENCHMARKS / "cost.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n".join(tables) + "\n"


def test_the_page_shows_what_goes_in():
    inputs = next(block for block in blocks("text") if block.startswith("BERT = Load("))
    assert inputs in (BENCHMARKS / "cost.py").read_text(encoding="utf-8")


def test_the_cluster_file_that_is_shown_is_one(tmp_path):
    (tmp_path / "cluster.yaml").write_text(next(block for block in blocks("text") if "venv:" in block))
    cluster = load_cluster(tmp_path, tmp_path / "nothing")
    assert (cluster.slurm.array_limit, cluster.ssh.workers, cluster.modules[1]) == (8, 2, "cuda/12")


def test_the_times_that_are_promised_are_those_of_the_code():
    page = PAGE.read_text(encoding="utf-8")
    assert lease._BEAT * lease._TOUCH == 10
    assert "life every 10 seconds" in page
    assert lease.TIMEOUT == 120
    assert "after two minutes" in page
    assert SlurmOptions().grace == 120
    assert "120 seconds before" in page


def test_the_page_has_the_cells_and_steps_of_the_study():
    tune = "tune={optimizer.lr: [2e-5, 5e-5, 1e-4], seeds: [100, 101, 102]}"
    study = load_study("bert-sst2-ablation", [f"seeds={list(range(200, 316))}", tune])
    study = restrict_study(study, arms=list(study.arms)[:8])
    assert (len(tuning_cells(study)), len(compared_cells(study))) == (72, 928) == cost.STAGES
    recipe = study.recipe
    examples = torch.zeros(67_349 - recipe.data.validation).numpy()
    order = BatchSampler(examples, batch_size=recipe.batch.size, accumulate=recipe.batch.accumulate, seed=0)
    steps = order.steps_for(epochs=recipe.budget.epochs, steps=None, tokens=None)
    every = recipe.checkpoint.every or recipe.evaluate.every
    assert (steps, math.ceil(steps / every)) == (6222, 13) == (cost.BERT.steps, cost.BERT.checkpoints)
    page = PAGE.read_text(encoding="utf-8")
    assert "steps=6222" in page
    assert "checkpoints=13" in page
