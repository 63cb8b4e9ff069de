"""One vocabulary: no name is defined twice, the old dialect is gone, the glossary has every word in two languages."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import oelm

SOURCE = Path(oelm.__file__).parent
ROOT = Path(__file__).parents[1]
TEXTS = [
    path
    for folder in (SOURCE, ROOT / "docs", ROOT / "studies")
    for path in sorted(folder.rglob("*"))
    if path.suffix in (".py", ".md", ".yaml", ".jinja", ".typ")
]
# Words of the private dialect that version 0.1 was written in.
OLD = """
makings MAKINGS check_makings made_with Resolved begun Begun standings standing_of status_of Waiting Watch Ranks
cargo Cargo looked_at given_back made_once even_held put_back joiner smallest_interesting left_out LeftOut undecided
spare_frozen not_adding_up first_the_first add_each_ are_same ALONE assembled prepared_for model_for Prepared
move_in LASTS Region regions_of hashes_of strangers set_learning sharded_as place_from machine_at complained
copy_there copy_back no_room NoRoom ready_environment flags_shown worst_first as_run flags_of why_apart take_turns
Visit ghost surroundings told floors FLOOR held_for_select
"""
PHRASES = [
    "BELOW-FLOOR",
    "oelm compare",
    "oelm train",
    "oelm.compare",
    "--apart",
    "--together",
    "--meeting",
    "--warn ",
    "goes on from here",
    "8 times in 10",
    "by the study's own word",
    "does not let us in",
    "is no time",
    "is said twice",
    "which cell is it",
    "selection split",
    "chosen model",
    "same command goes on",
    "infinite or no number",
    "is no number any more",
    "give layers back",
]
# `aria-labelledby` is spelled by others.
BRITISH = re.compile(
    r"\b\w*(?:optimis|tokenis|initialis|normalis|orthogonalis|factoris|quantis|summaris|generalis|regularis|randomis|serialis"
    r"|minimis|maximis|recognis|organis|visualis|standardis|parallelis|materialis|synchronis"
    r"|colour|behaviour|favour|honour|neighbour|labelled(?!by)|labelling|modelling"
    r"|artefact|catalogue|licence|centre\b|grey\b|learnt|judgement|analyse[ds]?\b)\w*",
    re.IGNORECASE,
)


def public_names(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_is_defined_in_two_modules():
    """A command may carry the name of the function it calls."""
    homes = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in public_names(path):
            homes[name].append(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    commands = {path.stem for path in (SOURCE / "cli").glob("*.py")} | {"resume", "fetch"}
    for name, found in list(twice.items()):
        is_command = name in commands and sum(not home.startswith("cli/") for home in found) == 1
        if is_command and len(found) == 2:
            del twice[name]
    assert not twice


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_old_dialect_is_gone(path):
    text = path.read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", text))
    assert not (old := words & set(OLD.split())), old
    assert not [phrase for phrase in PHRASES if phrase in text]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_spelling_is_american(path):
    assert not set(BRITISH.findall(path.read_text(encoding="utf-8")))


def test_the_glossary_has_every_word_once_and_in_both_languages():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", page, flags=re.MULTILINE)
    rows = [row for row in rows if row[0] != "word"]
    assert len({word for word, _, _ in rows}) == len(rows) > 60
    for word, chinese, meaning in rows:
        assert re.search(r"[\u4e00-\u9fff]", chinese), word
        assert not re.search(r"[\u4e00-\u9fff]", meaning), word
