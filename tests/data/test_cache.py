"""The cache: nothing in it is believed without its hash; what is damaged is made again, and it says so."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tiny_study
from oelm.data import cache as cache_module
from oelm.data.cache import cached_dir, file_hash
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import Examples, tokenize_task, train_tokenizer
from oelm.errors import DataError, DiskError
from oelm.study.load import load_study
from oelm.train.cell import load_data
from oelm.train.progress import LineProgress


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def as_in_a_new_process():
    cache_module._verified.clear()


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def flip(path):
    """One bit; size and time of modification stay."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def empty(path):
    path.write_bytes(b"")


def replace_by(make, path):
    path.unlink()
    make(path)


DAMAGES = {
    "zeroed": zero,
    "flipped": flip,
    "cut": cut,
    "empty": empty,
    "a folder": partial(replace_by, Path.mkdir),
    "a pipe": partial(replace_by, os.mkfifo),
    "a dangling link": partial(replace_by, lambda path: path.symlink_to("nowhere")),
    "a loop of links": partial(replace_by, lambda path: path.symlink_to(path.name)),
    "deep": lambda path: path.write_text("[" * 50_000),
}


def link_elsewhere(path):
    """The same content, where anybody may change it."""
    outside = path.parents[2] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


IN_A_FOLDER = DAMAGES | {"deleted": Path.unlink, "a link out of the folder": link_elsewhere}


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("<|endoftext|>".join(words for words, _ in tiny_study.texts(100, seed=3)))
    return file


def prepare(task, path, heard):
    def trained(texts, made_from):
        return train_tokenizer(texts, vocab=300, made_from=made_from, log=heard.append)

    source = find_source(task_named(task), str(path))
    return tokenize_task(source, tokenizer=trained, max_length=16, validation=10, log=heard.append)


def tokens_of(data):
    found = {}
    for name, split in {"train": data.train, "validation": data.validation, **data.test}.items():
        arrays = vars(split) if isinstance(split, Examples) else {"tokens": split.tokens}
        found |= {(name, part): np.array(array).tolist() for part, array in arrays.items() if array is not None}
    return found


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("text", ["tokens/*/train.tokens", "tokens/*/meta.json", "tokens/*/manifest.json"]),
        ("text", ["tokenizers/*/tokenizer.json", "tokenizers/*/manifest.json"]),
        ("sst2", ["tokens/*/train.arrow", "tokens/*/meta.json"]),
    ],
)
def test_whatever_is_damaged_is_made_again_and_says_so(tmp_path, cache, text, task, files):
    path = text if task == "text" else tiny_study.write_data(tmp_path / "data", train=60, validation=10)
    heard = []
    first = prepare(task, path, heard)
    tokens = tokens_of(first)
    assert heard == []
    for pattern in files:
        for name, damage in IN_A_FOLDER.items():
            (file,) = cache.glob(pattern)
            damage(file)
            as_in_a_new_process()
            again = prepare(task, path, heard)
            assert (again.facts, tokens_of(again)) == (first.facts, tokens), (pattern, name)
            assert len(heard) == 1, (pattern, name)
            assert heard.pop().startswith(f"{file.parent} is damaged: ")
            as_in_a_new_process()
            prepare(task, path, heard)
            assert heard == [], "and it stays made"
    assert {folder.name for folder in cache.glob("*/*.*")} == {note.name for note in cache.glob("hashes/*")}, (
        "no litter"
    )


def test_a_note_of_a_hash_is_not_believed(cache, text):
    heard = []
    digest = file_hash(text, log=heard.append)
    for name, damage in DAMAGES.items():
        (note,) = cache.glob("hashes/*")
        damage(note)
        assert file_hash(text, log=heard.append) == digest, name
        assert "is damaged" in heard.pop()
        assert file_hash(text, log=heard.append) == digest
        assert heard == [], name
    other = text.with_name("other.txt")
    other.write_text("other text")
    file_hash(other)
    (own,) = set(cache.glob("hashes/*")) - {note}
    shutil.copy(note, own)
    assert file_hash(other, log=heard.append) != digest, "that of another file"
    assert "is damaged" in heard.pop()


def make_greeting(folder):
    (folder / "greeting").write_text("hello")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "more").touch(),
        lambda folder: (folder / "manifest.json").unlink(),
        lambda folder: (folder / "manifest.json").write_text('{"files": {}}'),
        lambda folder: replace_folder(folder, Path.mkdir),
        lambda folder: replace_folder(folder, Path.touch),
        lambda folder: replace_folder(folder, os.mkfifo),
        lambda folder: replace_folder(folder, lambda path: path.symlink_to("nowhere")),
        lambda folder: (shutil.rmtree(folder), shutil.copytree(cached_dir("a", 2, make_greeting), folder)),
    ],
)
def test_a_folder_that_is_not_as_it_was_written(cache, damage):
    folder = cached_dir("a", 1, make_greeting)
    damage(folder)
    heard = []
    assert cached_dir("a", 1, make_greeting, log=heard.append) == folder
    assert len(heard) == 1
    assert (folder / "greeting").read_text() == "hello"


