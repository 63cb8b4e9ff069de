"""From pretraining to transfer: a study whose arms start from the models that another study left behind."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertConfig, GPT2Config

import oelm
import tiny_kinds
import tiny_study
from oelm.analysis.checks.design import check_results
from oelm.cli.main import main
from oelm.format import format_number
from oelm.heads.save import read_oelm_json
from oelm.launch.backends.cluster import Cluster
from oelm.launch.backends.slurm.backend import SlurmBackend
from oelm.launch.backends.ssh.backend import SshBackend
from oelm.launch.run import submit_study
from oelm.launch.study_run import open_run
from oelm.report.blocks import Table
from oelm.report.sections.results import results_section
from oelm.runs.layout import RECORD
from oelm.runs.lock import find_changes, make_lock
from oelm.runs.record import RECORD_FILE, Failure
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import study_from_dict
from oelm.train.cell import build_cell_model, load_data
from oelm.train.origin import check_frozen_as_saved, locate_origin
from oelm.train.progress import Progress
from running import StopsAt, bits_of, weights_of

QK = ("q_proj", "k_proj")


def first_study(folder: Path) -> dict[str, object]:
    """A language model of two layers with a tokenizer of its own."""
    content = tiny_study.language_study(
        folder,
        max_length=16,
        model={"name": "oelm-gpt", "layers": 2, "width": 32, "heads": 2, "context": 32},
        budget={"steps": 4},
    )
    content["study"] = "first"
    content["arms"]["thawed"] = {
        "init": "orthogonal",
        "freeze": "qk",
        "unfreeze": {"start": 0.5, "end": 1.0},  # the last layer at the end of all, so it is still frozen then
    }
    return content


def second_study(data: Path, runs: Path, **model: object) -> dict[str, object]:
    content = tiny_study.study(data, model={"from": str(runs / "first"), **model})
    del content["recipe"]["data"]["tokenizer"]
    content["recipe"]["budget"] = {"steps": 8}
    content["study"] = "second"
    content["arms"] = {
        "baseline": {},
        "oelm-freeze": {},
        "probe": {"trains": "head", "overrides": {"model.arm": "oelm-freeze"}},
        "released": {"overrides": {"model.arm": "oelm-freeze", "model.freeze": "none"}},
    }
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Both studies, run from end to end."""
    folder = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OELM_CACHE", str(folder / "cache"))
        first = study_from_dict(first_study(folder))
        oelm.run(first, out=folder / "runs")
        second = study_from_dict(second_study(tiny_study.write_data(folder / "data"), folder / "runs"))
        results = oelm.run(second, out=folder / "runs")
    return folder, second, results


@pytest.fixture(autouse=True)
def same_cache(made, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(made[0] / "cache"))


def record_of(folder: Path, cell: str):
    return oelm.read_record(folder / "runs" / cell)


def test_every_seed_starts_from_the_model_of_its_arm_and_seed(made):
    folder, _, results = made
    for arm, source in {"baseline": "baseline", "oelm-freeze": "oelm-freeze", "probe": "oelm-freeze"}.items():
        for seed in (0, 1):
            record = record_of(folder, f"second/{arm}/seed-{seed}")
            assert record.status == "done", record.error
            origin = record.start.origin
            there = record_of(folder, f"first/{source}/seed-{seed}")
            assert (origin.spec.study, origin.spec.arm, origin.spec.seed) == ("first", source, seed)
            assert origin.spec == there.spec
            assert origin.lock == there.start.lock
            assert origin.validation == there.last_evaluation
            assert record.start.data.tokenizer == there.start.data.tokenizer
            assert record.start.new_weights == ("classifier.bias", "classifier.weight")
            assert all(audit.passed for audit in record.audits)
    assert {record.start.weights for record in results.of("probe").values()} == {
        record.start.weights for record in results.of("released").values()
    }, "what differs is what learns"


