"""Studies of the other kinds of tasks that train in seconds: made files, tiny models, a tokenizer of whole words."""

import json
import random
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import tiny_study

NAMES = {"PER": [["Ada"], ["Alan", "Turing"], ["Grace", "Hopper"]], "LOC": [["Paris"], ["New", "York"], ["Rome"]]}
SAID = ["today", "we", "saw", "a", "letter", "from", "near", "and", "rain", "in", "the", "garden", "of", "."]


def sentences(number: int, *, seed: int) -> list[tuple[list[str], list[str]]]:
    """(words, tags): names between other words."""
    choose = random.Random(seed)
    rows = []
    for _ in range(number):
        words, tags = [], []
        for _ in range(choose.randint(2, 4)):
            some = choose.choices(SAID, k=choose.randint(1, 4))
            words += some
            tags += ["O"] * len(some)
            kind = choose.choice(sorted(NAMES))
            name = choose.choice(NAMES[kind])
            words += name
            tags += [f"B-{kind}"] + [f"I-{kind}"] * (len(name) - 1)
        rows.append((words, tags))
    return rows


def conll(rows: list[tuple[list[str], list[str]]]) -> str:
    blocks = ["\n".join(f"{word} X {tag}" for word, tag in zip(*row, strict=True)) for row in rows]
    return "-DOCSTART- -X- O\n\n" + "\n\n".join(blocks) + "\n"


def write_tokens(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number, seed in (("train", 120, 1), ("validation", 30, 2), ("test", 40, 3)):
        (folder / f"{split}.conll").write_text(conll(sentences(number, seed=seed)), encoding="utf-8")
    return folder


def tokenizer(texts: list[str], *, pairs: str = "[CLS] $A [SEP] $B:1 [SEP]:1", single: str = "[CLS] $A [SEP]"):
    """A token a word, or a mark of punctuation."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special, show_progress=False))
    ids = [("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pairs, special_tokens=ids)
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="[SEP]", **names)


def save_bert(folder: Path, texts: list[str], **config: object) -> Path:
    """A pretrained model, as far as anyone can tell."""
    words = tokenizer(texts)
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    settings = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=64, pad_token_id=0, **sizes)
    transformers.BertModel(settings).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def study(model: Path, data: Path, task: str, metric: str, **more: object) -> dict[str, object]:
    """As plain data, with two arms and two seeds."""
    content = tiny_study.study(data)
    recipe = content["recipe"]
    recipe["model"] = {"name": str(model)}
    recipe["data"] = {"task": task, "path": str(data), "max_length": 32, **more}
    recipe["budget"], recipe["evaluate"], recipe["checkpoint"] = {"steps": 6}, {"every": 6}, {"every": 6}
    content["arms"]["oelm-freeze"]["init"] = "orthogonalize"
    content["compare"] = {"baseline": "baseline", "metric": metric, "min_effect": 0.5, "because": "it is a test"}
    return content


def tokens_study(folder: Path) -> dict[str, object]:
    texts = [" ".join(words) for words, _ in sentences(120, seed=1)]
    return study(save_bert(folder / "bert", texts), write_tokens(folder / "data"), "tokens", "entity_f1")


def write_json(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# -- question answering -------------------------------------------------------------------------------------------


def questions(number: int, *, seed: int, unanswerable: bool = False) -> list[dict[str, object]]:
    """As the hub has them: who or what is somewhere?"""
    choose = random.Random(seed)
    rows = []
    for _ in range(number):
        places = choose.sample([" ".join(name) for name in NAMES["LOC"]], 2)
        people = choose.sample([" ".join(name) for name in NAMES["PER"]], 2)
        context = f"{' '.join(choose.choices(SAID, k=choose.randint(1, 6)))} "
        context += " and ".join(f"{who} saw {where}" for who, where in zip(people, places, strict=True)) + " today"
        answer = choose.choice(people)
        if unanswerable and choose.random() < 0.3:
            asked, answers = "Rain?", {"text": [], "answer_start": []}
        else:
            asked = f"what saw {answer}"
            found = places[people.index(answer)]
            answers = {"text": [found], "answer_start": [context.index(f"saw {found}") + 4]}
        rows.append({"id": str(len(rows)), "context": context, "question": asked, "answers": answers})
    return rows


def as_squad(rows: list[dict[str, object]]) -> dict[str, object]:
    """The same as a file of SQuAD."""

    def asked(row):
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        return {"id": row["id"], "question": row["question"], "answers": answers, "is_impossible": not answers}

    return {"version": "v2.0", "data": [{"paragraphs": [{"context": r["context"], "qas": [asked(r)]} for r in rows]}]}


def write_questions(folder: Path, **more: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number, seed in (("train", 120, 1), ("validation", 20, 2), ("test", 30, 3)):
        content = as_squad(questions(number, seed=seed, **more))
        (folder / f"{split}-v2.0.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def qa_study(folder: Path) -> dict[str, object]:
    texts = [f"{row['context']} {row['question']}" for row in questions(120, seed=1)]
    return study(save_bert(folder / "bert", texts), write_questions(folder / "data"), "qa", "answer_f1", overlap="keep")
