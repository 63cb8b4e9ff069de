"""Train a treated model with transformers.Trainer, audited on the way."""

import tempfile

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, Trainer, TrainingArguments

import oelm

# Random weights, to run offline; or AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-70m") with "orthogonalize".
config = GPTNeoXConfig(
    vocab_size=256, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
)
model = GPTNeoXForCausalLM(config)
applied = oelm.apply(model, init="orthogonal", freeze="qk", seed=0)

tokens = torch.randint(256, (64, 32))
dataset = [{"input_ids": row, "labels": row} for row in tokens]

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=10,
        save_steps=5,
        learning_rate=1e-3,
        report_to="none",
        use_cpu=not torch.accelerator.is_available(),
    )
    # Audits at the start, at every save and at the end; a frozen bit that moves stops the training at once.
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[oelm.AuditCallback(applied)])
    trainer.train()
    applied.save_pretrained(f"{folder}/final")
print(applied.audit(optimizer=trainer.optimizer).check())
