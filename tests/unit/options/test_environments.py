"""What environments propose for a run: a variable shows them, and what somebody gave stands against it."""

import sys

import pytest

from elastic_core.cli.dry_run import describe
from elastic_core.errors import ConfigError, PluginError
from elastic_core.options.resolve import resolve
from elastic_core.plugins.listing import list_plugins
from elastic_core.plugins.registry import PluginRegistry

ENTRIES = "[elastic_core.environments]\nACME_JOB = acme_env:Acme\n"
ACME = """
    from elastic_core.api import ConfigError, Environment, Proposal
    class Acme(Environment):
        api_version = 1
        title = "Acme"
        def propose(self, given):
            job = self.variables["ACME_JOB"]
            if job == "refused":
                raise ConfigError("a second agent on this node", hint="one task a node")
            self.notices = [f"given: {sorted(given.items())}"] if job == "tell" else []
            def known(option, value, **more):
                return Proposal(option=option, value=value, reason=f"ACME_{option.upper()}", **more)
            return [
                known("nnodes", self.variables.get("ACME_NODES", "2")),
                known("node_rank", "1", contradiction="this is Acme's node 1. Try: no --node-rank"),
                known("rdzv_backend", "c10d"),
                known("rdzv_endpoint", "n1:29400"),
                known("rdzv_id", job, contradiction="Acme's job has another name", must=True),
                known("module", "1"),
                known("nobodys_option", "1"),
            ]
"""


@pytest.fixture
def install(distributions):
    def install(distribution="acme-env", entries=ENTRIES, **modules):
        distributions(distribution, entries, **modules)

    return install


@pytest.fixture
def acme(install):
    install(acme_env=ACME)


@pytest.fixture
def bare(monkeypatch):
    """Have no environment installed."""
    for module in ("plugins.discovery", "options.environments"):
        monkeypatch.setattr(f"elastic_core.{module}.find_entries", lambda group="": [])


def settled(given=None, **environ):
    return resolve(given or {}, "platform", environ=environ)


def test_values_come_with_the_place_that_they_are_from(acme):
    found = settled(ACME_JOB="job7")
    nodes = found.settings.nodes
    assert (nodes.min_nodes, nodes.max_nodes, nodes.node_rank, nodes.backend) == (2, 2, 1, "c10d")
    assert (nodes.endpoint, nodes.run_id) == ("n1:29400", "job7")
    assert found.settings.entrypoint.module
    assert found.origins["nodes.max_nodes"] == "Acme: ACME_NNODES"
    assert not found.settings.notices
    shown = describe(found, {})
    assert "Acme: ACME_NNODES" in shown
    assert "Acme: ACME_RDZV_ID" in shown


def test_nothing_is_imported_where_its_variable_is_not_set(acme):
    settled({"module": True}, ACME_JOB="")
    assert "acme_env" not in sys.modules


def test_what_somebody_gave_stands_and_what_contradicts_is_a_line(acme):
    found = settled({"nnodes": "1:3", "node_rank": "0"}, ACME_JOB="job7", PET_RDZV_ENDPOINT="n9:1")
    nodes = found.settings.nodes
    assert (nodes.min_nodes, nodes.max_nodes, nodes.node_rank, nodes.endpoint) == (1, 3, 0, "n9:1")
    assert found.settings.notices == ("this is Acme's node 1. Try: no --node-rank",)
    assert not settled({"node_rank": "1"}, ACME_JOB="job7").settings.notices


def test_what_must_not_be_contradicted_is_refused(acme):
    with pytest.raises(ConfigError, match="Acme's job has another name"):
        settled({"rdzv_id": "mine"}, ACME_JOB="job7")
    assert settled({"rdzv_id": "job7"}, ACME_JOB="job7").settings.nodes.run_id == "job7"


def test_an_environment_sees_what_somebody_gave(acme):
    found = settled({"module": True, "allow_mismatch": ("torch", "role"), "spares": "2"}, ACME_JOB="tell", PET_ROLE="a")
    given = [("allow_mismatch", "torch,role"), ("module", "1"), ("role", "a"), ("spares", "2")]
    assert found.settings.notices == (f"given: {given}",)


