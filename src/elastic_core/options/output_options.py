"""The options for the workers' output and the run's files."""

import os
from pathlib import Path
from typing import Final

from elastic_core.logger import TIMES
from elastic_core.option_spec import RunOption
from elastic_core.options.choices import Choices, Draft, Section, section
from elastic_core.options.readers import comma_list, size_bytes
from elastic_core.processes.output.layout import Std, parse_ranks, parse_std
from elastic_core.types import Record

_PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_SMALLEST_FILE_BYTES = 1 << 10
_MOST_BACKUPS = 1000  # each rotation renames all of them


class OutputSettings(Record, frozen=True, kw_only=True):
    """Where the workers' output and the run's own files go."""

    log_dir: str | None = None
    """`None` means not given; `os.devnull` means no log files."""
    redirects: str = "0"
    tee: str = "0"
    local_ranks_filter: str = ""
    log_line_prefix_template: str | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    """Lines of tee'd stdout that contain one of these are copied to a file of the round. Empty means no copies."""
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    """The entry point of group `torchrun.logs_specs` that sets where output goes. `None` means our own layout."""
    log_max_bytes: int | None = None
    """The size at which a log file is rotated. `None` means no rotation."""
    log_backups: int = 5
    run_dir: str | None = None
    log_times: str = "off"


LOGS: Final = section(
    Section.LOGS,
    RunOption(
        name="log_dir",
        metavar="DIR",
        help="Base directory of log files; each run makes its own directory in it. /dev/null: no log files.",
        default_note="the run directory",
        torch=True,
        field="output.log_dir",
    ),
    RunOption(
        name="redirects",
        metavar="STD",
        help="Streams that go to a file and not to the console: 0 none, 1 stdout, 2 stderr, 3 both. RANK:STD,... sets "
        "single local ranks.",
        default="0",
        short="r",
        torch=True,
        field="output.redirects",
    ),
    RunOption(
        name="tee",
        metavar="STD",
        help="Streams that go to a file and to the console; values as for --redirects.",
        default="0",
        short="t",
        torch=True,
        field="output.tee",
    ),
    RunOption(
        name="local_ranks_filter",
        metavar="RANKS",
        help="Local ranks with output on the console, such as 0,2; files are not affected.",
        default="",
        default_note="all",
        torch=True,
        field="output.local_ranks_filter",
    ),
    RunOption(
        name="log_line_prefix_template",
        metavar="TEXT",
        help="Prefix of each tee'd line. ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced; any other "
        f"${{name}} stays. If the option is not given, {_PREFIX_VARIABLE} is used.",
        default="",
        default_note="[${role_name}${local_rank}]:",
        torch=True,
        field="output.log_line_prefix_template",
    ),
    RunOption(
        name="duplicate_stdout_filters",
        metavar="TEXTS",
        help="Copy lines of tee'd stdout that contain one of these texts, such as loss,lr, to filtered_stdout.log. "
        "',,' is a comma within a text.",
        default="",
        default_note="none",
        torch=True,
        field="output.duplicate_stdout_filters",
    ),
    RunOption(
        name="duplicate_stderr_filters",
        metavar="TEXTS",
        help="The same for stderr, to filtered_stderr.log.",
        default="",
        default_note="none",
        torch=True,
        field="output.duplicate_stderr_filters",
    ),
    RunOption(
        name="log_max_size",
        metavar="SIZE",
        help="Rotate a worker's log file before it exceeds this size, such as 100M (K, M, G), at the end of a line: "
        "stdout.log becomes stdout.log.1. Redirected streams then pass through the agent.",
        default_note="no limit",
        field="output.log_max_bytes",
    ),
    RunOption(
        name="log_backups",
        type="int",
        help="How many rotated log files are kept with --log-max-size; 0: none.",
        default=5,
        least=0,
        most=_MOST_BACKUPS,
        field="output.log_backups",
        read=Choices.value,
    ),
    RunOption(
        name="logs_specs",
        metavar="NAME",
        help="Installed class that decides where output goes: the entry point NAME of group torchrun.logs_specs.",
        default_note="files as described here",
        torch=True,
        field="output.logs_specs",
    ),
    RunOption(
        name="log_times",
        help="Local time before each line of the agent: time is 14:03:07, iso is 2026-11-26T14:03:07+01:00. Lines of "
        "workers stay as they are.",
        default="off",
        choices=tuple(TIMES),
        field="output.log_times",
        read=Choices.value,
    ),
    RunOption(
        name="run_dir",
        metavar="DIR",
        help="Directory for the files and the incident report of this run; kept after success too.",
        default_note="a temporary one, removed on success",
        field="output.run_dir",
    ),
)


