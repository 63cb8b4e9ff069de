"""Fair timing: arms take turns on one machine, and the result is the ratio of their step times."""
