"""Torch's module paths under this package (`elastic_core.compat.elastic.events` …), by elastic-torchrun."""

from elastic_core.plugins.torch_side import torch_import

torch_import("compat", needed_by="elastic_core.compat")()
