"""Treat a model, train it, audit it, save it and load it back."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification

import oelm

# Random weights, to run offline. A pretrained model is treated the same way:
# model = AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased")
config = BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)
model = BertForSequenceClassification(config)

applied = oelm.apply(model, init="orthogonalize", scale="unit", freeze="qk", layers="all", seed=0)
print(applied)

# After apply, and only of what learns: the optimizer never sees a frozen tensor.
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
tokens, labels = torch.randint(1000, (8, 32)), torch.randint(2, (8,))
for _ in range(5):
    model(input_ids=tokens, labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(applied.audit(optimizer=optimizer).check())  # raises AuditFailed if a single frozen bit moved

with tempfile.TemporaryDirectory() as folder:
    applied.save_pretrained(folder)  # a checkpoint that plain transformers loads, and oelm.json beside it
    loaded, _ = oelm.from_pretrained(folder)  # frozen again, and verified against the recorded hashes
print(f"{len(oelm.find_heads(loaded))} heads, furthest from orthonormal:")
print(max(oelm.orthonormality(loaded), key=lambda head: head.deviation))

applied.undo()  # queries and keys bit for bit as before apply; what training changed elsewhere stays