def test_an_environment_may_refuse_this_agent(acme):
    with pytest.raises(ConfigError, match=r"a second agent on this node\. Try: one task a node"):
        settled(ACME_JOB="refused")


def test_a_value_that_makes_no_sense_names_its_place(acme):
    with pytest.raises(ConfigError, match=r"--nnodes: 'two' by Acme: ACME_NNODES; expected a number of nodes"):
        settled(ACME_JOB="job7", ACME_NODES="two")


def test_nobodys_proposals_are_taken_with_none(acme):
    found = settled({"module": True, "environment": "none"}, ACME_JOB="job7")
    assert found.settings.nodes.max_nodes == 1
    assert "acme_env" not in sys.modules


def test_a_node_of_several_that_would_train_alone_says_so(bare):
    (line,) = settled({"module": True}, SLURM_STEP_NUM_NODES="4").settings.notices
    assert line.startswith(
        "SLURM_STEP_NUM_NODES=4, and nothing that is installed reads it: this node trains alone. Try"
    )
    assert line.endswith("pip install -r sets/slurm.txt, in a checkout of elastic-core")
    assert not settled({"module": True}, SLURM_STEP_NUM_NODES="1").settings.notices
    assert not settled({"module": True, "environment": "none"}, SLURM_STEP_NUM_NODES="4").settings.notices
    assert not settled({"module": True, "nnodes": "1"}, SLURM_STEP_NUM_NODES="4").settings.notices


def test_one_of_ours_that_is_named_and_not_installed_is_said_to_be_so(bare):
    with pytest.raises(
        ConfigError, match=r"'kubernetes'; expected one .* Try: pip install \. \./plugins/env_kubernetes, in"
    ):
        settled({"module": True}, PET_ENVIRONMENT="kubernetes", JOB_COMPLETION_INDEX="0")
    (line,) = settled({"module": True}, ELASTIC_K8S_NNODES="2:4").settings.notices
    assert line.startswith(
        "ELASTIC_K8S_NNODES=2:4, and nothing that is installed reads it: this node trains alone. Try"
    )


def test_two_that_say_different_things_are_refused_until_one_is_named(acme, install):
    entries = ENTRIES.replace("ACME_JOB", "OTHER_POD").replace("acme_env:Acme", "other_env:Other")
    other = """
        from elastic_core.api import Environment, Proposal
        class Other(Environment):
            api_version = 1
            title = "Other"
            def propose(self, given):
                return [Proposal(option="nnodes", value="4", reason="OTHER_PODS")]
    """
    install("other-env", entries, other_env=other)
    both = {"ACME_JOB": "job7", "OTHER_POD": "1"}
    with pytest.raises(ConfigError, match=r"Other and Acme are detected, and --nnodes would be '4' \(OTHER_PODS\) and"):
        settled(**both)
    assert settled(**both, PET_ENVIRONMENT="Acme").settings.nodes.max_nodes == 2
    assert settled({"module": True, "environment": "other"}, **both).settings.nodes.max_nodes == 4
    assert settled({"nnodes": "3"}, **both).settings.nodes.max_nodes == 3
    with pytest.raises(ConfigError, match=r"--environment: 'slurm'; expected one that is detected \(other, acme\)"):
        settled({"environment": "slurm"}, **both)


def test_one_that_does_not_show_is_refused():
    with pytest.raises(ConfigError, match=r"--environment: 'acme'; expected one that is detected \(none is\)"):
        settled({"environment": "acme", "module": True})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise OSError('no')", "importing acme_env:Acme raised OSError: no"),
        ("Acme = 7", "acme_env:Acme is an object of int; expected a subclass of Environment"),
        (ACME.replace("api_version = 1", "api_version = 99"), "states api_version 99"),
        (ACME.replace("job = self", "1 / 0; job = self"), "propose raised ZeroDivisionError"),
        (ACME.replace("return [", "return 7, ["), "propose answered (7, "),
    ],
)
def test_a_broken_one_is_named_with_its_distribution(install, source, words):
    install(acme_env=source)
    with pytest.raises(PluginError) as caught:
        settled(ACME_JOB="job7")
    text = str(caught.value)
    assert words in text
    assert text.startswith("environment 'ACME_JOB' (acme-env 1.2): ")
    assert text.endswith("or leave it out: --environment none")


