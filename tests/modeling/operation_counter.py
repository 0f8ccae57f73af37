"""Counts, on the CPU, what a step would cost on an accelerator: launches of kernels, and waits for their results.

Used by the tests and by `benchmarks/launches.py`.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

# What makes a view, an empty tensor or nothing at all.
_FREE = {
    *("_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "empty_strided", "expand", "new_empty"),
    *("permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze"),
    *("view", "lift_fresh", "new_empty_strided", "unfold", "diagonal", "_reshape_alias", "resize_"),
}
# What waits for the device: a value, or a size that depends on values.
_READS_BACK = {"_local_scalar_dense", "nonzero", "masked_select", "unique_consecutive", "_unique2", "equal", "item"}


class OperationCounter(TorchDispatchMode):
    """Counts operations while it is on."""

    def __init__(self):
        super().__init__()
        self.launches = self.synchronisations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.launches += name not in _FREE
        self.synchronisations += name in _READS_BACK or (name == "index" and _by_mask(args))
        return function(*args, **(kwargs or {}))

    def __enter__(self):
        # `tolist` on the CPU goes past the dispatcher; on a device it copies first, and waits.
        self._tolist = torch.Tensor.tolist

        def tolist(tensor):
            self.synchronisations += 1
            with _disable_current_modes():
                return self._tolist(tensor)

        torch.Tensor.tolist = tolist
        return super().__enter__()

    def __exit__(self, *exception):
        torch.Tensor.tolist = self._tolist
        return super().__exit__(*exception)


def _by_mask(args):
    return any(index is not None and index.dtype == torch.bool for index in args[1])
