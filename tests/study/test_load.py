"""Load: a good file becomes a study; of a bad one all problems are said at once, with their places."""

import copy
import json
import math
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiny_study
from oelm.errors import OelmError, StudyError
from oelm.study.load import load_study, study_from_dict
from oelm.study.overrides import apply_overrides
from oelm.study.study import Study

GOOD = {
    "study": "small",
    "version": 1,
    "recipe": {
        "model": {"name": "minilm-l6"},
        "data": {"task": "sst2", "validation": 1000},
        "budget": {"epochs": 3},
        "optimizer": {"lr": 1e-4},
    },
    "arms": {
        "baseline": {"init": "keep", "freeze": "none"},
        "v1.5": {"init": "orthogonalize", "freeze": "qk", "overrides": {"optimizer.lr": 3e-4}},
    },
    "seeds": [0, 1],
    "compare": {"baseline": "baseline", "metric": "accuracy"},
}


@pytest.fixture
def load(tmp_path):
    """The study of a text, or of GOOD with some things set."""

    def call(content=None, *overrides):
        data = content if isinstance(content, str | bytes) else yaml.safe_dump(changed(content or {}), sort_keys=False)
        path = tmp_path / "study.yaml"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return load_study(path, overrides)

    return call


def changed(changes):
    """GOOD with other values at paths with slashes; `...` takes one away."""
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = path.split("/")
        inner = data
        for part in parents:
            inner = inner.setdefault(part, {})
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return data


def test_a_good_study_and_its_defaults(load):
    study = load()
    assert (study.name, study.seeds, list(study.arms)) == ("small", (0, 1), ["baseline", "v1.5"])
    assert study.recipe.optimizer.betas == (0.9, 0.999)
    assert study.arms["v1.5"].overrides == {"optimizer.lr": 3e-4}
    assert "overrides: optimizer.lr = 0.0003" in str(study.arms["v1.5"])
    assert study_from_dict(study.to_dict()) == study


