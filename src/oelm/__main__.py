"""`python -m oelm`: the same as `oelm`."""

from oelm.cli.main import main

main()
