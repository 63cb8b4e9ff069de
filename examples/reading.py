"""Read what `oelm run quickstart` left behind. No torch is needed."""

import oelm

results = oelm.load("runs/quickstart")
print(results.table())  # pandas, a row a cell
print(results.compare("oelm-frames", against="baseline", metric="accuracy"))  # the verdict, with its interval
print(*results.checks, sep="\n")  # what is wrong with the comparison
print(*results.excluded, sep="\n")  # what could not be read, and why
