"""A study that trains in seconds: a small GPT from scratch on a few hundred short texts."""

import csv
import random
from pathlib import Path

import yaml

GOOD = ["good", "great", "warm", "clever", "bright", "lovely", "fine", "happy"]
BAD = ["bad", "dull", "cold", "stupid", "grey", "awful", "poor", "sad"]
OTHER = [
    "the",
    "film",
    "a",
    "story",
    "of",
    "and",
    "with",
    "its",
    "actors",
    "scene",
    "plot",
    "this",
    "that",
    "was",
    "end",
]


def texts(number: int, *, seed: int) -> list[tuple[str, int]]:
    """(text, label): a few words decide the label, between others that do not."""
    choose = random.Random(seed)
    rows = []
    for _ in range(number):
        label = choose.randrange(2)
        words = choose.choices(OTHER, k=choose.randint(3, 20)) + choose.choices((BAD, GOOD)[label], k=2)
        choose.shuffle(words)
        rows.append((" ".join(words), label))
    return rows


def write_data(folder: Path, *, train: int = 240, validation: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, number, seed in (("train", train, 1), ("validation", validation, 2)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(texts(number, seed=seed))
    return folder


def study(path: Path, /, **recipe: object) -> dict[str, object]:
    """Plain data of the study; keywords replace parts of its recipe."""
    return {
        "study": "tiny",
        "version": 1,
        "recipe": {
            "model": {"name": "oelm-gpt", "preset": "mini-128", "causal": False, "pooling": "mean"},
            "data": {
                "task": "sst2",
                "path": str(path),
                "max_length": 32,
                "validation": 40,
                "tokenizer": {"train": "bpe", "vocab": 300},
            },
            "budget": {"steps": 12},
            "batch": {"size": 8},
            "optimizer": {"lr": 1e-3},
            "schedule": {"name": "linear", "warmup": 0.1},
            "evaluate": {"every": 4},
            "checkpoint": {"every": 4},
            **recipe,
        },
        "arms": {
            "baseline": {"init": "keep", "freeze": "none"},
            "oelm-freeze": {"init": "orthogonal", "scale": "unit", "freeze": "qk"},
        },
        "seeds": [0, 1],
        "compare": {"baseline": "baseline", "metric": "accuracy"},
    }


def language_study(folder: Path, *, max_length: int, **recipe: object) -> dict[str, object]:
    """The same as language modeling: the texts one after the other, in windows."""
    text = folder / "text.txt"
    text.write_text("<|endoftext|>".join(words for words, _ in texts(400, seed=3)), encoding="utf-8")
    content = study(text, **{"model": {"name": "oelm-gpt", "preset": "mini-128"}, **recipe})
    content["recipe"]["data"] |= {"task": "text", "max_length": max_length}
    content["compare"]["metric"] = "perplexity"
    return content


def write_study(folder: Path, content: dict[str, object]) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def make(folder: Path, **recipe: object) -> Path:
    """Data and study file in a folder; returns the file."""
    return write_study(folder, study(write_data(folder / "data"), **recipe))
