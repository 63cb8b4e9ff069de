"""Head integrity: the tensors that must keep learning whatever is frozen, the task head and the pooler."""

from torch import nn

# Names by which plain torch models call their task head; transformers models say it by their structure.
_HEAD_NAMES = {"classifier", "score", "head", "heads", "lm_head", "fc_out", "qa_outputs", "output_projection"}


def task_head(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of the task head and the pooler, by name."""
    if has_adapters(model):
        return {}  # an adapter method decides itself what of the model learns
    base = getattr(model, "base_model", None)
    structured = isinstance(base, nn.Module)
    in_base = {id(parameter) for parameter in base.parameters()} if isinstance(base, nn.Module) else set()
    found = {}
    for name, parameter in model.named_parameters():
        words = set(name.split("."))
        outside = structured and id(parameter) not in in_base
        if outside or "pooler" in words or (not structured and words & _HEAD_NAMES):
            found[name] = parameter
    get_output = getattr(model, "get_output_embeddings", None)
    output = get_output() if callable(get_output) else None
    if isinstance(output, nn.Module):  # tied to the embeddings, so part of the base too
        ids = {id(parameter) for parameter in output.parameters()}
        found |= {name: parameter for name, parameter in model.named_parameters() if id(parameter) in ids}
    return found


def has_adapters(model: nn.Module) -> bool:
    """Whether PEFT wraps layers of the model."""
    return any(hasattr(module, "base_layer") for module in model.modules())