def test_all_problems_are_said_together(load):
    with pytest.raises(StudyError) as caught:
        load(
            {
                "recipe/optimizer/lr": -1,
                "recipe/data/task": "sst3",
                "recipe/batch": {"sice": 3},
                "arms/v1.5/frezee": "qk",
                "seeds": [0, 0],
                "compare/baseline": "basline",
                "sedes": [1],
                "notes": "one",
            }
        )
    lines = {line.split()[0]: line for line in str(caught.value).splitlines()[1:]}
    assert "has 8 problems; nothing was started" in str(caught.value)
    assert "must be greater than 0, got -1" in lines["recipe.optimizer.lr"]
    assert "did you mean 'sst2'?" in lines["recipe.data.task"]
    assert "did you mean 'size'?" in lines["recipe.batch.sice"]
    assert "did you mean 'freeze'?" in lines["arms.v1.5.frezee"]
    assert "did you mean 'baseline'?" in lines["compare.baseline"]
    assert "did you mean 'seeds'?" in lines["sedes"]
    assert {"seeds", "notes"} <= lines.keys()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"study": "no/folder"}, r"study +must be a name"),
        ({"study": "a" * 101}, r"study +must be a name of at most 100"),
        ({"version": 2}, r"version +must be 1"),
        ({"version": True}, r"version +must be 1"),
        ({"recipe": ...}, r"recipe +is missing"),
        ({"recipe/optimizer": ...}, r"recipe\.optimizer +is missing"),
        ({"recipe/optimizer/lr": "high"}, r"recipe\.optimizer\.lr +must be a valid number, got 'high'"),
        ({"recipe/optimizer/lr": math.nan}, r"recipe\.optimizer\.lr +must "),
        ({"recipe/optimizer/lr": math.inf}, r"recipe\.optimizer\.lr +must "),
        ({"recipe/optimizer/betas": [0.9]}, r"recipe\.optimizer\.betas"),
        ({"recipe/precision": "fp61"}, r"recipe\.precision +'fp61' is not known; did you mean 'fp16'\?"),
        ({"recipe/budget": {"epochs": 0}}, r"recipe\.budget\.epochs +must be greater than 0, got 0"),
        ({"recipe/budget": {"steps": 0}}, r"recipe\.budget\.steps +must be greater than or equal to 1"),
        ({"recipe/budget": {"steps": 1.5}}, r"recipe\.budget\.steps +must be a valid integer"),
        ({"recipe/budget": {"steps": 1, "epochs": 1}}, r"recipe\.budget +say exactly one .* not epochs and steps"),
        ({"recipe/budget": {}}, r"recipe\.budget +say exactly one .* not none"),
        (
            {"recipe/schedule": {"name": "constant", "floor": 0.1}},
            r"recipe\.schedule +a constant schedule has no floor",
        ),
        ({"recipe/data/task": "sst3"}, r"unknown task 'sst3'; did you mean 'sst2'\?"),
        ({"recipe/data/validation": ...}, r"recipe\.data\.validation +task 'sst2' has no split to select on"),
        ({"recipe/data/overlap": "remove"}, r"recipe\.data\.overlap +'remove' is not known; one of drop, keep"),
        (
            {"recipe/data/task": "tinystories", "recipe/data/group": "story"},
            r"recipe\.data\.group +task 'tinystories' is",
        ),
        ({"recipe/data/pair_separator": " "}, r"recipe\.data\.pair_separator +task 'sst2' has no pairs"),
        (
            {"recipe/data/limit": {"tokens": 5}},
            r"recipe\.data\.limit +task 'sst2' is made of examples: \{examples: N\}, not tokens",
        ),
        (
            {"recipe/data/task": "tinystories", "recipe/data/limit": {"examples": 5}},
            r"recipe\.data\.limit +task 'tinystories' is text: \{documents: N\} or \{tokens: N\}, not examples",
        ),
        ({"recipe/data/limit": 500}, r"recipe\.data\.limit +must be a mapping with examples, .* \{examples: 500\}"),
        ({"recipe/data/path": 5}, r"recipe\.data\.path +must be a valid string, got 5"),
        ({"recipe/data/tokenizer": {"vocab": 300}}, r"recipe\.data\.tokenizer +say either `name` or `train`"),
        (
            {"recipe/data/tokenizer": {"train": "bpe", "revision": "main"}},
            r"recipe\.data\.tokenizer +`revision` goes with `name`",
        ),
        ({"recipe/model/preset": "mini-128"}, r"recipe\.model\.preset +goes with the model 'oelm-gpt'"),
        ({"recipe/model/qk_norm": True}, r"recipe\.model\.qk_norm +goes with the model 'oelm-gpt'"),
        (
            {"recipe/model/name": "oelm-gpt"},
            r"(?s)recipe\.model\.preset +is missing.*recipe\.data\.tokenizer +'oelm-gpt'",
        ),
        ({"recipe/model/width": 64}, r"recipe\.model\.width +goes with the model 'oelm-gpt'"),
        (
            {"recipe/model": {"name": "oelm-gpt", "layers": 2}},
            r"recipe\.model\.preset +is missing: mini-128, .*gpt2-1600; or say width, heads",
        ),
        (
            {"recipe/model": {"name": "oelm-gpt", "preset": "mini-128", "heads": 3}},
            r"recipe\.model\.heads +width 128 is not a multiple of 3 heads",
        ),
        (
            {"recipe/model": {"name": "oelm-gpt", "preset": "mini-128", "context": 64}},
            r"recipe\.data\.max_length +\d+ exceeds the model's context of 64 tokens",
        ),
        (
            {"recipe/data/task": "regression"},
            r"recipe\.data\.path +task 'regression' needs a folder .*, or recipe\.data\.hub",
        ),
        ({"recipe/data/hub": "some/data"}, r"recipe\.data\.hub +task 'sst2' has its own data; these take any: .*pairs"),
        ({"recipe/data/splits": {"train": "fit"}}, r"recipe\.data\.splits +goes with recipe\.data\.hub"),
        ({"recipe/data/columns": {"txt": "a"}}, r"recipe\.data\.columns\.txt"),
        (
            {"recipe/data/columns": {"text_a": "a", "text_b": "b"}},
            r"recipe\.data\.columns +task 'sst2' has text, got text_a",
        ),
        (
            {"recipe/data/task": "pairs", "recipe/data/hub": "not a name", "recipe/data/columns": {"text_a": "a"}},
            r"recipe\.data\.hub +must be owner/name(.|\n)*recipe\.data\.columns +task 'pairs' has text_a and text_b",
        ),
        (
            {"recipe/data/task": "classification", "recipe/data/hub": "a/b", "recipe/data/path": "x"},
            r"recipe\.data\.hub +goes with no path",
        ),
        ({"recipe/data/synthetic": {"pairs": 3}}, r"recipe\.data\.synthetic +task 'sst2' is not made; .* recall, ind"),
        ({"recipe/data/task": "recall", "recipe/data/path": "x"}, r"recipe\.data\.path +task 'recall' makes its own"),
        (
            {"recipe/data/task": "recall", "recipe/data/synthetic": {"pairs": 9}},
            r"recipe\.data\.synthetic\.pairs +must be less than or equal to 7",
        ),
        ({"arms": {"only": {}}}, r"arms +a comparison needs at least two, got 1"),
        ({"arms": ["a", "b"]}, r"arms +must be a mapping"),
        ({"arms/..": {}}, r"arms\.\.\. +the name must be"),
        ({"arms/v1.5/init": "orthogonl"}, r"arms\.v1\.5 +.*did you mean 'orthogonal'"),
        (
            {"arms/v1.5/overrides": {"optimizer.lrr": 1}},
            r"arms\.v1\.5\.overrides\.optimizer\.lrr +unknown field; .*'lr'",
        ),
        (
            {"arms/v1.5/overrides": {"optimizer.lr": -1}},
            r"arms\.v1\.5\.overrides\.optimizer\.lr +must be greater than 0",
        ),
        ({"arms/v1.5/overrides": {"optimizer": {"lr": 1}}}, r"overrides\.optimizer +must be a single value"),
        ({"arms/v1.5/overrides": {"data.task": "sst3"}}, r"overrides\.data\.task +unknown task"),
        ({"arms/v1.5/overrides": 5}, r"arms\.v1\.5\.overrides +must be a mapping"),
        ({"seeds": []}, r"seeds +must be a list of whole numbers"),
        ({"seeds": [-1]}, r"seeds +must be a list of whole numbers"),
        ({"seeds": [True]}, r"seeds +must be a list of whole numbers"),
        ({"tune": {"seeds": [7, 8, 9]}}, r"tune +names nothing to tune"),
        ({"tune": {"batch.size": [8, 16], "seeds": [1, 2, 9]}}, r"tune\.seeds +must be seeds of its own, but \[1\]"),
        (
            {"tune": {"batch.size": [8, 16], "seeds": [8, 9]}},
            r"tune\.seeds +are 2, and the luck of so few would decide",
        ),
        (
            {"tune": {"batch.size": [8, 8], "seeds": [7, 8, 9]}},
            r"tune\.batch\.size +must be a list of at least two different",
        ),
        (
            {"tune": {"batch.size": [8, 0], "seeds": [7, 8, 9]}},
            r"tune\.batch\.size +must be greater than or equal to 1, got 0",
        ),
        (
            {"tune": {"optimizer.lr": [1, 2], "seeds": [7, 8, 9]}},
            r"arms\.v1\.5\.overrides\.optimizer\.lr +is tuned as well",
        ),
        ({"compare/metric": "perplexity"}, r"'perplexity' is not measured; task 'sst2' has accuracy"),
        ({"compare": {"baseline": "baseline", "metric": "perplexity", "min_effect": 5}}, r"0\.05 is 5 %.*got 5"),
        ({"compare/metric": "acuracy"}, r"'acuracy' is not measured; did you mean 'accuracy'"),
        ({"compare/better": "lower"}, r"compare\.better +unknown field"),
        ({"compare/min_effect": 0}, r"min_effect +must be greater than 0"),
        ({"compare/min_effect": math.inf}, r"min_effect +must "),
        ({"notes": [1]}, r"notes +must be a list of texts"),
    ],
)
def test_refused_with_place_and_reason(load, changes, says):
    with pytest.raises(StudyError, match=says):
        load(changes)


