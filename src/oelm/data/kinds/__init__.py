"""Kinds of tasks beside classification and language modeling, a module each."""
