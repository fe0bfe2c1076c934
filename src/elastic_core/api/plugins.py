"""Names for plugins that are modules with hookimpls, or that load plugins."""

from elastic_core.plugins.conversion import ResolvedOptions as ResolvedOptions
from elastic_core.plugins.conversion import resolve_options as resolve_options
from elastic_core.plugins.discovery import PluginEntry as PluginEntry
from elastic_core.plugins.discovery import find_entries as find_entries
from elastic_core.plugins.entry_import import import_entry as import_entry
from elastic_core.plugins.entry_import import plugin_refusal as plugin_refusal
from elastic_core.plugins.hookspecs import hookimpl as hookimpl
from elastic_core.plugins.loading import check_plugin as check_plugin
