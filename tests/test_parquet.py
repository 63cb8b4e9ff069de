"""Parquet files that say of themselves what cannot be: a few bytes that would take all the memory there is."""

import pyarrow as pa
import pytest
from pyarrow import parquet

import oelm
from oelm.data.sources import find_source
from oelm.data.tables import read_rows, stream_rows
from oelm.data.tasks import task_named
from oelm.parquet import open_parquet
from oelm.runs.files import digest_file
from oelm.runs.layout import PREDICTIONS
from oelm.runs.predictions import read_predictions

ROWS = 12
CLAIMED = 197_689_013_876


def varint(number: int) -> bytes:
    """As Thrift writes a whole number that is not negative."""
    number, found = 2 * number, []
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def write_bomb(path, *, rows=CLAIMED):
    """Twelve rows, in a row group that says it has more than there is memory for."""
    parquet.write_table(pa.table({"text": ["a text of words"] * ROWS, "label": [0, 1] * (ROWS // 2)}), path)
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    number = b"\x16" + varint(ROWS)  # a field of 64 bits, next to the one before
    at = footer.rindex(number)
    footer = footer[:at] + b"\x16" + varint(rows) + footer[at + len(number) :]
    path.write_bytes(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def test_a_file_that_claims_more_rows_than_it_has_is_refused_before_it_is_read(tmp_path):
    assert parquet.read_metadata(write_bomb(tmp_path / "bomb.parquet")).row_group(0).num_rows == CLAIMED
    for source in (tmp_path / "bomb.parquet", (tmp_path / "bomb.parquet").read_bytes()):
        with pytest.raises(pa.ArrowInvalid, match="its row groups do not have the rows"):
            open_parquet(source)
    good = open_parquet(write_bomb(tmp_path / "good.parquet", rows=ROWS))
    assert good.read().num_rows == ROWS


def test_data_and_predictions_refuse_it(tmp_path):
    (tmp_path / "validation.csv").write_text("text,label\ngood,1\nbad,0\n")
    where = {"train": str(write_bomb(tmp_path / "train.parquet")), "validation": str(tmp_path / "validation.csv")}
    source = find_source(task_named("sst2"), where)
    for read in (lambda: read_rows(source, "train"), lambda: list(stream_rows(source, source.files["train"][0]))):
        with pytest.raises(oelm.DataError, match=r"train\.parquet as parquet"):
            read()
    bomb = write_bomb(tmp_path / PREDICTIONS)
    with pytest.raises(oelm.CellError, match="is damaged"):
        read_predictions(tmp_path, digest_file(bomb))


def test_one_value_a_million_times_is_good(tmp_path):
    parquet.write_table(pa.table({"label": pa.array([1] * 10**6)}), tmp_path / "same.parquet")
    assert (tmp_path / "same.parquet").stat().st_size < 10**5
    assert open_parquet(tmp_path / "same.parquet").read().num_rows == 10**6


def test_damaged_statistics_of_a_column_are_no_traceback(tmp_path):
    """Wherever a byte of the footer is another one, Arrow's own kinds of errors are all that comes of it."""
    parquet.write_table(pa.table({"text": ["a text", None] * 6, "label": [0, 1] * 6}), tmp_path / "good.parquet")
    content = (tmp_path / "good.parquet").read_bytes()
    refused = 0
    for at in range(len(content) - 8 - int.from_bytes(content[-8:-4], "little"), len(content) - 8):
        for value in (0, 1, 255):
            changed = content[:at] + bytes([value]) + content[at + 1 :]
            try:
                open_parquet(changed).read(use_threads=False)
            except (pa.ArrowException, OSError, ValueError):
                refused += 1
    assert refused
