"""An option of a plugin that has the name of a flag of the core: refused with one line, and the core's stays."""

import pytest

from elastic_core.cli.main import main
from elastic_core.options.table import OPTIONS
from elastic_core.plugins.hook_flags import CORE_FLAGS, installed_options
from elastic_core.plugins.listing import list_plugins
from elastic_core.plugins.registry import PluginRegistry


def test_the_flags_of_the_core_are_all_known():
    shorts = {row.short for row in OPTIONS if row.short}
    assert {"h", "help", "help-all", *shorts, *(row.flag for row in OPTIONS)} == CORE_FLAGS


@pytest.fixture
def install(distributions):
    def install(name):
        entries = f"[elastic_core.options]\n{name} = acme_flags:ONE\nacme-sound = acme_flags:TWO\n"
        source = f"""
            from elastic_core.api import RunOption
            ONE = RunOption(name={name.replace("-", "_")!r}, hook="acme_flags:Hook", help="One.")
            TWO = RunOption(name="acme_sound", hook="acme_flags:Hook", help="Two.")
        """
        distributions(f"acme-flags-{name}", entries, acme_flags=source)

    return install


@pytest.mark.parametrize(
    ("name", "shown"),
    [("help", "--help"), ("nnodes", "--nnodes"), ("dry-run", "--dry-run"), ("h", "-h"), ("p", "-p"), ("t", "-t")],
)
def test_a_flag_of_the_core_is_not_a_plugins_to_have(install, name, shown):
    install(name)
    text = f"{shown} is a flag of elastic run itself; expected another name. Try: "
    (status,) = [each.status for each in list_plugins(PluginRegistry()) if each.name == name]
    assert text in status
    options = installed_options()
    assert (options.load(name), options.hook(name.replace("-", "_"))) == (None, None)
    assert name not in options.flags
    found, lines = options.load_all()
    assert "acme_sound" in [each.name for each in found]
    (line,) = [line for line in lines if "acme-flags" in line]
    assert text in line


def test_help_stays_help(install, capsys):
    install("help")
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "Show the most used options and exit." in out
    assert "--acme-sound" in out
