"""Tables: the rows of files in Parquet, Arrow, CSV, TSV and JSON, validated for their task. Some say the labels."""

import codecs
import json as builtin_json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, json, parquet

from oelm.data.labels import check_spread, convert_labels, index_labels, name_classes
from oelm.data.sources import (
    MOST_UNPACKED,
    PACKAGED,
    TABLES,
    TAGGED,
    TEXTS,
    Source,
    packed_of,
    plain_name,
    shown_path,
    shown_row,
)
from oelm.data.tasks import Task
from oelm.errors import DataError, did_you_mean
from oelm.parquet import open_parquet

# Of CSV and JSON read at a time: a row has to fit, and the next size is tried where it does not. Arrow determines the
# types of columns from the first block, so it is the first of these that counts for all other files.
_BLOCK_SIZES = (2**20, 2**24, 2**28)
_TOO_LONG = ("straddling object", "Empty CSV file or block")
_MAX_DEPTH = 100  # levels of JSON
_BLOCK = 2**20  # bytes of JSON whose depth is measured at a time
_MAX_COLUMNS = 1000
_STRINGS = re.compile(rb'"((?:[^"\\\n]++|\\.)*+)"(\s*+:)?')  # of JSON: (content, what makes it a key)
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"\n'))


def read_rows(source: Source, split: str, *, group: str | None = None) -> pa.Table:
    """The validated rows of a split: `text` or `text_a` and `text_b`, `label`, and the `group` if asked."""
    tables = [_columns(read_table(path, source.task), source, path, group=group) for path in source.files[split]]
    rows = pa.concat_tables(tables)
    if source.task.package is not None and not source.local:
        rows = rows.combine_chunks()
    where = ", ".join(map(shown_path, source.files[split][:3]))
    if rows.num_rows == 0:
        raise DataError(f"the split '{split}' of task '{source.task.name}' is empty", where=where)
    return rows


def find_labels(source: Source) -> Source:
    """The source with what its task leaves to the training rows: whether they have one or two texts, and the labels."""
    task = source.task
    if not task.is_own or task.has_found_labels:
        return source
    tables = {path: read_table(path, task) for path in source.files["train"]}
    first, *_ = tables
    task = replace(task, columns=_text_columns(tables[first], task, first, may_be_pairs=True))
    labels = pa.concat_arrays([own_labels(table, task, path) for path, table in tables.items()])
    where = f"{shown_path(first)}, column '{_label_column(tables[first], task, first)}'"
    if task.kind == "regression":
        check_spread(labels, where=where)
    else:
        names = name_classes(pc.unique(labels).to_pylist(), where=where)
        task = replace(task, labels=names, has_found_labels=True)
    return replace(source, task=task)


def has_labels(source: Source, split: str) -> bool:
    """Whether there are labels at all: test sets of benchmarks have none, or -1 in all rows."""
    for path in source.files[split]:
        table = read_table(path, source.task)
        values = table[source.task.label] if source.task.label in table.column_names else None
        if values is not None and values.null_count < len(values):
            return not pa.types.is_integer(values.type) or pc.max(values).as_py() >= 0
    return False


def stream_rows(source: Source, path: Path) -> Iterator[pa.Table]:
    """The validated rows of one file, some at a time where the format allows it."""
    first = 0
    for table in _tables(path, source.task):
        yield _columns(table, source, path, first=first)
        first += table.num_rows


def _tables(path: Path, task: Task) -> Iterator[pa.Table]:
    """The rows of a file; a Parquet file is streamed."""
    if path.suffix.lower() != ".parquet":
        yield read_table(path, task)
        return
    try:
        check_shape(path)
        with open_parquet(path) as file:
            for batch in file.iter_batches():
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"cannot read {shown_path(path)} as parquet", why=_shorten(error)) from error


