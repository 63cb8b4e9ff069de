"""Lines about cells, on a screen and in the log of a cell."""

from oelm.study.cells import Cell
from oelm.train.progress import LineProgress, log_to_file


def test_the_log_of_a_cell_counts_no_cells(tmp_path):
    """It said [1/1] where the screen said [2/2]."""
    said = []
    screen, first, second = LineProgress(2, said.append), Cell(arm="a", seed=0), Cell(arm="b", seed=0)
    screen.on_cell_start(first, step=0, total=12)
    screen.on_cell_end(first, status="done")
    with log_to_file(screen, tmp_path / "log") as progress:
        progress.on_cell_start(second, step=0, total=1)
        progress.on_evaluation_end(1, {"loss": 0.5})
    assert said[0] == "[1/2] a/seed-0: 12 steps"
    assert said[2] == "[2/2] b/seed-0: 1 step"
    kept = [line.split("  ", 1)[1] for line in (tmp_path / "log").read_text().splitlines()]
    assert kept[0] == "b/seed-0: 1 step"
    assert "study" not in kept[1]