def test_what_was_frozen_stays_frozen_to_the_bit_or_learns(made):
    folder = made[0]
    before = weights_of(folder / "runs/first/oelm-freeze/seed-0")
    kept, released = (weights_of(folder / f"runs/second/{arm}/seed-0") for arm in ("oelm-freeze", "released"))
    queries_and_keys = [name for name in before if any(part in name for part in QK)]
    assert queries_and_keys
    for name in before:
        if name in queries_and_keys:
            assert torch.equal(kept[name], before[name]), name
            assert not torch.equal(released[name], before[name]), name
    assert not torch.equal(
        kept["model.blocks.0.attention.v_proj.weight"], before["model.blocks.0.attention.v_proj.weight"]
    )
    frozen = record_of(folder, "second/oelm-freeze/seed-0").counts
    assert frozen.total - frozen.buffers - frozen.trainable == sum(before[name].numel() for name in queries_and_keys)
    assert set(read_oelm_json(folder / "runs/second/oelm-freeze/seed-0/model").frozen) >= set(queries_and_keys)
    probe = weights_of(folder / "runs/second/probe/seed-0")
    assert all(torch.equal(probe[name], before[name]) for name in before if not name.startswith("lm_head"))


def test_only_layers_that_were_still_frozen_at_the_end_are_frozen(made):
    spec = resolve_cell(made[1], Cell(arm="baseline", seed=0))
    spec = replace(spec, recipe=replace(spec.recipe, model=replace(spec.recipe.model, arm="thawed")))
    assert locate_origin(spec).treatment == oelm.Treatment(freeze="qk", layers=(0,))


def test_layers_of_an_encoder_decoder_are_attentions_not_blocks(made, tmp_path):
    first = tiny_kinds.seq2seq_study(tmp_path)
    first["study"] = "first"
    first["arms"]["thawed"] = {"freeze": "qk", "unfreeze": {"start": 0.7, "end": 1.0}}
    oelm.run(study_from_dict(first), out=tmp_path, cells=["thawed/seed-0"])
    content = tiny_kinds.seq2seq_study(tmp_path)
    content["study"] = "second"
    content["recipe"]["model"] = {"from": str(tmp_path / "first"), "arm": "thawed"}
    content["arms"]["oelm-freeze"] = {"overrides": {"model.freeze": "none"}}
    second = study_from_dict(content)
    saved = read_oelm_json(tmp_path / "first/thawed/seed-0/model").frozen
    assert not any(key.startswith("decoder.block.1.") for key in saved)
    assert any(key.startswith("decoder.block.0.") for key in saved)
    assert locate_origin(resolve_cell(second, Cell(arm="baseline", seed=0))).treatment.layers == (0, 1, 2)
    record = oelm.run(second, out=tmp_path, cells=["baseline/seed-0"]).of("baseline")[0]
    assert record.status == "done", record.error
    assert read_oelm_json(tmp_path / "second/baseline/seed-0/model").frozen == saved


def test_what_is_not_frozen_although_it_was_is_refused(made):
    spec = resolve_cell(made[1], Cell(arm="oelm-freeze", seed=0))
    recipe = locate_origin(spec).recipe
    model = build_cell_model(recipe, load_data(recipe, Progress()), seed=0)
    applied = oelm.apply(model, freeze="qk", init="keep")
    check_frozen_as_saved(spec, applied)
    applied.unfreeze([1])
    with pytest.raises(oelm.StudyError, match="2 weights to keep frozen"):
        check_frozen_as_saved(spec, applied)


def test_new_heads_of_a_seed_are_the_same_in_every_arm(made):
    _, second, results = made
    heads = {}
    for cell in results.records:
        recipe = locate_origin(resolve_cell(second, cell)).recipe
        model = build_cell_model(recipe, load_data(recipe, Progress()), seed=cell.seed)
        heads.setdefault(cell.seed, []).append(model.classifier.weight.detach())
    assert all(torch.equal(one, some[0]) for some in heads.values() for one in some)
    assert not torch.equal(heads[0][0], heads[1][0])
    assert len({record.batches for record in results.of("baseline").values()}) == 2


