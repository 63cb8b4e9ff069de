"""Attacks on oelm, repeatable by a seed: kills, races, full disks, damaged and hostile files (docs/reliability.md)."""
