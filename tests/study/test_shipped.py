"""The studies that come with oelm: each loads, says what it is, and keeps what its name promises."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from oelm.analysis.checks.design import check_study
from oelm.analysis.design import planned_design
from oelm.analysis.stats.power import ALPHA, power_to_decide
from oelm.data.tasks import TASKS
from oelm.study.cells import Cell, compared_cells, origin_arm, resolve_cell, tuning_cells
from oelm.study.load import load_study
from oelm.study.shipped import question_of, shipped_studies
from oelm.treatment import Treatment, Unfreeze

FILES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))
PUBLISHED = [path for path in FILES if path.stem.endswith("-as-published")]
FAIR = [path for path in FILES if path.stem.endswith("-fair")]
OPENING = ("What", "First", "Look", "Run", "Change")

# The named arms, by (init, scale, freeze), where a model is pretrained and where it starts from scratch.
PRETRAINED = {
    "baseline": ("keep", None, "none"),
    "freeze-only": ("keep", None, "qk"),
    "oelm-nofreeze": ("orthogonalize", "unit", "none"),
    "oelm-freeze": ("orthogonalize", "unit", "qk"),
    "oelm-freeze-match": ("orthogonalize", "match", "qk"),
    "oelm-random": ("gaussian", 0.02, "qk"),
    "oelm-random-match": ("gaussian", "match", "qk"),
    "oelm-global": ("orthogonalize-global", "unit", "qk"),
    "oelm-frames": ("frames", "keep", "qk"),
    "oelm-frames-match": ("frames", "match", "qk"),
    "no-attention": ("zero", None, "qk"),
}
FROM_SCRATCH = PRETRAINED | {
    "oelm-nofreeze": ("orthogonal", "unit", "none"),
    "oelm-freeze": ("orthogonal", "unit", "qk"),
    "oelm-freeze-match": ("orthogonal", "match", "qk"),
    "oelm-random-match": ("gaussian", "unit", "qk"),
    "oelm-global": ("orthogonal-global", "unit", "qk"),
}
# Arms that the table has no name for.
OTHERS = {
    "published-baseline": ("orthogonalize", "unit", "none"),
    "overwritten-baseline": ("gaussian", 0.02, "none"),
    "oelm-fresh-match": ("orthogonal", "match", "qk"),
    "oelm-global-match": ("orthogonalize-global", "match", "qk"),
    "oelm-freeze-25": ("orthogonal", "unit", "qk", {"layers": "first:0.25"}),
    "oelm-freeze-50": ("orthogonal", "unit", "qk", {"layers": "first:0.5"}),
    "oelm-freeze-75": ("orthogonal", "unit", "qk", {"layers": "first:0.75"}),
    "oelm-top-down": ("orthogonal", "unit", "qk", {"unfreeze": Unfreeze(start=0.25, end=0.75)}),
    "oelm-bottom-up": ("orthogonal", "unit", "qk", {"unfreeze": Unfreeze(start=0.25, end=0.75, order="bottom-up")}),
}
# Arms that do nothing to queries and keys, by (kind of adapter, what is trained).
PEFT = {"lora": ("lora", "all"), "bitfit": (None, "biases"), "linear-probe": (None, "head")}


def name_of(path):
    return path.stem


def treatment(init, scale, freeze, more=None):
    return Treatment(init=init, scale=scale, freeze=freeze, **(more or {}))


def lrs(study):
    """The learning rate of every arm."""
    return {cell.arm: resolve_cell(study, cell).recipe.optimizer.lr for cell in compared_cells(study)}


def test_all_are_shipped():
    assert list(shipped_studies().values()) == FILES
    assert {"quickstart", "minilm-sst2", "bert-sst2-ablation"} <= set(shipped_studies())
    published, fair = (
        {path.stem.rsplit("-", count)[0] for path in paths} for paths, count in ((PUBLISHED, 2), (FAIR, 1))
    )
    assert published == fair - {"gpt-wikitext103"}, "what was published is also asked fairly"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_loads_and_resolves(path):
    study = load_study(path)
    assert study.name == path.stem
    assert load_study(path.stem) == study, "by its name"
    every = compared_cells(study) + tuning_cells(study)
    assert len({cell.folder for cell in every}) == len(every)
    models = [resolve_cell(study, cell).recipe.model for cell in every]
    if study.recipe.model.from_ is not None:  # arms may start from several arms of one study
        models = [replace(model, arm="same", freeze="keep") for model in models]
    assert set(models) == {study.recipe.model}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_opens_with_what_it_is(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    opening = lines[: len(OPENING)]
    assert [line[:9] for line in opening] == [f"# {word:<7}" for word in OPENING]
    assert lines[len(OPENING)] == f"study: {path.stem}", "nothing else comes before it"
    assert question_of(path) == opening[0][9:]
    assert opening[2][9:] == f"oelm plan {path.stem}"
    assert opening[3][9:].startswith(f"oelm run {path.stem}        ")
    assert max(map(len, lines)) < 120
    assert not re.search(r"(?<![\w.*])/(?!/)\w+/|~/|\bC:\\", path.read_text(encoding="utf-8")), "no path of a machine"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_it_says_to_set_can_be_set(path):
    settings = re.findall(r"--set ([^\s;]+)", "\n".join(path.read_text(encoding="utf-8").splitlines()[: len(OPENING)]))
    assert settings
    for setting in settings:
        assert load_study(path, [setting]) != load_study(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_counts_its_cells(path):
    """The numbers after `# Run` are those of the plan."""
    study = load_study(path)
    run = path.read_text(encoding="utf-8").splitlines()[3]
    tuning = len(tuning_cells(study))
    assert int(re.search(r"(\d+) (short )?cells", run)[1]) == len(compared_cells(study)) + tuning
    told = re.search(r"(\d+) of them trained", run)
    assert told is None or int(told[1]) == tuning
    steps = re.search(r"cells of ([\d,]+) steps", run)
    assert steps is None or int(steps[1].replace(",", "")) == study.recipe.budget.steps


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_says_why_its_margin_is_that(path):
    compare = load_study(path).compare
    assert compare.min_effect is not None
    assert len(compare.because.split()) > 5


POWER = re.compile(
    r"Power: 80 % to find (?P<points>[\d.]+) points, or to show that there are none, with (?P<seeds>\d+) seeds "
    r"on (?P<examples>[\d,]+) test examples, if seeds scatter by (?P<spread>[\d.]+) points "
    r"and two arms disagree on (?P<chance>\d+) % of examples by chance and on (?P<systematic>\d+) % in every seed"
)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_power_it_states_is_that_of_its_tests(path):
    study = load_study(path)
    tests = planned_design(study).tests
    told = [found for note in study.notes if (found := POWER.match(note))]
    assert len(told) == (1 if tests and len(study.seeds) > 1 else 0), "where it can be known"
    for test in tests if told else ():
        said = {name: float(number.replace(",", "")) for name, number in told[0].groupdict().items()}
        assert (test.margin, test.seeds, test.examples) == (said["points"] / 100, said["seeds"], said["examples"])
        chance, systematic = (said[name] / 100 / test.examples for name in ("chance", "systematic"))
        spread = math.hypot(said["spread"] / 100, math.sqrt(chance))
        alpha, example_se = ALPHA / test.family, math.sqrt(systematic)
        power = power_to_decide(test.margin, n=test.seeds, spread=spread, example_se=example_se, alpha=alpha)
        assert power >= 0.8


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_the_fair_grid_reaches_beyond_the_published_learning_rates(path):
    published = load_study(path)
    grid = load_study(path.stem.replace("as-published", "fair")).tune.grid["optimizer.lr"]
    rates = {resolve_cell(published, cell).recipe.optimizer.lr for cell in compared_cells(published)}
    assert rates <= set(grid)
    assert min(grid) < min(rates) <= max(rates) < max(grid), "the best is not at an edge if it is what was published"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_names_of_arms_mean_the_same_everywhere(path):
    study = load_study(path)
    scratch = study.recipe.model.name == "oelm-gpt"
    known = (FROM_SCRATCH if scratch else PRETRAINED) | OTHERS
    if study.recipe.model.from_ is not None:
        check_named_for_their_origins(study)
        return
    for arm in study.arms.values():
        assert (arm.adapter and arm.adapter.kind, arm.trains) == PEFT.get(arm.name, (None, "all"))
        meant = treatment(*known[arm.name]) if arm.name not in PEFT else Treatment()
        if path.stem.endswith("-as-published") and meant.init == "orthogonalize":
            meant = replace(meant, carry_bias=False)  # the published code left it where it was
        assert arm.treatment == meant, arm.name
    assert "baseline" in study.arms, "a model that nothing was done to"


def check_named_for_their_origins(study):
    """An arm without a treatment has the name of the one that it starts from, and says what else is done to it."""
    first = load_study(Path(study.recipe.model.from_).name)
    assert set(first.seeds) >= set(study.seeds)
    assert first.recipe.checkpoint.keep == "best", "which leaves a model to start from"
    for arm in study.arms.values():
        model = resolve_cell(study, Cell(arm=arm.name, seed=0)).recipe.model
        origin = origin_arm(model, arm.name)
        said = {"": ("all", "keep"), "-probe": ("head", "keep"), "-released": ("all", "none")}
        assert origin in first.arms
        assert (arm.trains, model.freeze) == said[arm.name.removeprefix(origin)]
        assert arm.treatment == Treatment()
        assert arm.adapter is None


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_what_is_of_the_hub_is_pinned(path):
    recipe = load_study(path).recipe
    for one in (recipe.model, recipe.data.tokenizer):
        if one is not None and "/" in (one.name or ""):
            assert re.fullmatch("[0-9a-f]{40}", one.revision or "")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_fits_its_model_and_task(path):
    recipe = load_study(path).recipe
    task = TASKS[recipe.data.task]
    if recipe.model.name == "oelm-gpt":
        is_causal = task.kind == "language-modeling" or task.synthetic or path.stem.endswith("-causal")
        assert recipe.model.causal == is_causal
        assert (recipe.data.pair_separator is not None) == task.pairs, "its tokenizers have no form for pairs"
    if recipe.budget.steps is not None:
        assert recipe.budget.steps % recipe.evaluate.every == 0
    if "GPU" not in path.read_text(encoding="utf-8").splitlines()[3]:
        assert recipe.precision == "fp32", "for CPUs: some have no instructions for bf16"


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_as_published_declares_its_faults(path):
    study = load_study(path)
    notes = " ".join(study.notes)
    for fault in ("Reported: ", "One seed (42)", "learning rate differs", "Not reproduced here: it selected"):
        assert fault in notes, fault
    if study.recipe.model.name == "oelm-gpt" and not study.recipe.model.causal:
        assert "both directions" in notes
        assert study.recipe.schedule.name == "constant"
        assert "schedule is constant" in notes
    assert notes.endswith(f"{path.stem.removesuffix('as-published')}fair asks the same question without these faults.")
    assert study.seeds == (42,)
    assert study.tune is None
    assert study.recipe.optimizer.weight_decay_on == "all"
    assert study.recipe.optimizer.weight_decay == 0.01


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_as_published_has_the_published_learning_rates(path):
    study = load_study(path)
    if study.recipe.model.name == "oelm-gpt":
        expected = {name: 3e-4 if name == "baseline" else 1e-3 for name in study.arms}
    else:
        expected = {name: 1e-4 if arm.treatment.frozen_roles else 2e-5 for name, arm in study.arms.items()}
    assert lrs(study) == expected
    assert {tuple(arm.overrides) for arm in study.arms.values()} == {(), ("optimizer.lr",)}, "and differs in no more"


@pytest.mark.parametrize("task", ["sst2", "mnli"])
def test_published_baseline_of_bert_was_orthogonalized(task):
    study = load_study(f"bert-{task}-as-published")
    assert study.compare.baseline == "published-baseline"
    assert set(study.arms) == {"published-baseline", "oelm-freeze", "oelm-random", "baseline", "freeze-only"}
    assert any("baseline was orthogonalized too" in note for note in study.notes)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_cause_is_warned_of_once_and_pairs_that_nobody_compares_are_notes(path):
    study = load_study(path)
    issues = check_study(study)
    said = [(one.code, one.severity, one.message.key) for one in issues]
    assert len(set(said)) == len(said)
    compared = [set(pair) for pair in planned_design(study).compared]
    for one in issues:
        pairs = [set(arms) for arms in one.about if len(arms) == 2]
        assert one.severity == "note" or all(pair in compared for pair in pairs), one


@pytest.mark.parametrize("path", FAIR, ids=name_of)
def test_fair_is_fair(path):
    study = load_study(path)
    assert all(not arm.overrides for arm in study.arms.values())
    assert study.tune is not None
    assert list(study.tune.grid) == ["optimizer.lr"]
    assert len(study.seeds) >= 5
    assert study.recipe.optimizer.weight_decay_on == "matrices"
    assert study.compare.baseline == "baseline"
    rates = study.tune.grid["optimizer.lr"]
    published = {2e-5, 1e-4} if study.recipe.model.name != "oelm-gpt" else {3e-4, 1e-3}
    assert published <= set(rates)
    assert study.recipe.optimizer.lr in rates
    # One is frozen as it is, one orthogonal and learning, one frozen and as large but not orthogonal.
    scratch = study.recipe.model.name == "oelm-gpt"
    frozen = "oelm-random" if scratch else "freeze-only"  # from scratch, weights start with the std of 0.02
    assert {"baseline", frozen, "oelm-nofreeze", "oelm-freeze", "oelm-random-match"} <= set(study.arms)
    if not scratch:
        assert {"oelm-freeze-match", "oelm-fresh-match"} <= set(study.arms), "scale, and pretrained subspaces"
        assert "oelm-frames-match" in study.arms, "and which query direction goes with which key direction"
    assert "no-attention" in study.arms, "whether the study could tell"


def test_fair_and_published_share_task_and_size():
    for path in PUBLISHED:
        published, fair = load_study(path), load_study(path.stem.replace("as-published", "fair"))
        assert published.recipe.model == fair.recipe.model
        assert published.recipe.budget == fair.recipe.budget
        assert published.recipe.batch == fair.recipe.batch
        assert (published.recipe.data.task, published.recipe.data.max_length) == (
            fair.recipe.data.task,
            fair.recipe.data.max_length,
        )


def test_ablation_has_all_named_arms():
    study = load_study("bert-sst2-ablation")
    assert {name: arm.treatment for name, arm in study.arms.items()} == {
        name: treatment(*fields) for name, fields in PRETRAINED.items()
    }
    assert all(not arm.overrides for arm in study.arms.values())
    assert study.tune is not None


def test_text_must_be_pointed_at():
    study = load_study("gpt-mini-lm", ["recipe.data.path=some/folder"])
    assert study.recipe.data.path == "some/folder"
    assert load_study("gpt-mini-lm").recipe.data.path == "your-text"
