"""Names for code in worker processes: their start, errors and accelerators."""

from elastic_core.accelerators.nvml import NvidiaGpus as NvidiaGpus
from elastic_core.accelerators.nvml import nvidia_gpus as nvidia_gpus
from elastic_core.accelerators.visible import visible_entries as visible_entries
from elastic_core.errors import WorkerError as WorkerError
from elastic_core.failure.classify import lost_peer as lost_peer
from elastic_core.processes.errors.frames import is_user_file as is_user_file
from elastic_core.processes.errors.frames import parse_fault_frames as parse_fault_frames
from elastic_core.processes.errors.frames import without_launcher as without_launcher
from elastic_core.processes.errors.writer import describe_error as describe_error
from elastic_core.processes.errors.writer import load_record as load_record
from elastic_core.processes.errors.writer import write_exception as write_exception
from elastic_core.processes.errors.writer import write_record as write_record
from elastic_core.processes.process import bound_to as bound_to
from elastic_core.torch_release import TORCH_HINT as TORCH_HINT
from elastic_core.torch_release import import_torch as import_torch
from elastic_core.torch_release import is_supported_torch as is_supported_torch
from elastic_core.worker.startup import arm_worker as arm_worker
