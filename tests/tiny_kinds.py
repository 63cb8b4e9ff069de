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
    content = study(save_bert(folder / "bert", texts), write_tokens(folder / "data"), "tokens", "entity_f1")
    content["recipe"]["optimizer"]["lr"] = 1e-2  # so that it finds some entities
    return content


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


# -- sequence to sequence -----------------------------------------------------------------------------------------


def sequences(number: int, *, seed: int) -> list[dict[str, str]]:
    """The names of a text, in order."""
    rows = sentences(number, seed=seed)
    named = (" ".join(w for w, tag in zip(words, tags, strict=True) if tag != "O") for words, tags in rows)
    return [{"source": " ".join(words), "target": names} for (words, _), names in zip(rows, named, strict=True)]


def write_sequences(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number, seed in (("train", 120, 1), ("validation", 20, 2), ("test", 30, 3)):
        write_json(folder / f"{split}.jsonl", sequences(number, seed=seed))
    return folder


def save_seq2seq(folder: Path, texts: list[str], *, family: str = "t5") -> Path:
    words = tokenizer(texts, single="$A [SEP]")
    ids = dict(vocab_size=len(words), pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id)
    torch.manual_seed(0)
    if family == "t5":
        sizes = dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
        config = transformers.T5Config(**sizes, **ids, decoder_start_token_id=words.pad_token_id)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        layers = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
        widths = dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64)
        starts = dict(decoder_start_token_id=words.eos_token_id, bos_token_id=words.cls_token_id)
        config = transformers.BartConfig(**layers, **widths, **ids, **starts, num_beams=4)
        model = transformers.BartForConditionalGeneration(config)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def seq2seq_study(folder: Path, *, family: str = "t5") -> dict[str, object]:
    texts = [row["source"] for row in sequences(120, seed=1)]
    model = save_seq2seq(folder / family, texts, family=family)
    return study(model, write_sequences(folder / "data"), "seq2seq", "rougeL", max_target=12)
