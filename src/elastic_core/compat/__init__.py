"""Torch's module paths, by ours (`elastic_core.compat.elastic.events` …): the modules are those of elastic-torchrun."""

from elastic_core.errors import PluginError
from elastic_core.plugins.torch_side import torch_part

try:
    torch_part("compat", needed_by="elastic_core.compat")()
except PluginError as error:
    raise ImportError(str(error)) from None