def test_stopped_in_the_second_study_it_resumes_to_the_bit(made, tmp_path):
    folder, second, _ = made
    with pytest.raises(oelm.Stopped):
        oelm.run(second, out=tmp_path, cells=["oelm-freeze/seed-1"], progress=StopsAt(4))
    oelm.run(second, out=tmp_path, cells=["oelm-freeze/seed-1"])
    cell = "second/oelm-freeze/seed-1"
    assert bits_of(tmp_path / cell) == bits_of(folder / "runs" / cell)


def test_checks_know_that_pretraining_differed_on_purpose(made):
    codes = {one.code for one in check_results(made[2])}
    assert not codes & {"SETTING-DIFFERS", "UNPAIRED", "LR-DIFFERS", "AUDIT-FAILED", "BASELINE-TREATED", "ARMS-ALIKE"}


def test_sources_that_differ_by_more_than_their_treatment_are_warned_of(made, tmp_path):
    folder = shutil.copytree(made[0] / "runs/second", tmp_path / "second")
    for seed in (0, 1):
        record = oelm.read_record(folder / f"probe/seed-{seed}")
        origin = record.start.origin
        recipe = replace(origin.spec.recipe, budget=replace(origin.spec.recipe.budget, steps=5))
        other = replace(origin, spec=replace(origin.spec, recipe=recipe, seed=7))
        RECORD_FILE.write(folder / f"probe/seed-{seed}", replace(record, start=replace(record.start, origin=other)))
    found = [one for one in check_results(oelm.load(folder)) if one.code == "SETTING-DIFFERS"]
    assert [(one.severity, one.places) for one in found] == [("warn", ("probe",))]
    assert "origin.budget.steps: 5 | 4" in str(found[0].message)
    assert "origin.seed: 7 | same" in str(found[0].message)


def test_cells_of_one_source_arm_with_other_weights_are_not_paired(made, tmp_path):
    folder = shutil.copytree(made[0] / "runs/second", tmp_path / "second")
    record = oelm.read_record(folder / "released/seed-0")
    RECORD_FILE.write(folder / "released/seed-0", replace(record, start=replace(record.start, weights="0" * 64)))
    results = oelm.load(folder)
    assert "UNPAIRED" not in {one.code for one in check_results(results)}, "nobody compares these two"
    found = [one for one in check_results(results, pair=("released", "probe")) if one.code == "UNPAIRED"]
    assert len(found) == 1


def test_the_report_shows_both_studies(made):
    folder, _, results = made
    tables = [block for block in results_section(results) if isinstance(block, Table)]
    table = next(one for one in tables if "Final loss there" in [column.title.en for column in one.columns])
    assert "前一项研究" in [column.title.zh for column in table.columns]
    row = next([cell.text.en for cell in row.cells] for row in table.rows if row.arm == "probe")
    losses = [record_of(folder, f"first/oelm-freeze/seed-{seed}").last_evaluation["loss"] for seed in (0, 1)]
    assert row[:3] == ["probe", "first", "oelm-freeze"]
    assert row[4:7] == ["4", format_number(sum(losses) / 2), "2"]
    assert row[7] == "trains head; what was frozen there stays so"
    assert row[8] == format_number(results.mean("probe", "accuracy").mean)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture
def runs(made, tmp_path):
    """A copy of the first study, to be damaged."""
    shutil.copytree(made[0] / "runs/first", tmp_path / "runs/first")
    return tmp_path / "runs"


def study_from(made, runs: Path, **model: object):
    return study_from_dict(second_study(made[0] / "data", runs, **model))


def refusal(study, runs: Path) -> str:
    """What `oelm run` says; nothing is started."""
    with pytest.raises(oelm.OelmError) as raised:
        oelm.run(study, out=runs)
    assert not (runs / study.name).exists()
    return str(raised.value)


def rewrite_record(cell: Path, **parts: object) -> None:
    RECORD_FILE.write(cell, replace(oelm.read_record(cell), **parts))


