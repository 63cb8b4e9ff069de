"""Adapters and parts of a model as arms: trained, stopped, resumed, saved, loaded by plain PEFT, audited, refused."""

import contextlib
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

import oelm
import tiny_study
from oelm.cli.main import main
from oelm.data.tasks import task_named
from oelm.heads.attention import attention_maps, divergences
from oelm.heads.audit import audit_folder
from oelm.heads.count import count
from oelm.runs.layout import MODEL, PREDICTIONS
from oelm.runs.predictions import read_predictions
from oelm.study.adapter import KINDS, Adapter, option_names
from oelm.study.cells import differences
from oelm.study.load import study_from_dict
from oelm.study.recipe import OptimizerConfig
from oelm.train.adalora import find_rank_budget
from oelm.train.adapters import _import_peft, adapt_model
from oelm.train.optim import make_optimizer
from oelm.train.progress import Progress
from running import StopsAt, run_cell, steps_of
from zoo import FAMILIES

pytestmark = pytest.mark.slow
QV = ["query", "value"]
ADAPTERS = {
    "lora": {"kind": "lora", "r": 2, "target_modules": QV, "lora_dropout": 0.1},
    "ia3": {"kind": "ia3", "target_modules": ["key", "value"], "feedforward_modules": []},
    "loha": {"kind": "loha", "r": 2, "rank_pattern": {"query": 1}, "target_modules": QV},
    "lokr": {"kind": "lokr", "r": 2, "target_modules": QV},
    "adalora": {"kind": "adalora", "init_r": 4, "target_r": 1, "tinit": 1, "tfinal": 1, "target_modules": QV},
    "oft": {"kind": "oft", "oft_block_size": 4, "target_modules": QV},
}
OELM = {"init": "orthogonalize", "freeze": "qk"}
ARMS = {
    "baseline": {},
    **{name: {"adapter": adapter} for name, adapter in ADAPTERS.items()},
    "oelm-lora": {**OELM, "adapter": ADAPTERS["lora"]},
    "biases": {"trains": "biases"},
    "head": {"trains": "head"},
    "norms": {"trains": "norms"},
    "oelm-biases": {**OELM, "trains": "biases"},
}
ADAPTED = [name for name, arm in ARMS.items() if "adapter" in arm]


