"""Masking: what looks like a secret is not kept, and not shown."""

import re

MASK = "***"
HOW_TO_PASS = "pass it by the environment (HF_TOKEN, WANDB_API_KEY), by ~/.netrc or by an ssh agent"
# Of services that mark theirs, and of the web's two ways to write one down.
_MARKED = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-(?=[\w-]*[A-Za-z0-9]{16})[\w-]{20,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_BEARER = re.compile(r"(?i)(?<![a-z])(bearer\s+)\S{8,}")
_IN_ADDRESS = re.compile(
    r"(?i)([a-z][a-z0-9+.-]*://)(?:[^/\s@:]*:[^/\s@]+|(?<=https://)[^/\s@]+|(?<=http://)[^/\s@]+)@"
)
# By the name before it. `tokens` and `tokenizer` are no such names.
_PASSWORD = re.compile(r"(?i)(?<![a-z])((?:password|passwd|passphrase)[\"']?\s*[=:]\s*)[^\s,;&}]+")
_NAMED = re.compile(r"(?i)(?<![a-z])((?:token|secret|key|apikey|auth)[\"']?\s*[=:]\s*[\"']?)([\w+/.~-]{16,}=*)")


def mask_secrets(text: str) -> str:
    """A text without what looks like a token, a key or a password in it."""
    text = _IN_ADDRESS.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _PASSWORD.sub(rf"\1{MASK}", text)
    text = _NAMED.sub(lambda found: found[1] + (MASK if _looks_random(found[2]) else found[2]), text)
    return _MARKED.sub(MASK, text)


def has_secret(text: str) -> bool:
    return mask_secrets(text) != text


def _looks_random(text: str) -> bool:
    """Letters and digits, as no word has them."""
    return re.search(r"\d", text) is not None and re.search(r"[A-Za-z]", text) is not None