def replace_folder(folder, make):
    shutil.rmtree(folder)
    make(folder)


def test_a_copied_cache_is_as_good(cache, monkeypatch, tmp_path):
    cached_dir("a", 1, make_greeting)
    shutil.copytree(cache, tmp_path / "copy", copy_function=shutil.copyfile)
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "copy"))
    cached_dir("a", 1, lambda folder: pytest.fail("made again"), log=pytest.fail)


def test_hashed_once_a_process_and_again_where_something_changed(monkeypatch):
    hashed, sha256 = [], cache_module._sha256
    monkeypatch.setattr(cache_module, "_sha256", lambda path: hashed.append(path.name) or sha256(path))
    folder = cached_dir("a", 1, make_greeting)
    hashed.clear()
    cached_dir("a", 1, make_greeting)
    assert hashed == []
    os.utime(folder / "greeting", ns=(0, 0))
    cached_dir("a", 1, make_greeting, log=pytest.fail)
    assert hashed == ["greeting"], "another time, the same content"


def test_a_disk_that_keeps_nothing_is_no_endless_loop(monkeypatch):
    monkeypatch.setattr(cache_module, "_problem_of", lambda folder: "it is full of zeros")
    with pytest.raises(DiskError, match=r"(?s)does not keep what is written to it.*full of zeros.*OELM_CACHE"):
        cached_dir("a", 1, make_greeting)


def grow(text):
    with text.open("a") as file:
        file.write("<|endoftext|>more" * 100)


def test_a_tokenizer_of_data_that_change_meanwhile_is_not_kept(cache, text):
    def trained(texts, made_from):
        def growing():
            found = texts()
            yield next(found)
            grow(text)
            yield from found

        return train_tokenizer(growing, vocab=300, made_from=made_from)

    source = find_source(task_named("text"), str(text))
    with pytest.raises(DataError, match="the data changed while they were read"):
        tokenize_task(source, tokenizer=trained, max_length=16, validation=10)
    assert not list(cache.glob("tokenizers/*"))


def test_tokens_of_data_that_change_meanwhile_are_not_kept(cache, text):
    def trained(texts, made_from):
        found = train_tokenizer(texts, vocab=300, made_from=made_from)
        grow(text)
        return found

    source = find_source(task_named("text"), str(text))
    with pytest.raises(DataError, match="the data changed while they were read"):
        tokenize_task(source, tokenizer=trained, max_length=16, validation=10)
    assert not list(cache.glob("tokens/*"))


RACE = """
import sys
from oelm.data.cache import cached_dir
folder = cached_dir("a", 1, lambda folder: (folder / "greeting").write_text("hello"))
print((folder / "greeting").read_text())
"""


def test_several_processes_find_the_same_damage(cache):
    folder = cached_dir("a", 1, make_greeting)
    zero(folder / "greeting")
    started = [
        subprocess.Popen([sys.executable, "-c", RACE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate() for process in started] == [("hello\n", "")] * 4
    assert list((cache / "a").iterdir()) == [folder]


def test_what_another_process_has_made_since_is_not_removed(cache):
    folder = cached_dir("a", 1, make_greeting)
    found = folder.stat().st_ino
    folder.rename(cache / "damaged")
    cached_dir("a", 1, make_greeting)
    cache_module._remove(folder, found)
    assert (folder / "greeting").read_text() == "hello"


def test_whoever_runs_a_study_hears_of_it(tmp_path, cache):
    study = load_study(str(tiny_study.write_study(tmp_path, tiny_study.language_study(tmp_path, max_length=16))))
    lines = []
    first = load_data(study.recipe, LineProgress(1, lines.append))
    assert not any("damaged" in line for line in lines)
    for pattern in ("hashes/*", "tokenizers/*/tokenizer.json", "tokens/*/train.tokens"):
        zero(next(cache.glob(pattern)))
    as_in_a_new_process()
    assert load_data(study.recipe, LineProgress(1, lines.append)).facts == first.facts
    assert [line.partition(" is damaged")[1] for line in lines if "damaged" in line] == [" is damaged"] * 3


def test_the_manifest_says_what_a_folder_was_made_from(cache):
    manifest = json.loads((cached_dir("a", {"b": 1}, make_greeting) / "manifest.json").read_text())
    assert manifest["made_from"] == {"b": 1}
    assert list(manifest["files"]) == ["greeting"]


def test_a_file_system_that_cannot_sync_folders(monkeypatch):
    """As some network file systems: a file is synced, a folder is an invalid argument."""
    real, files = os.fsync, []

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        files.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = cached_dir("kind", 1, lambda folder: (folder / "a").write_text("a"))
    assert (folder / "a").read_text() == "a"
    assert len(files) == 2, "the file and the manifest"
