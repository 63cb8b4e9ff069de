"""`oelm data`: what is in a file, a folder, a task, a data set of the hub or a study, before anything is trained."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo
from oelm.data.own import HubName, find_on_hub, name_columns
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.summary import DataSummary, Example, guess_task, summarize_source, summarize_splits
from oelm.data.tasks import TASKS, task_named
from oelm.errors import DataError, did_you_mean
from oelm.facts import Overlap
from oelm.format import escape_controls, finite_or_none, format_columns, format_count

_SHOWN = 300  # characters of a text
_LABELS = 30  # lines of them
_FEWEST = 10  # of which a tenth can be held out
_COLUMNS = ("text", "text_a", "text_b", "label")


def data(
    data: Annotated[str, typer.Argument(help="File, folder, task, hub data set (owner/name), or study")],
    task: Annotated[
        str | None, typer.Option(help="Read it as: classification, pairs, regression, text, or a task by name")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Other column, e.g. text=review (repeatable)")
    ] = None,
    config: Annotated[str | None, typer.Option(help="Configuration of a hub data set")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Show rows, labels, lengths, overlap and examples of data, before training on them"""
    columns = _parse_columns(column or [])
    found = _summarize(data, task, columns, config)
    if as_json:
        echo(json.dumps(finite_or_none(found.to_dict()), indent=2))
    else:
        echo(f"{data}: " + "\n".join(_lines(found)))
        if not _is_study(data):
            echo(f"\nin a study: {_study_line(data, found, columns, config)}")


def _parse_columns(options: list[str]) -> dict[str, str]:
    columns = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _COLUMNS or not value:
            raise DataError(f"--column {option} is not NAME=COLUMN", hint=f"NAME is one of {', '.join(_COLUMNS)}")
        columns[name] = value
    return columns


def _summarize(data: str, task: str | None, columns: Mapping[str, str], config: str | None) -> DataSummary:
    path = Path(data).expanduser()
    if path.exists() and not _is_study(data):
        name = task or guess_task(path, columns)
        return summarize_source(find_source(name_columns(task_named(name), columns), data))
    if data in TASKS and (task is None or task == data):
        return summarize_source(find_source(name_columns(TASKS[data], columns), None))
    if _is_study(data):
        return _summarize_study(data, task, columns)
    if "/" in data and not data.startswith((".", "/", "~")) and not path.suffix:
        own = name_columns(task_named(task or "classification"), columns)
        return summarize_source(find_source(find_on_hub(own, HubName(repo=data, config=config)), None))
    raise DataError(
        f"there is no such file, folder, task or study: {data}{did_you_mean(data, [*TASKS, *_shipped()])}",
        hint="a data set of the hub is owner/name; oelm studies ls lists studies",
    )


def _is_study(data: str) -> bool:
    return Path(data).suffix in (".yaml", ".yml") or (data not in TASKS and data in _shipped())


def _shipped() -> Mapping[str, Path]:
    from oelm.study.shipped import shipped_studies

    return shipped_studies()


def _summarize_study(name: str, task: str | None, columns: Mapping[str, str]) -> DataSummary:
    from oelm.study.data_task import source_of
    from oelm.study.load import load_study

    if task is not None or columns:
        raise DataError("--task and --column go with data: a study says them itself", hint=f"oelm data {name}")
    config = load_study(name).recipe.data
    return summarize_splits(
        SplitReader(
            source_of(config), config.validation, overlap=config.overlap, group=config.group, limit=config.limit
        )
    )


def _study_line(data: str, found: DataSummary, columns: Mapping[str, str], config: str | None) -> str:
    """What a study says to train on the same."""
    said: dict[str, object] = {} if found.task in ("classification", "pairs") else {"task": found.task}
    is_local = Path(data).expanduser().exists()
    if is_local or data not in TASKS:
        said |= {"path": data} if is_local else {"hub": data}
    said |= {"config": config} if config else {}
    said |= {"columns": f"{{{', '.join(f'{name}: {value}' for name, value in columns.items())}}}"} if columns else {}
    if found.kind == "language-modeling" and (is_local or data not in TASKS):  # where only the study says how many
        said["validation"] = max(1, min(1000, found.splits["train"].rows // 10))
    return f"data: {{{', '.join(f'{name}: {value}' for name, value in said.items())}}}"


# -- as text ------------------------------------------------------------------------------------------------------


def _lines(found: DataSummary) -> Iterator[str]:
    labels = f", {format_count(len(found.labels), 'label')}" if found.labels else ""
    where = f", {found.hub}" if found.hub is not None else ""
    yield f"{found.kind}, text in {' and '.join(found.columns)}{labels}{where}"
    yield ""
    heads = ("least", "5 %", "median", "95 %", "most")
    rows: list[tuple[str, ...]] = [("split", "rows", "", *heads)]
    for name, split in found.splits.items():
        rows.append((name, f"{split.rows:,}", "characters", *(f"{number:,}" for number in split.characters)))
        rows.append(("", "", "words", *(f"{number:,}" for number in split.words)))
        if split.numbers:
            rows.append(("", "", "label", *(f"{number:.4g}" for number in split.numbers)))
    yield from format_columns(rows, left=("split", ""))
    if found.held_out:
        whom = "each" if len(found.held_out) > 1 else "it"
        too_few = ", for which these are too few" if next(iter(found.splits.values())).rows < _FEWEST else ""
        roles = " and ".join(found.held_out)
        yield f"no file of {roles}: a study holds out up to a tenth of the rows for {whom}{too_few}"
    if found.labels:
        yield ""
        yield from _label_lines(found)
    yield ""
    yield from _overlap_lines(found.overlap, len(found.splits))
    yield ""
    for example in found.examples:
        yield _example_line(example)


def _label_lines(found: DataSummary) -> Iterator[str]:
    first = next(iter(found.splits.values()))
    most = sorted(found.labels, key=lambda name: -first.labels[name])[:_LABELS]
    rows: list[tuple[str, ...]] = [("label", *found.splits)]
    for name in (name for name in found.labels if name in most):
        rows.append((_shorten(name), *(f"{split.labels[name]:,}" for split in found.splits.values())))
    yield from format_columns(rows, left=("label",))
    if len(found.labels) > _LABELS:
        yield f"and {len(found.labels) - _LABELS} more, all of them with --json"


def _overlap_lines(overlap: tuple[Overlap, ...], splits: int) -> Iterator[str]:
    shared = [one for one in overlap if one.exact or one.near]
    for one in shared:
        yield f"{one.exact:,} of {one.texts:,} texts of {one.split} are also in {one.other}, {one.near:,} nearly"
    if not shared:
        yield "no text is in two splits" if splits > 1 else "one split, so no overlap"


def _example_line(example: Example) -> str:
    said = " ".join(example.label) if isinstance(example.label, tuple) else example.label
    label = "" if said is None else f"[{_shorten(str(said))}] "
    return label + " | ".join(map(_shorten, example.texts))


def _shorten(text: str) -> str:
    shown = escape_controls(text[:_SHOWN]).replace("\n", "\\n").replace("\t", "\\t")
    return shown + (" ..." if len(text) > _SHOWN else "")