def test_changes_that_make_sense_only_together(load):
    study = load(
        {
            "recipe/schedule": {"name": "linear", "floor": 0.1},
            "arms/v1.5/overrides": {"schedule.name": "constant", "schedule.floor": 0.0},
        }
    )
    assert apply_overrides(study.recipe, study.arms["v1.5"].overrides).schedule.name == "constant"
    with pytest.raises(StudyError, match=r"arms\.v1\.5\.overrides\.schedule\.name +a constant schedule has no floor"):
        load(
            {
                "recipe/schedule": {"name": "linear", "floor": 0.1},
                "arms/v1.5/overrides": {"schedule.name": "constant"},
            }
        )


def test_set(load):
    study = load(
        {"tune": {"batch.size": [8, 16], "seeds": [7, 8, 9]}},
        "seeds=[5, 6]",
        "recipe.optimizer.lr=2e-4",
        "recipe.budget.steps=100",
        "recipe.data.path={train: a.csv, validation: b.csv}",
        "tune.batch.size=[4, 32]",
        "arms.v1.5.overrides.optimizer.lr=1e-3",
        "arms.v1.5.freeze=k",
        "arms.other={overrides: {optimizer.lr: 1e-2}}",
        "arms.baseline={init: keep, freeze: q}",
        "notes=[quick]",
    )
    assert study.seeds == (5, 6)
    assert study.recipe.optimizer.lr == 2e-4
    assert (study.recipe.budget.steps, study.recipe.budget.epochs) == (100, None)
    assert study.recipe.data.path == {"train": "a.csv", "validation": "b.csv"}
    assert study.tune.grid == {"batch.size": (4, 32)}
    assert study.arms["v1.5"].overrides == {"optimizer.lr": 1e-3}
    assert study.arms["v1.5"].treatment.freeze == "k"
    assert study.arms["other"].overrides == {"optimizer.lr": 1e-2}
    assert study.arms["baseline"].treatment.freeze == "q"
    assert load({}, "arms.v1.5={init: polar}").arms["v1.5"].treatment.init == "polar"
    with_arm = load({"arms/v1": {}}, "arms.v1.5.init=polar", "arms.v1.init=identity")
    assert (with_arm.arms["v1.5"].treatment.init, with_arm.arms["v1"].treatment.init) == ("polar", "identity")


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("recipe.optimizer.lr=-1", r"recipe\.optimizer\.lr +must be greater than 0, got -1"),
        ("recipe.optimizer.lrr=1", r"recipe\.optimizer\.lrr +unknown field; did you mean 'lr'"),
        ("recipe.optimizer.lr", "must be of the form"),
        ("=5", "must be of the form"),
        ("recipe.optimizer.lr.x=1", r"--set recipe\.optimizer\.lr\.x +'lr' has no parts"),
        ("recipe.optimizer.lr=[", "is not YAML that can be read"),
        ("seeds=3", "seeds +must be a list"),
        ("recipe..lr=3", "unknown field"),
    ],
)
def test_a_wrong_set(load, override, says):
    with pytest.raises(StudyError, match=says):
        load({}, override)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a study"),
        (b"- a\n- b\n", "is not a study"),
        (b"study: \xff\xfe\n", "is not text in UTF-8"),
        (b"a: 1\nb: {c: 1, c: 2}\n", "(?s)line 2.*duplicate key 'c'"),
        (b"a: 1\na: 2\n", "(?s)line 2.*duplicate key 'a'"),
        (b"a: [1, 2\n", "(?s)line 2.*"),
        (b"a: \0", "is not YAML that can be read"),
        (b"? [a]\n: 1", "a key must be a plain value"),
        (b"a: {<<: {b: 1}}", "`<<` is not read here"),
        (b"a: !!python/object/apply:os.system [ls]", "is not YAML that can be read"),
        (b"a: !!bool perhaps", "is not YAML that can be read"),
        (b"study: " + b"[" * 5000, "is not YAML that can be read"),
        (b"study: " + b"[" * 60 + b"]" * 60, "too large or too deep"),
        (b"study: &a [*a]", "too large or too deep"),
        (b"study: 0x" + b"f" * 6000, "more than 64 bits"),
        (b'study: "\\ud800"', "not Unicode"),
        (b"#" * (2**20 + 1), "(?s)too large.*more than 524,288 bytes"),  # 16 MB took a quarter of a minute
    ],
)
def test_a_file_that_is_no_study(load, content, says):
    with pytest.raises(StudyError, match=says):
        load(content)


