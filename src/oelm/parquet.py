"""Parquet files, opened only if what they say of their own size can be: Arrow believes it, and takes the memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import parquet

# Of a file of n bytes. A column that repeats one value takes next to nothing, whatever its length.
_MOST_ROWS = 10_000  # times n
_MOST_BYTES = 1_000  # times n, of a row group when it is unpacked
_SMALL = 2**20  # what is below is taken to be of this size


def open_parquet(source: Path | bytes, *, read_dictionary: Sequence[str] = ()) -> parquet.ParquetFile:
    """A file, or its content. Raises what Arrow raises, also if it says of itself what cannot be."""
    import pyarrow as pa
    from pyarrow import parquet

    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    opened = pa.BufferReader(source) if isinstance(source, bytes) else source
    file = parquet.ParquetFile(opened, pre_buffer=False, read_dictionary=list(read_dictionary))
    problem = _find_problem(file.metadata, max(size, _SMALL))
    if problem is not None:
        file.close()
        raise pa.ArrowInvalid(problem)
    return file


def _find_problem(metadata: parquet.FileMetaData, size: int) -> str | None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if any(group.num_rows < 0 for group in groups) or sum(group.num_rows for group in groups) != metadata.num_rows:
        return "its row groups do not have the rows that the file says it has"
    if metadata.num_rows > _MOST_ROWS * size:
        return f"it says that it has {metadata.num_rows:,} rows in {size:,} bytes"
    # Not of single columns: asked about damaged ones, Arrow ends the process.
    unpacked = max((group.total_byte_size for group in groups), default=0)
    if unpacked > _MOST_BYTES * size:
        return f"it says that {size:,} bytes unpack to {unpacked:,}"
    return None
