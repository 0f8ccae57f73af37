"""Tensors that compute on the CPU and claim to be elsewhere: a CPU tensor mixed in fails, as it would there."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

# The only other one that every build of torch knows.
DEVICE = torch.device("meta")


class OtherTensor(torch.Tensor):
    """A tensor on the CPU, `inner`, which says that it is elsewhere."""

    @staticmethod
    def __new__(cls, inner):
        options = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options, device=DEVICE)

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return f"OtherTensor({self.inner})"

    def tolist(self):
        return self.inner.detach().tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """Tensors that are made on the other device while it is on claim to be there too."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


def _run(function, args, kwargs):
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    other = any(isinstance(tensor, OtherTensor) for tensor in tensors)
    asked = kwargs.get("device")
    to_cpu = function is torch.ops.aten._to_copy.default and asked is not None and torch.device(asked).type == "cpu"
    to_other = asked is not None and torch.device(asked).type == DEVICE.type
    # Numbers as tensors may come along everywhere; what copies from one device to another is meant to.
    mixed = other and any(not isinstance(tensor, OtherTensor) and tensor.dim() > 0 for tensor in tensors)
    if mixed and function.overloadpacket is not torch.ops.aten.copy_:
        raise RuntimeError(f"{function} was given tensors of both devices")
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map_only(OtherTensor, lambda tensor: tensor.inner, (args, kwargs))
    result = function(*inner_args, **inner_kwargs)
    if function._schema.is_mutable:
        # In place or into `out`: what was given is what comes back.
        given = {id(leaf.inner): leaf for leaf in tensors if isinstance(leaf, OtherTensor)}
        return tree_map_only(torch.Tensor, lambda tensor: given.get(id(tensor), tensor), result)
    if (other and not to_cpu) or to_other:
        return tree_map_only(torch.Tensor, OtherTensor, result)
    return result


def to_other_device(module):
    """Moves all parameters and buffers of a model, in place; sparse gradients become dense ones."""
    for part in module.modules():
        # A sparse tensor cannot claim to be elsewhere.
        if isinstance(part, nn.Embedding):
            part.sparse = False
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(OtherTensor(parameter.detach()), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = OtherTensor(buffer)
    return module


@contextmanager
def other_device():
    """What runs within may make tensors on the other device, and ask for its autocast."""
    autocast = torch.autocast
    torch.autocast = lambda device, *args, **kwargs: autocast("cpu" if device == "meta" else device, *args, **kwargs)
    try:
        with OtherDevice():
            yield
    finally:
        torch.autocast = autocast