def test_it_is_listed_with_what_is_wrong_with_it(acme):
    assert [(each.kind, each.status) for each in list_plugins(PluginRegistry()) if each.name == "ACME_JOB"] == [
        ("environment", "loaded")
    ]


def test_a_proposal_chooses_the_hook_whose_option_it_is(install):
    entries = f"{ENTRIES}\n[elastic_core.options]\nacme-requeue = acme_options:REQUEUE\n"
    options = """
        from elastic_core.api import RunOption
        REQUEUE = RunOption(name="acme_requeue", hook="acme_env:Requeue", help="Requeue.", choices=("auto", "off"))
    """
    install(
        entries=entries, acme_env=ACME.replace('"nobodys_option", "1"', '"acme_requeue", "auto"'), acme_options=options
    )
    found = settled(ACME_JOB="job7")
    assert found.settings.hook_options == {"acme_requeue": "auto"}
    assert found.origins["acme_requeue"] == "Acme: ACME_ACME_REQUEUE"
    assert settled({"acme_requeue": "off"}, ACME_JOB="job7").settings.hook_options == {"acme_requeue": "off"}


def test_a_caller_of_the_library_says_all_and_is_proposed_nothing(acme):
    entrypoint = settled({"module": True}).settings.entrypoint
    assert resolve({}, environ={"ACME_JOB": "job7"}, entrypoint=entrypoint).settings.nodes.max_nodes == 1


@pytest.mark.parametrize(
    ("known", "notices", "fault"),
    [
        ("value=2", "[]", "propose answered a Proposal with value 2; expected text"),
        ("value=None", "[]", "propose answered a Proposal with value None; expected text"),
        ("value='2', must='yes'", "[]", "propose answered a Proposal with must 'yes'; expected True or False"),
        ("value='2', contradiction=5", "[]", "propose answered a Proposal with contradiction 5; expected text"),
        ("value='2'", "'a line'", "has notices 'a line'; expected a list of lines"),
        ("value='2'", "[5]", "has notices [5]; expected a list of lines"),
        ("value='2'", "None", "has notices None; expected a list of lines"),
    ],
)
def test_a_proposal_of_wrong_types_is_the_environments_error(install, known, notices, fault):
    install(
        acme_env=f"""
        from elastic_core.api import Environment, Proposal
        class Acme(Environment):
            api_version = 1
            title = "Acme"
            def propose(self, given):
                self.notices = {notices}
                return [Proposal(option="nnodes", reason="ACME_NODES", {known})]
        """
    )
    with pytest.raises(PluginError) as caught:
        settled(ACME_JOB="job7")
    assert fault in str(caught.value)
    assert "acme-env" in str(caught.value)


@pytest.mark.parametrize("second", ["2", "4"])
def test_two_proposals_for_one_option_are_the_environments_error_where_they_differ(install, second):
    install(
        acme_env=f"""
        from elastic_core.api import Environment, Proposal
        class Acme(Environment):
            api_version = 1
            title = "Acme"
            def propose(self, given):
                return [Proposal(option="nnodes", value=value, reason="ACME") for value in ("2", "{second}")]
        """
    )
    if second == "2":
        settings = settled({"module": True, "rdzv_backend": "redis", "rdzv_id": "r"}, ACME_JOB="j").settings
        assert settings.nodes.max_nodes == 2
        return
    with pytest.raises(PluginError, match=r"acme-env.*'2' and '4' for the option 'nnodes'; expected one proposal"):
        settled(ACME_JOB="job7")


@pytest.mark.parametrize("title", ["", "title = 5", "title = ' '"])
def test_an_environment_without_a_title_is_one_line(install, title):
    install(
        acme_env=f"""
        from elastic_core.api import Environment
        class Acme(Environment):
            api_version = 1
            {title}
            def propose(self, given):
                return []
        """
    )
    with pytest.raises(PluginError, match=r"acme_env:Acme has title .*; expected what people call it"):
        settled(ACME_JOB="job7")
