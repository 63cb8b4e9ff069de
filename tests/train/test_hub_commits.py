"""Models and tokenizers of the hub: the commit that was asked for is the one that is loaded, and records have it."""

import json
import os
import subprocess
import sys

import pytest
import yaml

import tiny_study
from loopback_hub import COMMIT, loopback_hub
from oelm.data.tokenize import train_tokenizer
from zoo import FAMILIES

OTHER = "2" * 40


@pytest.mark.slow
@pytest.mark.parametrize("revision", [None, "main", OTHER])
def test_a_record_has_the_commits_of_its_model_and_its_tokenizer(tmp_path, monkeypatch, revision):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "oelm"))
    next(one for one in FAMILIES if one.name == "gpt2").model().save_pretrained(tmp_path / "model")
    words = [text for text, _ in tiny_study.texts(50, seed=0)]
    train_tokenizer(lambda: words, kind="words", vocab=300, made_from="x").save_pretrained(tmp_path / "words")
    of = {} if revision is None else {"revision": revision}
    data = {"task": "sst2", "path": str(tiny_study.write_data(tmp_path / "data")), "max_length": 16, "validation": 20}
    study = tiny_study.study(
        tmp_path / "data",
        model={"name": "someone/model", "from_scratch": True, **of},
        data=data | {"tokenizer": {"name": "someone/words", **of}},
        budget={"steps": 2},
        evaluate={"every": 2},
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(study))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    with loopback_hub({"someone/model": tmp_path / "model", "someone/words": tmp_path / "words"}) as (
        address,
        requests,
    ):
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "oelm", "run", str(file), "--arm", "baseline", "--seed", "0"]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / "out")], env=kept | hub, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    commit = OTHER if revision == OTHER else COMMIT
    (record,) = (tmp_path / "out").rglob("record.json")
    found = json.loads(record.read_text())["start"]["hub"]
    assert found == {"model": f"someone/model@{commit}", "tokenizer": f"someone/words@{commit}"}
    if revision == OTHER:
        asked = [one for one in requests if "/resolve/" in one]
        assert asked
        assert all(f"/resolve/{OTHER}/" in one for one in asked), "no file of another commit"
