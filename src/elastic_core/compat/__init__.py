"""Torch's module paths, by ours (`elastic_core.compat.elastic.events` …): the modules are those of elastic-torchrun."""

from elastic_core.plugins.torch_side import torch_import

torch_import("compat", needed_by="elastic_core.compat")()