def bert(folder: Path) -> Path:
    """A pretrained model: one that was saved, without a head for the task."""
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study of all arms that has run: (study, folder of its cells, folder of its model)."""
    folder = tmp_path_factory.mktemp("adapters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OELM_CACHE", str(folder / "cache"))
        content = tiny_study.study(
            tiny_study.write_data(folder / "data", train=100, validation=20),
            model={"name": str(bert(folder / "bert"))},
            budget={"steps": 4},
            optimizer={"lr": 1e-2, "weight_decay": 0.1, "weight_decay_on": "all"},
            evaluate={"every": 2},
            checkpoint={"every": 2, "keep": "final"},
        )
        content["recipe"]["data"]["validation"] = 20
        study = study_from_dict({**content, "arms": ARMS, "seeds": [0]})
        yield study, oelm.run(study, out=folder / "runs").folder, folder / "bert"


def record_of(made, arm):
    record = oelm.read_record(made[1] / arm / "seed-0")
    assert record.status == "done", record.error
    assert all(audit.passed for audit in record.audits)
    return record


def test_all_kinds_are_tried():
    assert {arm["adapter"]["kind"] for arm in ARMS.values() if "adapter" in arm} == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_its_options_are_those_of_peft(kind):
    own, of_all = fields(getattr(peft, KINDS[kind])), fields(peft.PeftConfig)
    ours = {"modules_to_save", "total_step", *(field.name for field in of_all)}
    assert option_names(kind) == {field.name for field in own} - ours


def test_arms_of_a_seed_share_weights_and_batches(made):
    records = [record_of(made, arm) for arm in ARMS]
    assert len({(record.start.weights, record.batches) for record in records}) == 1


class KilledAt(Progress):
    """Kills its process after the evaluation of a step, before that is in a checkpoint."""

    def __init__(self, step):
        self.step = step

    def on_evaluation_end(self, step, metrics):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("arm", [*ADAPTED, "oelm-biases"])
def test_stopped_it_resumes_to_the_bit(arm, made, tmp_path):
    with pytest.raises(oelm.OelmError, match=r"stopped at step [23] of 4"):
        run_cell(made[0], arm=arm, seed=0, out=tmp_path, progress=StopsAt(2))
    assert_it_ends_alike(arm, made, tmp_path)


@pytest.mark.parametrize("arm", ["adalora", "oelm-lora"])
def test_killed_it_resumes_to_the_bit(arm, made, tmp_path):
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            run_cell(made[0], arm=arm, seed=0, out=tmp_path, progress=KilledAt(4))
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert_it_ends_alike(arm, made, tmp_path)


def assert_it_ends_alike(arm, made, tmp_path):
    """A cell that has begun goes on from its checkpoint, and ends with what the whole one has ended with."""
    study, whole, _ = made
    record = run_cell(study, arm=arm, seed=0, out=tmp_path)
    assert len(record.launches) == 2
    cell, other = tmp_path / "tiny" / arm / "seed-0", whole / arm / "seed-0"
    assert steps_of(cell) == steps_of(other)
    assert record.test == record_of(made, arm).test
    files = [path.relative_to(cell) for path in cell.rglob("*.safetensors")]
    assert files
    for file in files:
        assert (cell / file).read_bytes() == (other / file).read_bytes(), file


@pytest.mark.parametrize("arm", ADAPTED)
def test_plain_peft_loads_what_is_saved(arm, made):
    study, runs, below = made
    folder = runs / arm / "seed-0" / MODEL
    treated = study.arms[arm].treatment.init != "keep"
    assert (folder / "base").is_dir() == treated, "only what nobody else has"
    if treated:
        below = folder / "base"
        _, applied = oelm.from_pretrained(below)
        assert applied.treatment == study.arms[arm].treatment
        assert audit_folder(below, against=made[2]).ok
        for above in (folder, folder.parent):
            with pytest.raises(oelm.FolderError, match=rf"{below}"):
                audit_folder(above)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(below)
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kept = read_predictions(folder.parent, record_of(made, arm).files[PREDICTIONS])
    texts = [text for text, _ in tiny_study.texts(20, seed=2)]
    for row, label, loss in zip(kept.row, kept.label, kept.loss, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(texts[row], return_tensors="pt", truncation=True, max_length=32)).logits
        assert F.cross_entropy(logits, torch.tensor([label])).item() == pytest.approx(loss, abs=1e-5)


def test_adalora_takes_ranks_away(made):
    saved = load_file(made[1] / "adalora" / "seed-0" / MODEL / "adapter_model.safetensors")
    ranks = [tensor for name, tensor in saved.items() if "lora_E" in name]
    assert sum(len(one) for one in ranks) == 4 * 4
    assert sum(int(one.count_nonzero()) for one in ranks) == 4 * 1


@pytest.mark.parametrize("arm", ["biases", "head", "norms", "oelm-biases"])
def test_only_what_it_trains_moves(arm, made):
    study, runs, below = made
    was, now = load_file(below / "model.safetensors"), load_file(runs / arm / "seed-0" / MODEL / "model.safetensors")
    moved = {name for name, tensor in was.items() if not torch.equal(tensor, now[f"bert.{name}"])}
    may = {
        "biases": {name for name in was if name.endswith("bias")},
        "head": set(),
        "norms": {name for name in was if "LayerNorm" in name},
    }[study.arms[arm].trains]
    if study.arms[arm].treatment.init == "keep":
        keys = {name for name in moved | may if name.endswith("key.bias")}  # attention does not see a shift of all keys
        assert moved - keys == may - keys
        assert moved <= may
    else:
        queries = {name for name in was if ".query." in name or ".key." in name}
        assert not moved & queries - {name for name in queries if name.endswith(("weight", "query.bias"))}
        assert moved - queries == may - queries
    counts = record_of(made, arm).counts
    trained = sum(was[name].numel() for name in may) + 2 * 24 + 2
    frozen = 2 * 2 * 24 if arm == "oelm-biases" else 0
    assert counts.trainable == trained - frozen


def test_the_results_say_what_each_arm_trains(made):
    study, runs, _ = made
    results = oelm.load(runs)
    assert "adapter lora (r 2" in str(study.arms["lora"])
    assert str(study.arms["head"]).endswith("trains head")
    assert results.trained_share("head") < results.trained_share("lora") < results.trained_share("baseline") == 1
    assert not {issue.code for issue in results.checks} & {"SPEEDUP-ABOVE-CEILING", "AUDIT-FAILED", "UNPAIRED"}
    scales = [issue for issue in results.checks if issue.code == "SCALE-CONFOUND"]
    assert {issue.severity for issue in scales} == {"note"}, "nobody compares them"
    pairs = {frozenset(place.split(" / ")) for issue in scales for place in issue.places}
    assert pairs == {frozenset({"oelm-lora", "lora"}), frozenset({"oelm-biases", "biases"})}, "those that train alike"


def test_the_plan_has_shares_and_sizes(made, tmp_path, monkeypatch):
    study, runs, _ = made
    plan, results = oelm.plan(study, out=runs.parent), oelm.load(runs)
    found = differences(study)
    assert found["adapter.kind"]["lora"] == "lora"
    assert found["adapter.kind"]["baseline"] is None
    assert found["trains"]["head"] == "head"
    for arm in ARMS:
        counts = record_of(made, arm).counts
        assert plan.estimate.counts[arm] == counts
        assert results.trained_share(arm) == counts.trained_share == counts.trainable / counts.total
        files = (runs / arm / "seed-0" / MODEL).rglob("*.safetensors")
        size = sum(file.stat().st_size for file in files)
        assert plan.estimate.stored[arm] == pytest.approx(size, rel=0.02, abs=10_000), "but for the header of the file"
    assert plan.estimate.stored["lora"] < 0.2 * plan.estimate.stored["baseline"] < plan.estimate.stored["oelm-lora"]
    assert "share" in str(plan)


# -- one model -----------------------------------------------------------------------------------------------------

SST2 = task_named("sst2")


def adapted(name, *, trains="all", task=SST2, seed=0, **adapter):
    family = next(family for family in FAMILIES if family.name == name)
    chosen = Adapter(kind=adapter.pop("kind"), options=adapter) if adapter else None
    return family, adapt_model(family.model(), adapter=chosen, trains=trains, task=task, seed=seed)


def train_and_audit(family, applied):
    learns = [parameter for parameter in applied.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-2, weight_decay=0.1)
    for _ in range(2):
        family.loss(applied.model.train()).backward()
        optimizer.step()
        optimizer.zero_grad()
    applied.audit(optimizer=optimizer).check()


@pytest.mark.parametrize(("trains", "share"), [("biases", 0.0009), ("lora", 0.0027)])
def test_shares_are_those_of_the_literature(trains, share):
    """Of BERT-base without its head: BitFit 0.09 % (Ben Zaken et al., 2022), LoRA of rank 8 on queries and values."""
    with torch.device("meta"):
        model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2))
    total, head = count(model).total, 2 * 768 + 2
    adapter = Adapter(kind="lora", options={"r": 8}) if trains == "lora" else None
    model = adapt_model(model, adapter=adapter, trains="all" if adapter else "biases", task=SST2, seed=0)
    assert (count(model).trainable - head) / total == pytest.approx(share, abs=5e-5)


def test_an_adapter_is_drawn_from_its_own_stream():
    before = torch.random.get_rng_state()
    models = [adapted("bert", kind="lora", r=2, target_modules=QV, seed=seed)[1] for seed in (0, 0, 1)]
    drawn = [dict(model.named_parameters()) for model in models]
    assert torch.equal(torch.random.get_rng_state(), before)
    (name,) = [name for name in drawn[0] if "layer.1.attention.self.query.lora_A" in name]
    assert torch.equal(drawn[0][name], drawn[1][name])
    assert not torch.equal(drawn[0][name], drawn[2][name])


@pytest.mark.parametrize("tfinal", [0, 2])
def test_adalora_takes_its_last_ranks_away_if_the_optimizer_skips_that_step(tfinal):
    """As with fp16, where a gradient may be infinite."""
    family, model = adapted("bert", **{**ADAPTERS["adalora"], "tfinal": tfinal, "deltaT": 7})
    ranks = find_rank_budget(model, total=6)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(1, 7):
        family.loss(model.train()).backward()
        skipped = step in (2, 6 - tfinal)
        if skipped:
            for parameter in model.parameters():
                parameter.grad = None if parameter.grad is None else parameter.grad * torch.inf
        else:
            optimizer.step()
        ranks.advance(step, skipped=skipped)
        optimizer.zero_grad()
    left = [parameter for name, parameter in model.named_parameters() if "lora_E" in name]
    assert sum(int(one.count_nonzero()) for one in left) == len(left)


TEXT_MODELS = [family.name for family in FAMILIES if family.name not in ("vit", "clip-text", "torch-encoder")]


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize("part", ["lora", "norms"])
def test_what_is_frozen_stays_so_bit_by_bit_in_every_family(name, part):
    plain = next(family for family in FAMILIES if family.name == name).model()
    task = SST2 if "Classification" in type(plain).__name__ else task_named("text")
    adapter = {"kind": "lora", "r": 2, "target_modules": "all-linear"} if part == "lora" else {}
    family, model = adapted(name, trains="all" if adapter else part, task=task, **adapter)
    applied = oelm.apply(model, init="orthogonal", freeze="qk", seed=0)
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert len(applied.other_hashes) > 0
    applied.frozen_by_design = frozenset(frozen)
    was = {name: parameter.clone() for name, parameter in frozen.items()}
    train_and_audit(family, applied)
    assert all(torch.equal(parameter, was[name]) for name, parameter in frozen.items())


@pytest.mark.parametrize("name", ["roberta", "distilbert", "deberta-v2"])
def test_a_task_head_of_several_layers_is_saved_with_the_adapter(name, tmp_path):
    family, model = adapted(name, kind="lora", r=2, target_modules="all-linear")
    plain = family.model()
    head = {one for one, _ in plain.named_parameters() if not one.startswith(f"{plain.base_model_prefix}.")}
    assert len(head) == 4
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    model.save_pretrained(tmp_path, save_embedding_layers=False)
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path)
    inputs = family.batch()
    assert torch.equal(loaded.eval()(**inputs).logits, model.eval()(**inputs).logits)


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("bert", {"kind": "lora", "r": 2, "target_modules": ["query"]}),
        ("bert", {"kind": "ia3", "target_modules": ["key"], "feedforward_modules": []}),
        ("bert", {"kind": "oft", "oft_block_size": 4, "target_modules": ["query", "key"]}),
        ("gpt2", {"kind": "lora", "r": 2, "target_modules": ["c_attn"]}),
    ],
    ids=["lora", "ia3", "oft", "fused"],
)
def test_attention_is_measured_with_what_an_adapter_does_to_it(name, adapter):
    family = next(family for family in FAMILIES if family.name == name)
    before = attention_maps(family.model(), family.batch())
    family, model = adapted(name, task=SST2 if name == "bert" else task_named("text"), **adapter)
    unmoved = divergences(before, attention_maps(model, family.batch()))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".modules_to_save." not in name:
                parameter += torch.randn_like(parameter)
    found = divergences(before, attention_maps(model, family.batch()))
    merged = divergences(before, attention_maps(model.merge_and_unload(), family.batch()))
    for none, some, expected in zip(unmoved, found, merged, strict=True):
        assert none.max() < 1e-6
        assert expected.mean() > 1e-5
        torch.testing.assert_close(some, expected, rtol=1e-2, atol=1e-6)


def test_a_moved_weight_below_an_adapter_is_found():
    _, model = adapted("bert", kind="lora", r=2, target_modules=QV)
    applied = oelm.apply(model, init="orthogonalize", freeze="qk")
    assert applied.audit().ok
    name, parameter = next(
        (name, parameter) for name, parameter in model.named_parameters() if name.endswith("value.base_layer.weight")
    )
    with torch.no_grad():
        parameter[0, 0] += 1e-3
    assert [(one.code, one.where) for one in applied.audit().findings] == [("FROZEN-MOVED", name)]


@pytest.mark.parametrize("trains", ["norms", "head"])
def test_another_rate_of_queries_and_keys_is_no_matter_where_all_of_a_fused_matrix_is_frozen(trains):
    _, model = adapted("gpt2", trains=trains, task=task_named("text"))
    oelm.apply(model, separate_qk=True)
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-3, qk_lr=0.1))
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(len(group["params"]) for group in optimizer.param_groups if "lr_scale" not in group) == len(learns)


def test_biases_of_a_fused_projection_train_but_those_of_frozen_queries():
    family, model = adapted("gpt2", trains="biases", task=task_named("text"))
    applied = oelm.apply(model, init="orthogonal", freeze="qk", seed=0)
    applied.frozen_by_design = frozenset({"transformer.wte.weight"})  # which is tied to the output head
    assert {one.parameter.requires_grad for one in applied.slices} == {False}
    assert any(p.requires_grad for name, p in model.named_parameters() if "c_attn.bias_rest" in name)
    train_and_audit(family, applied)


def test_a_language_model_is_adapted_too(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_study.language_study(tmp_path, max_length=16, budget={"steps": 2}, evaluate={"every": 2})
    content["arms"]["lora"] = {"adapter": {"kind": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}}
    record = run_cell(study_from_dict(content), arm="lora", seed=0, out=tmp_path / "runs")
    assert record.status == "done", record.error
    assert record.counts.trainable == 2 * 2 * 2 * 2 * 128


# -- bad input -----------------------------------------------------------------------------------------------------

LORA = {"kind": "lora", "target_modules": ["q_proj", "v_proj"]}


@pytest.mark.parametrize(
    ("arm", "recipe", "message"),
    [
        ({"adapter": "lora"}, {}, r"arms.x.adapter\s+must be a mapping such as \{kind: lora, r: 8\}"),
        ({"adapter": {"kind": "lorra"}}, {}, r"arms.x.adapter.kind\s+'lorra' is not known; did you mean 'lora'\?"),
        ({"adapter": {**LORA, "lora_alfa": 4}}, {}, r"lora_alfa\s+unknown field; did you mean 'lora_alpha'\?"),
        ({"adapter": {"kind": "adalora", "target_rr": 4}}, {}, r"unknown field; did you mean 'target_r'\?"),
        ({"adapter": {**LORA, "modules_to_save": ["x"]}}, {}, "the task head always trains"),
        ({"adapter": {**LORA, "lora_alpha": float("nan")}}, {}, r"lora_alpha\s+must be a finite number, got nan"),
        ({"adapter": {"kind": "adalora", "r": 4}}, {}, r"arms.x.adapter.r\s+is not read by AdaLoRA; use init_r"),
        (
            {"adapter": {**LORA, "init_lora_weights": "eva"}},
            {},
            r"init_lora_weights\s+'eva' does not work here; one of true, false, gaussian, orthogonal \(",
        ),
        (
            {"adapter": {"kind": "adalora", "init_lora_weights": "gaussian"}},
            {},
            r"'gaussian' does not work here; one of true, false \(",
        ),
        ({"adapter": {**LORA, "kasa_config": {}}}, {}, "needs a part of the loss of its own"),
        ({"adapter": LORA}, {"optimizer": {"lr": 1e-3, "qk_lr": 0.1}}, "does not go with optimizer.qk_lr"),
        ({"adapter": LORA, "overrides": {"optimizer.qk_lr": 0.1}}, {}, "does not go with optimizer.qk_lr"),
        (
            {"adapter": {"kind": "adalora", "tinit": 2, "tfinal": 5}},
            {"budget": {"steps": 7}},
            r"arms.x.adapter\s+AdaLoRA has no step to take ranks away in: the budget is 7 steps, of which "
            "tinit takes 2 and tfinal 5; use at least 8, or a smaller tinit or tfinal",
        ),
        (
            {"adapter": {"kind": "adalora"}, "overrides": {"budget.steps": 1}},
            {"budget": {"steps": 7}},
            "has no step to take ranks away in: the budget is 1 step; use at least 2$",
        ),
        ({"trains": "bias"}, {}, r"arms.x.trains\s+'bias' is not known; did you mean 'biases'\?"),
        ({"trains": "head", "adapter": LORA}, {}, "does not go with an adapter"),
        (
            {"trains": "head", "freeze": "qk", "unfreeze": {"start": 0, "end": 1}},
            {},
            "does not go with trains: head",
        ),
        ({"adapter": LORA, "init": "orthogonal", "keep_orthonormal": True}, {}, "does not go with its adapter"),
        ({"adapter": LORA}, {"parallel": "fsdp"}, r"arms.x.adapter\s+does not go with recipe.parallel 'fsdp'"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_read(arm, recipe, message, tmp_path):
    content = tiny_study.study(tmp_path, **recipe)
    content["arms"]["x"] = arm
    with pytest.raises(oelm.StudyError, match=message) as caught:
        study_from_dict(content)
    assert "has 1 problem;" in str(caught.value)


@pytest.mark.parametrize(
    ("adapter", "tune", "message"),
    [
        (LORA, {"optimizer.qk_lr": [0.1, 1.0]}, "does not go with optimizer.qk_lr, .*; leave that out of tune"),
        ({"kind": "adalora", "tfinal": 9}, {"budget.steps": [10, 20]}, "10 steps, of which tinit takes 0 and tfinal 9"),
    ],
)
def test_so_is_what_makes_none_where_it_is_tuned(adapter, tune, message, tmp_path):
    content = {**tiny_study.study(tmp_path), "tune": tune}
    content["arms"]["x"] = {"adapter": adapter}
    with pytest.raises(oelm.StudyError, match=message):
        study_from_dict(content)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"adapter": {**LORA, "target_modules": ["nowhere"]}}, "nowhere"),
        ({"adapter": {"kind": "lora"}}, "target_modules"),
        ({"adapter": {**LORA, "r": 0}}, "`r` should be a positive integer"),
        ({"adapter": {**LORA, "r": "eight"}}, "PEFT cannot add the adapter"),
        ({"adapter": {**LORA, "kind": "adalora", "init_r": 4, "target_r": 4}}, "AdaLoRA has no ranks to take away"),
        (
            {"adapter": {**LORA, "kind": "adalora", "tfinal": 9}, "overrides": {"budget.epochs": 0.1}},
            "AdaLoRA has no step to take ranks away in",
        ),
        ({"trains": "head", "overrides": {"optimizer.name": "muon"}}, "Muon has nothing to train in this model"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_anything_runs(arm, message, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"]["x"] = arm
    with pytest.raises(oelm.StudyError, match=r"arm 'x' does not fit the model") as caught:
        oelm.run(study_from_dict(content), out=tmp_path / "runs")
    assert message in str(caught.value)
    assert not list((tmp_path / "runs").rglob("cell.json"))


def test_importing_peft_is_silent_about_kernels_and_not_about_errors(tmp_path, monkeypatch, caplog):
    """bitsandbytes, which PEFT imports, warned on every run where the processor has bfloat16."""
    lines = ["import logging", "logger = logging.getLogger('bitsandbytes.backends.cpu.ops')"]
    lines += ["logger.warning('please install kernels')", "logger.error('broken')"]
    (tmp_path / "peft.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "peft")
    _import_peft()
    assert [record.message for record in caplog.records] == ["broken"]


@pytest.mark.parametrize(("name", "names"), [("bert", "query, key, value, dense"), ("gpt2", "c_attn, c_proj, c_fc")])
def test_modules_that_a_model_has_are_named(name, names):
    with pytest.raises(oelm.ModelError, match=rf"nowhere[\s\S]*try +target_modules: \[{names}\], or some of them"):
        adapted(name, kind="lora", r=2, target_modules=["nowhere"])


def test_of_modules_that_cannot_be_adapted_all_others_are_named():
    with pytest.raises(oelm.ModelError, match=r"try +target_modules: \[query, key, value, dense\], or some of them"):
        adapted("bert", kind="lora", r=2, target_modules=["query", "LayerNorm"])


def test_an_adapter_that_changes_the_weights_below_it_is_refused():
    with pytest.raises(oelm.ModelError, match="the adapter changes the weights below it"):
        adapted("bert", kind="lora", r=2, target_modules=QV, init_lora_weights="pissa")


@pytest.mark.parametrize("trains", ["biases", "norms"])
def test_a_model_without_such_a_part_is_refused(trains):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    with pytest.raises(oelm.ModelError, match=f"Sequential has no {trains} to train"):
        adapt_model(model, adapter=None, trains=trains, task=SST2, seed=0)


def test_without_peft_a_study_is_read_and_planned_and_running_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("oelm.study.adapter.find_spec", lambda name: None)
    monkeypatch.setattr("oelm.errors.find_spec", lambda name: None if name == "peft" else object())
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"]["lora"] = {"adapter": {**LORA, "who_knows": 1}}
    study = study_from_dict(content)
    assert "lora/seed-0" in str(oelm.plan(study, out=tmp_path, measure=False))
    with pytest.raises(oelm.OelmError, match=r"needs peft, which is not installed; try: .*adapters"):
        oelm.run(study, out=tmp_path / "runs")


def test_the_command_line_says_it_in_one_message(tmp_path, monkeypatch, capsys):
    words = ["check", str(tiny_study.make(tmp_path)), "--set", "arms.baseline.adapter={kind: lorra}"]
    monkeypatch.setattr(sys, "argv", ["oelm", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "did you mean 'lora'?" in said
    assert "Traceback" not in said