def test_a_million_values_are_not_counted_to_the_end(load, monkeypatch):
    """They took as long as the library needs for all of them: a minute or more."""
    monkeypatch.setattr("oelm.yaml._MOST_VALUES", 100)
    with pytest.raises(StudyError, match=r"(?s)line 50.*more than 100 values"):
        load("study: 1\n" + "".join(f"k{number}: 1\n" for number in range(10_000)) + "}")


def test_a_billion_laughs(load):
    lines = ["l0: &l0 [ha, ha]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 20)]
    with pytest.raises(StudyError, match="too large or too deep"):
        load("\n".join(lines))


def test_an_alias_is_good(load):
    text = (
        yaml.safe_dump(GOOD | {"seeds": [0, 1, 2]}).replace("seeds:", "seeds: &s")
        + "tune: {batch.size: [8, 16], seeds: *s}"
    )
    with pytest.raises(StudyError, match=r"1 problem; (?s:.*)but \[0, 1, 2\] are also compared"):
        load(text)


def test_numbers_as_people_write_them(load):
    text = yaml.safe_dump(GOOD).replace("lr: 0.0001", "lr: 1e-4")
    assert "lr: 1e-4" in text
    assert load(text).recipe.optimizer.lr == 1e-4


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(StudyError, match=r"(?s)no study file .*did you mean 'minilm-sst2'.*studies ls"):
        load_study(tmp_path / "minilm-sst.yaml")
    with pytest.raises(StudyError, match=r"is a folder, not a study file\n +try .*oelm studies ls"):
        load_study(tmp_path)
    (tmp_path / "mine.yaml").touch()
    with pytest.raises(StudyError, match=r"no study file .*mine\.yml; did you mean 'mine\.yaml'\?$"):
        load_study(tmp_path / "mine.yml")
    with pytest.raises(StudyError, match=r"is a folder, not a study file\n +try +a study file: .*mine\.yaml"):
        load_study(tmp_path)
    with pytest.raises(StudyError, match="there is no study file"):
        load_study("a\0b")
    with pytest.raises(StudyError, match="cannot be read"):
        load_study("a" * 5000)
    assert load_study("minilm-sst2").name == "minilm-sst2"


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
KNOWN = st.sampled_from(
    [*GOOD, "tune", "notes", "overrides", "optimizer.lr", "init", "freeze", "layers", "unfreeze", "scale"]
)
ANYTHING = st.recursive(
    PLAIN | st.sampled_from([0, 1, -1, "", "all", "qk", 1e-4]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KNOWN | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def is_study_or_refused(load, content, *overrides):
    try:
        study = load(content, *overrides)
    except OelmError as error:
        str(error).encode()  # it can be shown
    else:
        assert isinstance(study, Study)
        assert study_from_dict(json.loads(json.dumps(study.to_dict()))) == study


@quick
@given(st.binary(max_size=60) | st.text(alphabet="ab:-[]{}&*!?|><'\"#%@,. \n\t0e1~\\", max_size=60).map(str.encode))
def test_any_bytes(load, content):
    is_study_or_refused(load, content)


@quick
@given(st.dictionaries(KNOWN, ANYTHING, max_size=6))
def test_any_structure(load, data):
    is_study_or_refused(load, json.dumps(data))


def paths_in(data, before=()):
    for key, value in data.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from paths_in(value, (*before, key))


FULL = GOOD | {"tune": {"batch.size": [8, 16], "seeds": [7, 8, 9]}, "notes": ["known"]}


@pytest.mark.slow
@settings(quick, max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(list(paths_in(FULL))), ANYTHING | st.just(...)), min_size=1, max_size=3))
def test_a_good_study_with_some_values_changed(load, mutations):
    data = copy.deepcopy(FULL)
    for path, value in mutations:
        inner = data
        for part in path[:-1]:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            if value is ...:
                inner.pop(path[-1], None)
            else:
                inner[path[-1]] = value
    is_study_or_refused(load, json.dumps(data))


@pytest.mark.slow
@quick
@given(
    st.sampled_from([".".join(path) for path in paths_in(FULL)]) | st.text(alphabet="arms.tunechg", max_size=12),
    ANYTHING.map(json.dumps) | st.text(max_size=6),
)
def test_any_set(load, path, value):
    is_study_or_refused(load, {}, f"{path}={value}")


def test_corners_of_a_grid_are_checked_before_anything_starts(tmp_path):
    path = tiny_study.make(tmp_path)
    grid = "tune={schedule.name: [linear, constant], schedule.floor: [0.0, 0.1], seeds: [100, 101, 102]}"
    with pytest.raises(StudyError, match="a constant schedule has no floor"):
        load_study(path, [grid])


def test_set_does_not_make_a_new_arm_of_a_typing_error(tmp_path):
    path = tiny_study.make(tmp_path)
    with pytest.raises(StudyError, match="there is no arm 'baselin'; did you mean 'baseline'"):
        load_study(path, ["arms.baselin.freeze=q"])
    assert "new" in load_study(path, ["arms.new={init: keep, freeze: q}"]).arms


def test_two_budgets_in_the_changes_of_an_arm_are_refused(tmp_path):
    path = tiny_study.make(tmp_path)
    with pytest.raises(StudyError, match="are one choice"):
        load_study(path, ["arms.baseline.overrides={budget.steps: 10, budget.tokens: 10}"])


def test_presets_are_those_of_the_model():
    from typing import get_args, get_type_hints

    from oelm.models.gpt import PRESETS
    from oelm.study.recipe import ModelConfig

    literal = next(choice for choice in get_args(get_type_hints(ModelConfig)["preset"]) if get_args(choice))
    assert set(get_args(literal)) == set(PRESETS)


def test_what_we_write_is_read_as_json(tmp_path):
    """Four megabytes of it took a minute as YAML."""
    study = load_study("quickstart")
    path = tmp_path / "study.json"
    path.write_text(json.dumps({**study.to_dict(), "notes": ["x" * 1000] * 4000}))
    assert load_study(path) == replace(study, notes=("x" * 1000,) * 4000)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"study": 1, "study": 2}', "duplicate key 'study'"),
        (json.dumps({f"k{n}": 1 for n in range(300_000)})[:-1] + ', "z": 1, "z": 2}', "duplicate key 'z'"),  # hours
        ("{study: made}", "JSONDecodeError"),
        ("[" * 50_000, "RecursionError"),
        ("[" * 60 + "]" * 60, "too large or too deep"),
        (json.dumps(list(range(200_000))), "too large or too deep"),
        ('{"a": ' + "9" * 50 + "}", "more than 64 bits"),
        ('{"a": ' + "9" * 5000 + "}", "Exceeds the limit"),
        (" " * 2**24 + "{}", "too large"),
        ("[]", "is not a study"),
        ("NaN", "is not a study"),
    ],
    ids=range(11),
)
def test_what_is_no_study_in_json_is_one_error(tmp_path, text, says):
    path = tmp_path / "study.json"
    path.write_text(text)
    with pytest.raises(StudyError, match=rf"(?s)study\.json.*{says}"):
        load_study(path)


def test_yaml_that_would_take_minutes_is_not_read(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("notes:\n" + "- x\n" * 200_000)
    with pytest.raises(StudyError, match="is too large"):
        load_study(path)
