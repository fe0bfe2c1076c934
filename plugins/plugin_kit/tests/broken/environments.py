"""Environments that are wrong in one way each, and the tests of their kit that must say so."""

import os
import random
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from broken.plugins import broken
from elastic_core.api import API_VERSION, ConfigError, Environment, Proposal

ENVIRONMENTS = []
KEPT = []
"""What some of them leave open."""
VARIABLES = {"ACME_JOB": "job7", "ACME_NODES": "2", "ACME_NODE": "1", "ACME_FILE": "/proc/loadavg"}


class Acme(Environment):
    """What the broken ones are made of."""

    api_version = API_VERSION
    title = "Acme"

    def propose(self, given):
        nodes, node = self.number("ACME_NODES"), self.number("ACME_NODE")
        return [
            self.known("nnodes", nodes, "ACME_NODES"),
            self.known("node_rank", node, "ACME_NODE", contradiction=f"this is Acme's node {node}", must=True),
            self.known("rdzv_backend", "c10d", "ACME_JOB"),
            self.known("rdzv_endpoint", "n1:29400", "ACME_JOB"),
            self.known("rdzv_id", self.variables["ACME_JOB"], "ACME_JOB"),
        ]

    def known(self, option, value, variable, **more):
        return Proposal(option=option, value=value, reason=variable, **more)

    def number(self, variable):
        text = self.variables.get(variable, "")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConfigError(f"{variable}={text!r} is no number", hint=f"{variable}=1")
        return text


@broken(ENVIRONMENTS, "the_api_version_is_stated")
class InheritsItsVersion(Acme):
    pass


@broken(ENVIRONMENTS, "the_title_can_be_typed")
class HasSpacesInItsTitle(Acme):
    title = "Acme "


@broken(ENVIRONMENTS, "the_title_can_be_typed")
class IsCalledNone(Acme):
    title = "None"


@broken(ENVIRONMENTS, "proposals_are_sound", "what_is_typed_stands", "odd_values_end_well")
class ProposesTwice(Acme):
    def propose(self, given):
        return [*super().propose(given), self.known("nnodes", "2", "ACME_NODES")]


@broken(ENVIRONMENTS, "proposals_are_sound", "what_is_typed_stands", "odd_values_end_well")
class ProposesANumber(Acme):
    def known(self, option, value, variable, **more):
        return super().known(option, 2 if option == "nnodes" else value, variable, **more)


@broken(ENVIRONMENTS, "proposals_are_sound", "what_is_typed_stands", "odd_values_end_well")
class MustWithoutALine(Acme):
    def known(self, option, value, variable, contradiction="", **more):
        return super().known(option, value, variable, **more)


@broken(ENVIRONMENTS, "options_are_known")
class MisspellsAnOption(Acme):
    def propose(self, given):
        return [*super().propose(given), self.known("nnode", "2", "ACME_NODES")]


@broken(ENVIRONMENTS, "lines_are_lines", "what_is_typed_stands", "odd_values_end_well")
class ReasonsInTwoLines(Acme):
    def known(self, option, value, variable, **more):
        return super().known(option, value, f"{variable}\nof Acme", **more)


@broken(ENVIRONMENTS, "odd_values_end_well")
class QuotesWhatItRead(Acme):
    def propose(self, given):
        self.notices = [f"this is job {self.variables['ACME_JOB']}"]
        return super().propose(given)


@broken(ENVIRONMENTS, "odd_values_end_well")
class RefusesInTwoLines(Acme):
    def number(self, variable):
        text = self.variables.get(variable, "")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise ConfigError(f"{variable}={text} is no number")
        return text


@broken(ENVIRONMENTS, "it_asks_nobody")
class AsksTheNetwork(Acme):
    def propose(self, given):
        socket.getaddrinfo("127.0.0.1", 80)
        return super().propose(given)


@broken(ENVIRONMENTS, "it_asks_nobody")
class AsksACommand(Acme):
    def propose(self, given):
        with suppress(OSError):
            subprocess.run(["/nowhere/acmectl"], check=False)
        return super().propose(given)


@broken(ENVIRONMENTS, "it_asks_nobody")
class ReadsAFile(Acme):
    def propose(self, given):
        Path("/proc/loadavg").read_text()
        return super().propose(given)


@broken(ENVIRONMENTS, "the_same_variables_have_the_same_proposals")
class DrawsLots(Acme):
    def known(self, option, value, variable, **more):
        return super().known(option, f"n1:{random.randrange(2**32)}" if ":" in value else value, variable, **more)


@broken(ENVIRONMENTS, "the_same_variables_have_the_same_proposals")
class LooksAroundIt(Acme):
    """Reads the process's own variables."""

    def propose(self, given):
        self.notices = ["there is a job"] if "ACME_JOB" in os.environ else []
        return super().propose(given)


@broken(ENVIRONMENTS, "it_changes_nothing")
class ChangesWhatWasGiven(Acme):
    def propose(self, given):
        if isinstance(given, dict):
            given.pop("role", None)
        return super().propose(given)


@broken(ENVIRONMENTS, "it_changes_nothing")
class ChangesTheVariables(Acme):
    def propose(self, given):
        self.variables["ACME_SEEN"] = "1"
        return super().propose(given)


@broken(ENVIRONMENTS, "it_changes_nothing", "it_asks_nobody")
class ChangesTheProcess(Acme):
    def propose(self, given):
        os.environ["ACME_SEEN"] = os.environ.get("ACME_SEEN", "") + "1"
        return super().propose(given)


@broken(ENVIRONMENTS, "what_is_typed_stands")
class RefusesWhatWasTyped(Acme):
    def propose(self, given):
        if "nnodes" in given:
            raise ConfigError("nobody may type --nnodes here")
        return super().propose(given)


@broken(ENVIRONMENTS, "what_is_typed_stands")
class ReadsWhatWasTyped(Acme):
    def propose(self, given):
        int(given.get("nnodes", "1"))
        return super().propose(given)


@broken(ENVIRONMENTS, "odd_values_end_well")
class TrustsItsVariables(Acme):
    def number(self, variable):
        return str(int(self.variables.get(variable, "0")))


@broken(ENVIRONMENTS, "odd_values_end_well")
class NeedsAVariable(Acme):
    def propose(self, given):
        self.variables["ACME_FILE"]
        return super().propose(given)


@broken(ENVIRONMENTS, "it_leaves_nothing", "it_asks_nobody")
class LeavesAFileOpen(Acme):
    def propose(self, given):
        KEPT.append(Path("/proc/loadavg").open())  # noqa: SIM115
        return super().propose(given)


@broken(ENVIRONMENTS, "proposals_are_sound", "lines_are_lines", "it_asks_nobody", "it_changes_nothing",
        "options_are_known", "the_same_variables_have_the_same_proposals", "what_is_typed_stands",
        "odd_values_end_well", "it_leaves_nothing", "nothing_heavy_is_imported_on_the_way")  # fmt: skip
class AnswersAMapping(Acme):
    def propose(self, given):
        return {each.option: each.value for each in super().propose(given)}


class Stubborn(Acme):
    """What only a run finds: no test of the kit but that of a dry run."""

    api_version = API_VERSION

    def number(self, variable):
        return "two" if variable == "ACME_NODES" else super().number(variable)