def resolve_logs(draft: Draft, nproc: int) -> None:
    """Set the fields for logs.

    Raises:
        ConfigError: A value is malformed, or a directory cannot be used.
    """
    choices = draft.choices
    streams = {dest: _streams(draft, dest, nproc) for dest in ("redirects", "tee")}
    ranks = choices.text("local_ranks_filter") or ""
    parse_ranks(ranks, nproc, option=draft.name("local_ranks_filter"))
    draft.take("local_ranks_filter", ranks)
    for dest in ("log_dir", "run_dir"):
        folder = choices.text(dest) or None
        if folder is not None and folder != os.devnull:
            _check_folder(choices, dest, Path(folder))
        draft.take(dest, folder)
    draft.take("logs_specs", choices.text("logs_specs") or None)
    own_layout = not choices.text("logs_specs")  # a class may use another layout
    shown = parse_ranks(ranks, nproc)
    teed = {rank: std for rank, std in streams["tee"].items() if shown is None or rank in shown}
    for dest, stream in (("duplicate_stdout_filters", Std.OUT), ("duplicate_stderr_filters", Std.ERR)):
        texts = comma_list(choices.text(dest) or "")
        draft.take(dest, texts)
        if texts and own_layout:
            _notice_idle_filter(draft, dest, teed=any(std & stream for std in teed.values()))
    draft.settle(LOGS)
    _rotation(draft, any(std for each in streams.values() for std in each.values()) or not own_layout)
    _prefix(draft)


def _prefix(draft: Draft) -> None:
    dest = "log_line_prefix_template"
    draft.take(dest, draft.choices.text(dest) or None)
    inherited = draft.environ.get(_PREFIX_VARIABLE)
    if inherited and draft.fields["output.log_line_prefix_template"] is None:
        draft.set("output.log_line_prefix_template", inherited, f"env {_PREFIX_VARIABLE}")


def _streams(draft: Draft, dest: str, nproc: int) -> dict[int, Std]:
    text = draft.choices.text(dest) or "0"
    streams = parse_std(text, nproc, option=draft.name(dest) if draft.choices.chosen(dest) else f"--{dest}")
    draft.take(dest, text)
    return streams


def _notice_idle_filter(draft: Draft, dest: str, *, teed: bool) -> None:
    label = draft.choices.label(dest)
    if not teed:
        draft.notice(f"{label} has no effect: that stream of no worker is tee'd to the console (--tee)")
    elif draft.choices.text("log_dir") == os.devnull:
        draft.notice(f"{label} has no effect: with --log-dir {os.devnull} there are no log files")


def _rotation(draft: Draft, has_streams: bool) -> None:
    choices = draft.choices
    limited = bool(choices.text("log_max_size"))
    size = size_bytes(choices, "log_max_size", at_least=_SMALLEST_FILE_BYTES) if limited else None
    draft.take("log_max_size", size)
    if limited and (not has_streams or choices.text("log_dir") == os.devnull):
        draft.notice(f"{choices.label('log_max_size')} has no effect: no stream goes to a file")
    elif choices.chosen("log_backups") and not limited:
        draft.notice(f"{choices.label('log_backups')} has no effect without --log-max-size")


def _check_folder(choices: Choices, dest: str, folder: Path) -> None:
    # Checked before the run starts.
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        choices.reject(dest, f"a directory ({error.strerror})", cause=error)
    if not there.is_dir():
        what = "a directory, this is a file" if there == folder else f"a directory, {str(there)!r} above it is a file"
        choices.reject(dest, what, hint="another path")
    if not os.access(there, os.W_OK | os.X_OK):
        choices.reject(
            dest, f"a directory that can be written; {str(there)!r} is read-only for us", hint="another path"
        )