def keep_none(cell: Path) -> None:
    record = oelm.read_record(cell)
    recipe = replace(record.spec.recipe, checkpoint=replace(record.spec.recipe.checkpoint, keep="none"))
    rewrite_record(cell, spec=replace(record.spec, recipe=recipe))
    shutil.rmtree(cell / "model")


def diverge(cell: Path) -> None:
    rewrite_record(cell, status="diverged", test={}, error=Failure(what="the loss is nan", traceback=None))


def pickle_it(cell: Path) -> None:
    (cell / "model/model.safetensors").rename(cell / "model/pytorch_model.bin")


def add_adapter(cell: Path) -> None:
    (cell / "model/adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda cell: (cell / RECORD).unlink(), ["has not come to its end", "oelm run first --out"]),
        (diverge, ["it is diverged", "the loss is nan"]),
        (keep_none, ["kept no model", "recipe.checkpoint.keep=best"]),
        (lambda cell: shutil.rmtree(cell / "model"), ["is missing", "oelm fetch --models"]),
        (pickle_it, ["no safetensors", "pytorch_model.bin is a pickle"]),
        (add_adapter, ["adapter"]),
    ],
)
def test_a_source_cell_without_a_model_is_refused_before_the_first_cell(made, runs, damage, said):
    damage(runs / "first/baseline/seed-1")
    text = refusal(study_from(made, runs), runs)
    assert all(part in text for part in said), text
    assert "baseline/seed-1" in text


@pytest.mark.parametrize(
    "backend", [SshBackend(on="ssh://nobody@127.0.0.1:9", cluster=Cluster()), SlurmBackend(cluster=Cluster())]
)
def test_elsewhere_it_is_refused_before_anything_is_sent(made, runs, backend):
    shutil.rmtree(runs / "first/baseline/seed-1/model")
    with pytest.raises(oelm.StudyError, match=r"the model of baseline/seed-1 of .* is missing"):
        submit_study(open_run(study_from(made, runs), out=runs), backend, log=print)
    assert not (runs / "second").exists()


def test_all_missing_source_cells_are_named_at_once(made, runs):
    for seed in (0, 1):
        (runs / f"first/oelm-freeze/seed-{seed}" / RECORD).unlink()
    text = refusal(study_from(made, runs), runs)
    assert "6 of 8 cells have no model to start from" in text
    assert all(f"{arm}/seed-{seed}" in text for arm in ("oelm-freeze", "probe", "released") for seed in (0, 1))


def test_a_source_that_is_not_a_study_is_refused(made, runs):
    other = {"from": str(runs / "frist")}
    assert "there is no run folder" in (text := refusal(study_from(made, runs, **other), runs))
    assert "did you mean 'first'" in text
    text = refusal(study_from(made, runs, **{"from": str(runs)}), runs)
    assert "is not the run folder of a study" in text
    assert str(runs / "first") in text
    text = refusal(study_from(made, runs, **{"from": str(runs / "first/baseline/seed-0/model")}), runs)
    assert "recipe.model.name=" in text


def test_another_arm_or_seed_is_refused(made, runs):
    text = refusal(study_from(made, runs, arm="oelm-freze"), runs)
    assert "has no arm 'oelm-freze'; did you mean 'oelm-freeze'?" in text
    other = {**second_study(made[0] / "data", runs), "seeds": [0, 1, 2]}
    text = refusal(study_from_dict(other), runs)
    assert "has no seed 2" in text
    assert "--set seeds=[0, 1]" in text


def test_a_treatment_beside_frozen_queries_and_keys_is_refused(made, runs):
    content = second_study(made[0] / "data", runs)
    content["arms"]["oelm-freeze"] = {"init": "orthogonal"}
    assert "stays so" in refusal(study_from_dict(content), runs)
    content["arms"]["oelm-freeze"]["overrides"] = {"model.freeze": "none"}
    spec = resolve_cell(study_from_dict(content), Cell(arm="oelm-freeze", seed=0))
    assert locate_origin(spec).treatment == oelm.Treatment(init="orthogonal")


