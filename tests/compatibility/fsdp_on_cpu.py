"""
Runs a script with FSDP on CPUs: `fsdp_on_cpu.py SCRIPT ARGUMENTS`, by `accelerate launch`.

Accelerate shards models on accelerators alone, and trains data-parallel on CPUs whatever its configuration says. Here
its state says what it would say on accelerators, so that all that follows is done: models are sharded over gloo.
"""

import runpy
import sys

from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

start, prepare = AcceleratorState.__init__, Accelerator.prepare


def start_sharded(self, *args, fsdp_plugin=None, **kwargs):
    start(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        self.fsdp_plugin = fsdp_plugin
        PartialState._shared_state["distributed_type"] = self.distributed_type = DistributedType.FSDP


def prepare_sharded(self, *parts, **options):
    prepared = prepare(self, *parts, **options)
    for part in prepared if isinstance(prepared, list | tuple) else []:
        if isinstance(part, FSDPModule):
            print(f"sharded by FSDP over {next(part.parameters()).device_mesh.size()} processes", flush=True)
    return prepared


if __name__ == "__main__":
    AcceleratorState.__init__, Accelerator.prepare = start_sharded, prepare_sharded
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
