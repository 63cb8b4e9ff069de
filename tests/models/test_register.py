"""transformers' Auto classes know our own GPT as soon as both packages are imported, and nobody waits for that."""

import subprocess
import sys
import types

import pytest

import oelm
from oelm.models import load
from zoo import FAMILIES

pytestmark = pytest.mark.slow

GPT = next(f for f in FAMILIES if f.name == "oelm-gpt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt")
    oelm.apply(GPT.model(), init="orthogonal", freeze="qk").save_pretrained(folder)
    return folder


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
assert "oelm.models.gpt" not in sys.modules, "the layers wait for a configuration"
names = [type(cls.from_pretrained({folder!r})).__name__ for cls in (AutoModelForCausalLM, AutoModel, AutoConfig)]
assert names == ["OelmGPTForCausalLM", "OelmGPTModel", "OelmGPTConfig"], names
"""


def test_auto_classes_load_our_model_if_oelm_is_imported_first(folder):
    """Also where transformers asks for its Auto classes in the middle of its own import."""
    first = """
import sys, oelm
assert not {"torch", "transformers"} & set(sys.modules)
from oelm.models.register import _AfterAuto, register_with_transformers
register_with_transformers()
def hooks(): return sum(isinstance(finder, _AfterAuto) for finder in sys.meta_path)
assert hooks() == 1
import transformers.generation.utils
"""
    run(first + LOAD.format(folder=str(folder)) + "assert hooks() == 0")


def test_auto_classes_load_our_model_if_transformers_is_imported_first(folder):
    run("import sys; from transformers import AutoConfig; import oelm" + LOAD.format(folder=str(folder)))


def test_oelm_loads_its_own_folder(folder):
    model, applied = oelm.from_pretrained(folder)
    assert type(model).__name__ == "OelmGPTForCausalLM"
    applied.audit().check()


def test_an_older_transformers_loads_all_but_our_model(folder):
    """Importing both must not fail there; loading ours says what it needs."""
    run(
        "import transformers; transformers.__version__ = '4.48.3'\n"
        "import oelm; from transformers import AutoConfig, BertConfig\n"
        "try: oelm.from_pretrained("
        f"{str(folder)!r})\n"
        "except oelm.FolderError as error: assert 'needs transformers 5.22 or later' in str(error), error\n"
        "else: raise SystemExit('it was loaded')"
    )


@pytest.mark.parametrize(
    ("version", "given", "passed"),
    [
        ("5.22.2", {"dtype": "float16"}, {"dtype": "float16"}),
        ("5.22.2", {}, {}),
        ("4.48.3", {"dtype": "float16"}, {"torch_dtype": "float16"}),
        ("4.48.3", {"revision": "main"}, {"torch_dtype": "auto", "revision": "main"}),
    ],
)
def test_the_dtype_is_that_of_the_file_in_any_transformers(monkeypatch, version, given, passed):
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(__version__=version))
    assert load._with_dtype(given) == passed