def test_a_tokenizer_that_does_not_fit_is_refused(made, runs):
    path = runs / "first/baseline/seed-0/model/tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["merges"] = content["model"]["merges"][:-1]
    path.write_text(json.dumps(content))
    with pytest.raises(oelm.OelmError, match="is not the one that it was trained with"):
        oelm.run(study_from(made, runs), out=runs, cells=["baseline/seed-0"])


def test_a_tokenizer_that_truncates_is_the_same_after_it_was_saved_without(made, tmp_path):
    """As that of minilm-l6, which cuts at 128 tokens and fills up to them."""
    data = made[0] / "data"
    texts = [text for text, _ in tiny_study.texts(240, seed=1)]
    path = tiny_kinds.save_bert(tmp_path / "bert", texts) / "tokenizer.json"
    words = Tokenizer.from_file(str(path))
    words.enable_truncation(128)
    words.enable_padding(length=128)
    words.save(str(path))
    first = tiny_study.study(data, model={"name": str(path.parent)})
    del first["recipe"]["data"]["tokenizer"]
    first["study"], first["recipe"]["budget"] = "first", {"steps": 2}
    first["arms"]["oelm-freeze"]["init"] = "orthogonalize"
    oelm.run(study_from_dict(first), out=tmp_path, cells=["baseline/seed-0"])
    second = study_from_dict(second_study(data, tmp_path))
    record = oelm.run(second, out=tmp_path, cells=["baseline/seed-0"]).of("baseline")[0]
    assert record.status == "done", record.error
    assert record.start.data.tokenizer != record.start.origin.tokenizer
    kept = tmp_path / "first/baseline/seed-0/model/tokenizer.json"
    content = json.loads(kept.read_text())
    content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    kept.write_text(json.dumps(content))
    with pytest.raises(oelm.OelmError, match="is not the one that it was trained with"):
        oelm.run(second, out=tmp_path / "again", cells=["baseline/seed-0"])