def read_table(path: Path, task: Task) -> pa.Table:
    """The rows of a file as they are."""
    extension = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{shown_path(path)} is empty", hint="check that the download completed")
        if extension in (*TEXTS, *TAGGED):
            raise DataError(
                f"{shown_path(path)} is plain text; task '{task.name}' needs columns", hint=", ".join(TABLES)
            )
        check_shape(path)
        for block_size in _BLOCK_SIZES:
            try:
                table = _read_table(path, task, block_size)
                _check_column_names(table, path)
                return table
            except pa.ArrowInvalid as error:
                if path.stat().st_size <= block_size or not any(words in str(error) for words in _TOO_LONG):
                    raise
        unclosed = "; or close a quotation mark that makes one row of many" if extension == ".csv" else ""
        raise DataError(
            f"{shown_path(path)} has a row of more than {_BLOCK_SIZES[-1] // 2**20} MB", hint=f"split it{unclosed}"
        )
    except (pa.ArrowException, ValueError, AttributeError, OverflowError, RecursionError) as error:
        where, why, hint = None, _shorten(error), "check that the file is complete"
        if wrong := re.search(r"Expected \d+ columns, got \d+: (.*)", str(error)):
            marks = "a tab between columns" if extension == ".tsv" else "quotation marks around a text with commas"
            where, hint = _line_of(path, wrong[1]), f"in every row the columns of the header, and {marks}"
        elif changed := re.search(r"Column\(/(.*)\) changed from (\w+) to (\w+)", why):
            hint = _explain_types(*changed.groups())
        if extension in (".jsonl", ".json"):  # Arrow counts from 0, in every block anew
            whole = path.stat().st_size <= _BLOCK_SIZES[0]
            why = re.sub(r" in row (\d+)", lambda row: f" in row {int(row[1]) + 1}" if whole else "", why)
        hint = explain_encoding(path) or _explain_separator(path) or hint
        raise DataError(
            f"cannot read {shown_path(path)} as {extension[1:]}", where=where, why=why, hint=hint
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {shown_path(path)} as {extension[1:]}", why=_shorten(error)) from error


def _explain_separator(path: Path) -> str | None:
    """What to do with columns that are separated otherwise than the name of their file says."""
    right = {".csv": b",", ".tsv": b"\t"}.get(path.suffix.lower())
    header = _header(path) if right is not None else b""
    if right is None or right in header:
        return None
    ways = {
        b"\t": "its columns are separated by tabs: name it .tsv",
        b";": "its columns are separated by semicolons: save it with commas, and quotation marks around texts",
        b",": "its columns are separated by commas: name it .csv",
    }
    return next((way for separator, way in ways.items() if separator in header), None)


def _explain_header(path: Path, names: Sequence[str]) -> str | None:
    """What to do with a table whose first line does not look like the names of columns."""
    is_row = path.suffix.lower() in (".csv", ".tsv") and any(len(name.split()) > 3 for name in names)
    missing = "is the header missing? The first line names the columns, such as text and label"
    return _explain_separator(path) or (missing if is_row else None)


def _explain_types(column: str, *types: str) -> str:
    """What to do with a column of JSON lines that changes its type."""
    if "label" in column:
        return "labels that are all names, or all numbers"
    if {*types} == {"string", "number"}:
        return f"column '{column}' has texts and numbers: put quotation marks around the numbers"
    return f"values of one type in column '{column}'"


def _line_of(path: Path, row: str) -> str | None:
    """Where a row is that Arrow quotes, whose end it may leave out."""
    with path.open("rb") as file:
        start = row.removesuffix(" ...").rstrip("\r").encode()
        is_cut = row.endswith(" ...")
        lines = ((number, line if is_cut else line.rstrip(b"\r\n")) for number, line in enumerate(file, 1))
        number = next((number for number, line in lines if line == start or (is_cut and line.startswith(start))), None)
    return None if number is None else f"line {number:,}"


def _read_table(path: Path, task: Task, block_size: int) -> pa.Table:
    extension = path.suffix.lower()
    if extension == ".parquet":
        with open_parquet(path) as file:
            return file.read()
    if extension == ".arrow":
        return _read_arrow(path)
    if extension == ".json" and _is_array(path):
        return _read_list(path)
    if extension in (".jsonl", ".json"):
        return json.read_json(
            path,
            read_options=json.ReadOptions(block_size=block_size),
            parse_options=json.ParseOptions(newlines_in_values=False),
        )
    right = {"seq2seq": (task.label, "source", "target")}.get(task.kind, (task.label, "label") if task.is_own else ())
    tabs = extension == ".tsv"  # as in GLUE, where quotation marks are plain characters
    return csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=block_size),
        parse_options=csv.ParseOptions(
            delimiter="\t" if tabs else ",", quote_char=False if tabs else '"', newlines_in_values=not tabs
        ),
        # Otherwise texts that look like numbers or dates would be converted.
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys((*task.columns, "text", "text_a", "text_b", *right), pa.string())
        ),
    )


