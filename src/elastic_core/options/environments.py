"""Values that the detected environments propose for options that the user did not give."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices, Given, Proposed
from elastic_core.options.table import BY_DEST, chosen_elsewhere
from elastic_core.plugins.discovery import (
    ENVIRONMENTS_ELSEWHERE,
    ENVIRONMENTS_GROUP,
    PluginEntry,
    environments_here,
    find_entries,
)
from elastic_core.plugins.entry_import import HOOK_LIMIT, limit_of, only_claim, plugin_refusal
from elastic_core.plugins.environment import Environment, Proposal, fault_of_answer
from elastic_core.plugins.loading import LoadedPlugin, build

NONE: Final = "none"
"""The value of `--environment` that disables all proposals."""


def proposals(given: Given, environ: Mapping[str, str]) -> tuple[dict[str, Proposed], list[str]]:
    """Return the proposed values by option identifier, and lines for the user.

    Options that the user gave are left out.

    The variables in `environ` show which environments apply.

    Raises:
        ConfigError: Two environments contradict each other, an environment rejects this agent, or an option has a value
            that cannot work there.
        PluginError: An environment is broken.
    """
    choices = Choices(given, environ, BY_DEST)
    wanted = (choices.text("environment") or "").strip().lower()
    entries = environments_here(environ)
    if wanted == NONE or not (entries or wanted):
        return {}, [] if wanted or choices.chosen("nnodes") else list(_unread(environ))
    found = [(entry, _built(entries, entry, environ)) for entry in entries]
    chosen = [(entry, each) for entry, each in found if wanted in ("", each.title.lower())]
    if not chosen:
        names = ", ".join(each.title.lower() for _, each in found) or "none is"
        hint = f"leave it out, or {NONE}"
        if (ours := f"elastic-env-{wanted}") in ENVIRONMENTS_ELSEWHERE.values() and not any(
            each.distribution == ours for each in find_entries(ENVIRONMENTS_GROUP)
        ):
            from elastic_core.plugins.missing import install_hint

            hint = install_hint(ours)
        choices.reject("environment", f"one that is detected ({names})", hint=hint)
    return _merged(chosen, _texts(choices, given))


def proposed_values(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values that `elastic run` would use here for options that were not given, as typed.

    Args:
        given: The given options, identifier to text; an option's variable counts too.
        environ: Environment variables.

    Raises:
        ConfigError: An option contradicts the environment, or no agent can start here.
        PluginError: An environment is broken.
    """
    return {dest: proposed.text for dest, proposed in proposals(given, environ)[0].items()}


def _unread(environ: Mapping[str, str]) -> Iterator[str]:
    for variable, distribution in ENVIRONMENTS_ELSEWHERE.items():
        if environ.get(variable, "1") not in ("", "1"):
            from elastic_core.plugins.missing import install_hint

            what = f"{variable}={environ[variable]}, and nothing that is installed reads it: this node trains alone"
            yield f"{what}. Try: {install_hint(distribution)}"


def _built(entries: Sequence[PluginEntry], entry: PluginEntry, environ: Mapping[str, str]) -> Environment:
    only_claim(each for each in entries if each.name == entry.name)
    return LoadedPlugin(entry, HOOK_LIMIT).make_environment(environ)


def _texts(choices: Choices, given: Given) -> dict[str, str]:
    texts = {dest: value for dest, value in given.items() if isinstance(value, str)}
    for dest in dict.fromkeys((*choices.options, *chosen_elsewhere(given, choices.environ))):
        if dest not in choices.options:
            texts.setdefault(dest, "1")  # an option of a hook: its value is not known without importing it
        elif choices.chosen(dest):
            option = choices.options[dest]
            texts[dest] = ",".join(choices.texts(dest)) if option.many else choices.text(dest) or ""
            if option.type == "bool":
                texts[dest] = "1" if choices.flag(dest) else ""
    return texts


def _merged(
    found: Sequence[tuple[PluginEntry, Environment]], texts: Mapping[str, str]
) -> tuple[dict[str, Proposed], list[str]]:
    taken: dict[str, Proposed] = {}
    notices: list[str] = []
    for entry, environment in found:
        for proposal in _asked(entry, environment, texts):
            earlier = taken.get(proposal.option)
            if proposal.option in texts:
                notices += _contradiction(proposal, texts[proposal.option])
            elif earlier is None:
                taken[proposal.option] = Proposed(environment.title, proposal.value, proposal.reason)
            elif earlier.text != proposal.value:
                raise _disagreement(earlier, environment.title, proposal)
        notices += environment.notices
    return taken, notices


def _asked(entry: PluginEntry, environment: Environment, texts: Mapping[str, str]) -> Iterator[Proposal]:
    from elastic_core.plugins.hook_flags import installed_options

    made = build(entry, limit_of(entry, HOOK_LIMIT), lambda: environment.propose(texts), "propose")
    answer = cast("Sequence[Proposal]", made)
    if fault := fault_of_answer(answer, environment.notices):
        raise plugin_refusal(entry, fault)
    hooks = installed_options().flags
    yield from (each for each in answer if each.option in BY_DEST or each.option.replace("_", "-") in hooks)


def _contradiction(proposal: "Proposal", text: str) -> list[str]:
    if not proposal.contradiction or text.strip() == proposal.value:
        return []
    if proposal.must:
        raise ConfigError(proposal.contradiction)
    return [proposal.contradiction]


def _disagreement(earlier: Proposed, title: str, proposal: "Proposal") -> ConfigError:
    option = proposal.option.replace("_", "-")
    return ConfigError(
        f"{earlier.title} and {title} are detected, and --{option} would be {earlier.text!r} ({earlier.reason}) and "
        f"{proposal.value!r} ({proposal.reason})",
        hint=f"--environment {title.lower()}, {earlier.title.lower()} or {NONE}",
    )
