"""Secrets: masked in what is recorded, refused in what is kept to be run again."""

import json

import pytest

from oelm.cli.main import main
from oelm.errors import LaunchError, StudyError
from oelm.launch.backends.registry import parse_backend
from oelm.masking import mask_secrets
from oelm.runs.provenance import collect_provenance
from oelm.study.load import load_study

# In parts, so that nobody who searches this repository for secrets finds one.
HUB = "hf_" + "Ab3dEfGhIjKlMnOpQrStUvWxYz01234567"
SECRETS = [
    HUB,
    "sk-" + "proj-abc123ABC456def789GHI",
    "sk-" + "ant-api03-abc123ABC456def789GHI-x1_y-AA",
    "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "github_pat_" + "11AAAAAAA0abcdefghijkl_mnopqrstuv",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0.abc-DEF_123",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_marked_ones_are_found_anywhere(secret):
    assert mask_secrets(f"oelm run x --set recipe.model.name={secret}") == "oelm run x --set recipe.model.name=***"
    assert mask_secrets(f"/data/{secret}/x") == "/data/***/x"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer ***"),
        ("https://ada:secret@example.org/x", "https://***@example.org/x"),
        ("https://0a1b2c3d@example.org/x", "https://***@example.org/x"),
        ("postgres://ada:p%40ss@db/x", "postgres://***@db/x"),
        ("export=WANDB_API_KEY=0123456789abcdef0123", "export=WANDB_API_KEY=***"),
        ("recipe.x.token: 'abcdefgh01234567'", "recipe.x.token: '***'"),
        ('{"password": "hunter2"}', '{"password": ***}'),
        ("db.passwd=x y", "db.passwd=*** y"),
    ],
)
def test_others_are_found_by_what_is_before_them(text, masked):
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "oelm run mine.yaml --set recipe.budget.tokens=10000000000000000 --set recipe.optimizer.lr=1e-4",
        "--set recipe.data.tokenizer.name=google-bert/bert-base-uncased-2018-10-18",
        "--set recipe.model.revision=0123456789abcdef0123456789abcdef01234567",
        "--on ssh://ada@gpu.example.org:2222/scratch/ada/oelm --cell baseline/tune/optimizer.lr=0.0001/seed-100",
        "--set recipe.data.path=/data/hf_datasets/monkey=banana0123456789",
        "--plugin ./my_auth.py --sbatch comment=key-value",
        "--set recipe.data.path=/data/sk-slovak-wikipedia-2024-11",
    ],
)
def test_what_people_write_stays(text):
    assert mask_secrets(text) == text


def test_the_recorded_command_has_none(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/oelm", "run", "x.yaml", "--out", f"runs-{HUB}"])
    assert collect_provenance().command == "oelm run x.yaml --out runs-***"


def test_a_study_keeps_none(monkeypatch, capsys):
    with pytest.raises(StudyError) as raised:
        load_study("quickstart", [f"recipe.data.path=https://ada:{HUB}@example.org/x"])
    assert "--set recipe.data.path=https://***@example.org/x" in str(raised.value)
    assert "HF_TOKEN" in str(raised.value)
    monkeypatch.setattr("sys.argv", ["oelm", "plan", "quickstart", "--set", f"recipe.model.name={HUB}"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert HUB not in said
    assert "looks like a secret" in said


def test_a_job_and_its_script_keep_none():
    with pytest.raises(LaunchError, match=r"--sbatch export: looks like a secret: export it in the shell") as raised:
        parse_backend("slurm", {"sbatch": {"export": f"ALL,HF_TOKEN={HUB}"}})
    assert HUB not in str(raised.value)
    assert (
        json.dumps(dict(parse_backend("slurm", {"sbatch": {"export": "ALL"}}).given)) == '{"sbatch": {"export": "ALL"}}'
    )