def _read_arrow(path: Path) -> pa.Table:
    most, size, batches = MOST_UNPACKED * max(2**20, path.stat().st_size), 0, []
    with _open_arrow(path) as reader:
        number = getattr(reader, "num_record_batches", None)  # of a file; a stream is read to its end
        for batch in reader if number is None else map(reader.get_batch, range(number)):
            batches.append(batch)
            size += batch.nbytes
            if size > most:
                raise ValueError(f"more than {MOST_UNPACKED:,} times as large when it is unpacked")
        table = pa.Table.from_batches(batches, reader.schema)
    table.validate(full=True)  # before anything follows its offsets
    return table


def _read_list(path: Path) -> pa.Table:
    rows = builtin_json.loads(path.read_bytes())
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"element {number} of the list is not an object")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _open_arrow(path: Path) -> Any:
    """A file, or the stream that `save_to_disk` of the datasets library writes."""
    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.memory_map(str(path)))


def _is_array(path: Path) -> bool:
    """Whether the rows of JSON are the elements of a list, and not its lines."""
    with path.open("rb") as file:
        return file.read(_BLOCK).lstrip().startswith(b"[")


def check_shape(path: Path) -> None:
    """Refuse what no table of texts looks like, before Arrow makes every column of it for every row."""
    extension = path.suffix.lower()
    if extension in (".jsonl", ".json"):
        _check_json(path)
    elif extension == ".parquet":
        _check_width(path, parquet.read_metadata(path).num_columns)
    elif extension == ".arrow":
        with _open_arrow(path) as reader:
            _check_width(path, len(reader.schema))
    else:
        _check_width(path, 1 + _header(path).count(b"\t" if extension == ".tsv" else b","))


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        lines = iter(partial(file.readline, _BLOCK_SIZES[-1]), b"")
        return next((line for line in lines if line.strip()), b"")


def _check_width(path: Path, columns: int) -> None:
    if columns > _MAX_COLUMNS:
        raise DataError(
            f"{shown_path(path)} has more than {_MAX_COLUMNS:,} columns",
            why="every key of JSON, and every field of a column, is a column of its own",
            hint="keep those that the task needs, such as text and label",
        )


def _check_json(path: Path) -> None:
    """Refuse JSON that is nested too deeply or has too many keys: Arrow takes minutes for it, or dies of it."""
    line, opened = 1, 0
    keys: set[bytes] = set()
    with path.open("rb") as file:
        while block := file.read(_BLOCK) + file.readline(_BLOCK_SIZES[-1]):
            brackets = _brackets(block)
            levels, left = _match_brackets(b"{" * opened + brackets.replace(b"\n", b""))
            too_deep = _line_too_deep(brackets, opened) if levels + left > _MAX_DEPTH else None
            if too_deep is not None:
                raise DataError(
                    f"{shown_path(path)} is nested more than {_MAX_DEPTH} levels deep",
                    where=f"line {line + too_deep:,}",
                    hint='a row is a line such as {"text": "some words", "label": 0}',
                )
            line, opened = line + block.count(b"\n"), left
            for string in _STRINGS.finditer(block):
                if string[2] and string[1] not in keys:
                    keys.add(string[1])
                    _check_width(path, len(keys))


def _brackets(block: bytes) -> bytes:
    """The brackets of JSON outside of its strings, all as "{" and "}", and the line ends, where every string ends."""
    block = block.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_STRUCTURE)
    return re.sub(rb'"[^"\n]*"?', b"", block).translate(bytes.maketrans(b"[]", b"{}"))


def _match_brackets(brackets: bytes) -> tuple[int, int]:
    """(levels of brackets that are opened and closed, those that stay open); up to what is too deep."""
    for level in range(_MAX_DEPTH + 1):
        outer = brackets.replace(b"{}", b"")
        if outer == brackets:
            return level, brackets.count(b"{")
        brackets = outer
    return _MAX_DEPTH + 1, brackets.count(b"{")


