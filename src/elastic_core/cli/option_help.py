"""The help of `elastic run`: the most used options, all options, or one option in full."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from textwrap import TextWrapper
from typing import Final

import click

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import VARIABLE_PREFIX, RunOption
from elastic_core.options.choices import Section
from elastic_core.options.hook_options import all_hook_options, hook_flags
from elastic_core.options.table import BY_DEST, OPTIONS
from elastic_core.plugins.conversion import wanted
from elastic_core.plugins.discovery import OUR_DISTRIBUTIONS
from elastic_core.plugins.hook_flags import installed_options
from elastic_core.plugins.missing import CORE, options_elsewhere

USUAL: Final = frozenset(
    """
    nproc_per_node module no_python nnodes standalone rdzv_backend rdzv_endpoint rdzv_id rdzv_conf node_rank
    master_addr master_port max_restarts policy log_dir redirects tee run_dir dry_run debug_rank
    """.split()  # noqa: SIM905  # as many words as half a page of code would be
)
"""The options that `elastic run --help` explains. Of others it lists only the names."""
_DOCS: Final = "docs/reference/run.md"
_WIDEST_NAME: Final = 26


def option_names(option: RunOption) -> list[str]:
    """Return the option's spellings for help: its letter, then its name with dashes."""
    return [f"-{option.short}", f"--{option.flag}"] if option.short else [f"--{option.flag}"]


def write_options(formatter: click.HelpFormatter, *, everything: bool) -> None:
    """Write the options by heading: all of them, or the most used ones and a list of the others."""
    every = [*OPTIONS, *all_hook_options()]
    shown = [option for option in every if everything or option.name in USUAL]
    for heading in dict.fromkeys((*map(str, Section), *(option.heading for option in shown))):
        _write(formatter, heading, [_entry(each, variable=everything) for each in shown if each.heading == heading])
    listed: dict[str, list[str]] = {}
    for option in every:
        if option not in shown:
            listed.setdefault(_group(option), []).append(f"--{option.flag}")
    _list(formatter, "More options, which elastic help OPTION explains", listed)
    elsewhere = options_elsewhere([option.flag for option in every])
    _list(formatter, "With distributions that are not installed", elsewhere)
    of_help = [("-h, --help", "Show the most used options and exit."), ("--help-all", "Show all options and exit.")]
    _write(formatter, "Help", of_help)


def _write(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows, col_max=_WIDEST_NAME)


def _list(formatter: click.HelpFormatter, heading: str, flags: Mapping[str, Sequence[str]]) -> None:
    # Options must not be broken at hyphens.
    if flags:
        with formatter.section(heading):
            indent = " " * formatter.current_indent
            wrapper = TextWrapper(
                formatter.width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            )
            for group, names in flags.items():
                formatter.write(wrapper.fill(f"{group}: {', '.join(names)}") + "\n")


def _group(option: RunOption) -> str:
    # `Hangs (elastic-watch)` for an option of a plugin.
    entry = None if option.name in BY_DEST else installed_options().claimed(option.flag)
    if entry is None or entry.distribution == option.heading:
        return option.heading
    return f"{option.heading} ({entry.distribution})"


def _entry(option: RunOption, *, variable: bool) -> tuple[str, str]:
    default = option.default_note or option.default_text
    facts = [f"default: {default}"] if default and option.value_name else []
    facts += ["repeatable"] if option.many else []
    facts += [option.env_name] if option.env_name and variable else []
    shown = f"  [{'; '.join(facts)}]" if facts else ""
    return f"{', '.join(option_names(option))} {option.value_name}".rstrip(), option.help + shown


def named_option(word: str, commands: Iterable[str]) -> RunOption | None:
    """Return the option of a name, an unambiguous prefix, a letter or a variable. `None` means `--help`.

    The error may suggest one of `commands` too.

    Raises:
        ConfigError: No option has the name, or several have the prefix.
        PluginError: The distribution of the option is not installed.
    """
    from elastic_core.cli.arguments import UnknownOptionError, find_option

    name = word.removeprefix(VARIABLE_PREFIX).lower().lstrip("-").partition("=")[0]
    for option in OPTIONS:
        if name and word in (f"-{option.short}", option.env_name):
            return option
    with suppress(UnknownOptionError):
        if name:  # without one, each option would have the prefix
            return None if word == "-h" else find_option(f"--{name}")
    near = nearest(name.replace("_", "-"), [*commands, *(option.flag for option in OPTIONS), *hook_flags()])
    raise ConfigError(
        f"elastic help {word or repr(word)}: no such command or option", hint=f"elastic help {near}".rstrip()
    )


def explanation(option: RunOption, width: int) -> list[str]:
    """Return the lines that explain one option."""
    entry = None if option.name in BY_DEST else installed_options().claimed(option.flag)
    distribution = CORE if entry is None else entry.label
    ours = entry is None or entry.distribution in OUR_DISTRIBUTIONS
    free = option.type == "str" and not option.choices
    takes = option.value_name if free else wanted(option) if option.value_name else "none, the option is a flag"
    default = option.default_note or option.default_text or "none"
    facts = {
        "Value": f"{takes}{'; repeatable' if option.many else ''}",
        "Default": default if option.value_name else "off",
        "Variable": option.env_name + ("" if option.value_name else "=1") if option.env_name else "none",
        "Spellings": ", ".join(option.spellings) if len(option.spellings) > 1 else "",
        "Distribution": distribution,
        "torchrun": "has the same option" if option.torch else "has no such option",
        "Docs": f"{_DOCS}, section {option.heading!s}" if ours else "",
    }
    formatter = click.HelpFormatter(width=width)
    formatter.write(f"{', '.join(option_names(option))} {option.value_name}".rstrip() + "\n\n")
    with formatter.indentation():
        formatter.write_text(option.help)
        formatter.write_paragraph()
        formatter.write_dl([(name, text) for name, text in facts.items() if text])
    return formatter.getvalue().rstrip("\n").split("\n")
