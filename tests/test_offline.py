"""A hub that is not there: one message, and no half minute of asking for it again."""

import time

import huggingface_hub.constants as hub
import pytest

import oelm
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import load_tokenizer
from oelm.hub import why_not_fetched
from oelm.models.load import load_config

WAYS = {
    "model": lambda: load_config("someone/mistyped"),
    "tokenizer": lambda: load_tokenizer("someone/mistyped"),
    "data": lambda: find_source(task_named("sst2"), None),
}


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch, tmp_path):
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_fetched_is_said_at_once(way, caplog, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it is asked again"))
    with pytest.raises(oelm.OelmError, match=r"the hub \(127\.0\.0\.1:1\) cannot be reached: Connection refused\n"):
        WAYS[way]()
    assert not caplog.records


def test_what_is_cached_is_for_the_client_to_find(tmp_path, monkeypatch):
    assert why_not_fetched("someone/model")
    (tmp_path / "models--someone--model").mkdir()
    assert why_not_fetched("someone/model") is None
    assert why_not_fetched(tmp_path) is None
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:2")
    assert why_not_fetched("someone/other") is None