def _line_too_deep(brackets: bytes, depth: int) -> int | None:
    """The number of the line, from 0, that goes too deep, if one does."""
    for place, one in enumerate(brackets):
        depth = max(0, depth + {ord("{"): 1, ord("}"): -1}.get(one, 0))
        if depth > _MAX_DEPTH:
            return brackets.count(b"\n", 0, place)
    return None


def _columns(table: pa.Table, source: Source, path: Path, *, group: str | None = None, first: int = 0) -> pa.Table:
    task = source.task
    if table.num_rows == 0:
        raise DataError(f"{shown_path(path)} has no rows")
    if task.package is not None and not source.local:
        table = table.filter(pc.equal(table["source"], PACKAGED[task.package][2]))
    _check_column_names(table, path)
    texts = _text_columns(table, task, path)
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(_output_names(texts), texts, strict=True):
        values = table[column]
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            hint = f"quotation marks around numbers, or another column: data: {{columns: {{{name}: NAME}}}}"
            raise DataError(f"column '{column}' must be text, got {values.type}", where=shown_path(path), hint=hint)
        if values.null_count:
            missing = shown_row(path, first + values.is_null().index(True).as_py())
            raise DataError(
                f"column '{column}' has {values.null_count} missing values, the first in {missing}",
                where=shown_path(path),
                hint="remove rows without a text",
            )
        if not _is_utf8(values):
            raise DataError(
                f"column '{column}' is not valid UTF-8", where=shown_path(path), hint=explain_encoding(path)
            )
        if task.is_own and (row := pc.index(pc.utf8_trim_whitespace(values), "").as_py()) >= 0:
            raise DataError(
                f"column '{column}' has an empty text in {shown_row(path, first + row)}",
                where=shown_path(path),
                hint="remove rows without a text",
            )
        columns[name] = values.cast(pa.large_string())
    if task.kind != "language-modeling":
        columns["label"] = _labels(table, task, path)
    if group is not None:
        columns["group"] = group_column(table, group, path)
    return pa.table(columns)


def _text_columns(table: pa.Table, task: Task, path: Path, *, may_be_pairs: bool = False) -> tuple[str, ...]:
    """The names of one or two columns of text, as the task has them or as any local file may.

    Whether the rows of a task for one text are pairs after all, one file says for all others.
    """
    have = table.column_names
    default, pair = _output_names(task.columns), ("text_a", "text_b")
    usual = [] if task.only_these_columns else [default]
    if may_be_pairs and task.columns == ("text",) and not task.only_these_columns:
        usual += [pair]
    for names in (task.columns, *usual):
        if set(names) <= set(have):
            return names
    missing = next(name for name in task.columns if name not in have)
    raise DataError(
        f"no column {' and '.join(task.columns)} for task '{task.name}'{did_you_mean(missing, have)}",
        where=f"{shown_path(path)}, with the columns {_shorten(', '.join(have[:12]))}",
        why="the training rows have one text each" if task.is_own and set(pair) <= set(have) else None,
        hint=_explain_header(path, have)
        or f"name them {' and '.join(default)}, or say which they are: "
        f"data: {{columns: {{{', '.join(f'{name}: NAME' for name in default)}}}}} in a study, "
        f"{' '.join(f'--column {name}=NAME' for name in default)} for oelm data",
    )


def _output_names(texts: Sequence[str]) -> tuple[str, ...]:
    return ("text_a", "text_b") if len(texts) == 2 else ("text",)


def group_column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    """What the rows of a table are held out together by."""
    where = f"{shown_path(path)}, recipe.data.group"
    if name not in table.column_names:
        have = _shorten(", ".join(table.column_names[:12]))
        raise DataError(f"no column '{name}' to group by", where=where, why=f"the columns are {have}")
    values = table[name]
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not (is_text and _is_utf8(values)) and not pa.types.is_integer(values.type):
        raise DataError(f"column '{name}' must hold names or numbers of groups, got {values.type}", where=where)
    if values.null_count:
        raise DataError(f"column '{name}' has {values.null_count} missing values", where=where)
    return values.cast(pa.large_string())


