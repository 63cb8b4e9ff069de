"""Fair timing: arms take turns on one machine, and what is told is the ratio of their step times."""