def test_weights_that_are_not_the_models_own_are_refused_by_name(made, runs):
    path = runs / "first/baseline/seed-0/model/model.safetensors"
    weights = load_file(path)
    weights["model.blocks.0.attention.renamed"] = weights.pop("model.blocks.0.attention.v_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    text = refusal(study_from(made, runs), runs)
    assert "missing     model.blocks.0.attention.v_proj.weight" in text


def test_frozen_weights_that_are_not_as_they_were_frozen_are_refused(made, runs):
    path = runs / "first/oelm-freeze/seed-0/model/model.safetensors"
    weights = load_file(path)
    weights["model.blocks.1.attention.k_proj.weight"] += 1e-3
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(oelm.StudyError, match="not those that the first study froze") as raised:
        oelm.run(study_from(made, runs), out=runs, cells=["oelm-freeze/seed-0"])
    assert "model.blocks.1.attention.k_proj.weight" in str(raised.value)


def test_a_changed_source_model_is_refused_on_resume(made, runs):
    study, cell = study_from(made, runs), "baseline/seed-0"
    with pytest.raises(oelm.Stopped):
        oelm.run(study, out=runs, cells=[cell], progress=StopsAt(4))
    path = runs / "first" / cell / "model/model.safetensors"
    weights = load_file(path)
    save_file({name: weight + 1e-3 for name, weight in weights.items()}, path, metadata={"format": "pt"})
    with pytest.raises(oelm.StudyError, match="has changed") as raised:
        oelm.run(study, out=runs, cells=[cell])
    assert "weights was" in str(raised.value)
    save_file(weights, path, metadata={"format": "pt"})
    assert oelm.run(study, out=runs, cells=[cell]).of("baseline")[0].status == "done"
    rewrite_record(runs / "first" / cell, lr=())
    with pytest.raises(oelm.StudyError, match="trained again since"):
        oelm.run(study, out=runs, cells=[cell])


def test_a_run_folder_that_lies_elsewhere_is_the_same_plan(made, tmp_path):
    """As on another machine, where its copy has a name of its own; that of another study is another plan."""
    lock = make_lock(made[1])
    copied = second_study(made[0] / "data", tmp_path, **{"from": "/there/data/first-0123456789ab"})
    assert find_changes(lock, study_from_dict(copied)).changed == ()
    other = study_from_dict(second_study(made[0] / "data", tmp_path, **{"from": "/there/data/other"}))
    assert [change.path for change in find_changes(lock, other).changed] == ["recipe.model.from"]


def test_an_adapter_keeps_the_model_below_it_which_nobody_else_has(made, tmp_path):
    folder, cell = made[0], "lora/seed-0"
    content = second_study(folder / "data", folder / "runs", arm="oelm-freeze")
    content["arms"]["lora"] = {"adapter": {"kind": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}}
    record = oelm.run(study_from_dict(content), out=tmp_path, cells=[cell]).of("lora")[0]
    assert record.status == "done", record.error
    assert all(audit.passed for audit in record.audits)
    base = load_file(tmp_path / "second" / cell / "model/base/model.safetensors")
    before = weights_of(folder / "runs/first/oelm-freeze/seed-0")
    assert all(torch.equal(base[name], weight) for name, weight in before.items() if name in base)


def test_from_does_not_go_with_what_the_model_brings(made, tmp_path):
    content = second_study(made[0] / "data", tmp_path, name="oelm-gpt", preset="mini-128", width=64, from_scratch=True)
    content["recipe"]["data"]["tokenizer"] = {"train": "bpe"}
    with pytest.raises(oelm.StudyError) as raised:
        study_from_dict(content)
    for field in ("model.name", "model.preset", "model.width", "model.from_scratch", "data.tokenizer"):
        assert f"recipe.{field} " in str(raised.value)
    content["recipe"]["model"] = {"name": "minilm-l6", "arm": "baseline", "freeze": "none"}
    with pytest.raises(oelm.StudyError, match=r"recipe.model.freeze +goes with `from`"):
        study_from_dict(content)


def test_on_the_command_line_it_is_one_message_and_exit_code_2(made, tmp_path, monkeypatch, capsys):
    file = tmp_path / "second.yaml"
    file.write_text(yaml.safe_dump(second_study(made[0] / "data", tmp_path / "nowhere")))
    monkeypatch.setattr("sys.argv", ["oelm", "run", str(file), "--out", str(tmp_path / "runs")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no run folder" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("config", "head", "dropped"),
    [
        (GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=32), {"score"}, set()),
        (
            BertConfig(
                vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
            ),
            {"classifier", "bert"},  # of the latter the pooler, which a language model does not have
            {"cls"},
        ),
    ],
    ids=["gpt2", "bert"],
)
def test_language_models_of_other_families_become_classifiers(config, head, dropped, made, tmp_path):
    config.save_pretrained(tmp_path / "config")
    content = first_study(tmp_path)
    content["recipe"]["model"] = {"name": str(tmp_path / "config"), "from_scratch": True}
    oelm.run(study_from_dict(content), out=tmp_path, cells=["oelm-freeze/seed-0"])
    second = study_from_dict(second_study(made[0] / "data", tmp_path))
    record = oelm.run(second, out=tmp_path, cells=["oelm-freeze/seed-0"]).of("oelm-freeze")[0]
    assert record.status == "done", record.error
    assert {name.split(".")[0] for name in record.start.new_weights} == head
    assert all(name.startswith("bert.pooler") for name in record.start.new_weights if name.startswith("bert."))
    assert {name.split(".")[0] for name in record.start.dropped_weights} == dropped
    assert all(audit.passed for audit in record.audits)
    one, other = (read_oelm_json(tmp_path / study / "oelm-freeze/seed-0/model") for study in ("first", "second"))
    assert one.frozen == other.frozen != {}, "the same rows with the same hashes"