def _check_column_names(table: pa.Table, path: Path) -> None:
    try:
        names = table.column_names
    except UnicodeDecodeError as error:
        what = "the column names are not valid UTF-8"
        raise DataError(what, where=shown_path(path), why=_shorten(error), hint=explain_encoding(path)) from error
    duplicate = next((name for name, times in Counter(names).items() if times > 1), None)
    if duplicate is not None:
        raise DataError(f"duplicate column '{_shorten(duplicate)}'", where=shown_path(path))


def _is_utf8(values: pa.ChunkedArray) -> bool:
    try:
        for chunk in values.chunks:
            chunk.validate(full=True)
    except ValueError:
        return False
    return True


def _label_column(table: pa.Table, task: Task, path: Path) -> str:
    usual = (task.label,) if task.only_these_columns else (task.label, "label")
    name = next((name for name in usual if name in table.column_names), None)
    if name is None:
        raise DataError(
            f"no column '{task.label}' for task '{task.name}'{did_you_mean(task.label, table.column_names)}",
            where=f"{shown_path(path)}, with the columns {_shorten(', '.join(table.column_names[:12]))}",
            hint=_explain_header(path, table.column_names)
            or "name it label, or say which it is: data: {columns: {label: NAME}} in a study, "
            "--column label=NAME for oelm data",
        )
    return name


def own_labels(table: pa.Table, task: Task, path: Path) -> pa.Array:
    """Names, or the numbers of a regression."""
    name = _label_column(table, task, path)
    values = table[name]
    if table.num_rows == 0:
        raise DataError("the file has no rows", where=shown_path(path), hint="check that it is complete")
    if not _is_utf8(values):
        raise DataError(f"column '{name}' is not valid UTF-8", where=shown_path(path), hint=explain_encoding(path))
    return convert_labels(values, task, path=path, where=f"{shown_path(path)}, column '{name}'")


def _labels(table: pa.Table, task: Task, path: Path) -> pa.ChunkedArray:
    name = _label_column(table, task, path)
    if task.is_own:
        own = own_labels(table, task, path)
        where = f"{shown_path(path)}, column '{name}'"
        return pa.chunked_array([own if task.kind == "regression" else index_labels(own, task, path=path, where=where)])
    values = table[name]
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        if not _is_utf8(values):
            raise DataError(f"column '{name}' is not valid UTF-8", where=shown_path(path), hint=_classes(task))
        numbers = pc.index_in(values.cast(pa.large_string()), pa.array(task.labels, pa.large_string()))
        bad = numbers.is_null()
    elif pa.types.is_integer(values.type):
        numbers = values.cast(pa.int64(), safe=False)
        bad = pc.fill_null(pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(task.labels))), True)
    else:
        raise DataError(
            f"column '{name}' must hold labels, got {values.type}", where=shown_path(path), hint=_classes(task)
        )
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise DataError(
            f"label {_shorten(repr(values[row].as_py()))} in {shown_row(path, row)} "
            f"is not a label of task '{task.name}'",
            where=f"{shown_path(path)}, column '{name}'",
            hint=_classes(task),
        )
    return numbers.cast(pa.int64())


def _classes(task: Task) -> str:
    return ", ".join(f"{number} ({label})" for number, label in enumerate(task.labels))


def explain_encoding(path: Path) -> str | None:
    """What to do with a text file that is not UTF-8: UTF-16, as some spreadsheets write it, or one byte a character."""
    if path.suffix.lower() in (".parquet", ".arrow"):
        return None
    with path.open("rb") as file:
        is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if is_utf16:
        return f"{_iconv(path, 'UTF-16')}\nas it is UTF-16"
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while block := file.read(_BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return f"{_iconv(path, 'WINDOWS-1252')}\nif that is its encoding"
    return None


def _iconv(path: Path, encoding: str) -> str:
    """The command, ready to paste, that writes a file in UTF-8 beside it."""
    given = packed_of(path)
    iconv, made = f"iconv -f {encoding} -t UTF-8", quote(str(given.with_name(f"utf8-{plain_name(given)}")))
    unpack = "zstd" if given.suffix.lower() == ".zst" else "gzip"
    return (
        f"{iconv} {quote(str(path))} > {made}"
        if given == path
        else f"{unpack} -dc {quote(str(given))} | {iconv} > {made}"
    )


def _shorten(text: object) -> str:
    return " ".join(str(text).split())[:300]
