"""A platform for SGLang on machines without a GPU, an entry point of this package: plain torch, no compiled kernels.

SGLang finds it under the group `sglang.srt.platforms` in each of its processes. It is inactive where CUDA is present.
"""

from typing import Any

from deployments import torch_store


def activate() -> str | None:
    """The dotted path of the platform's class, or None where SGLang's own platform serves."""
    import torch

    torch_store.bind_to_its_address()  # here, for nothing else of ours runs in the scheduler's process
    return None if torch.cuda.is_available() else f"{__name__}.CpuPlatform"


def __getattr__(name: str) -> Any:
    """The class, made when SGLang asks for it: its bases are importable only beside SGLang."""
    if name == "CpuPlatform":
        return _make_platform()
    raise AttributeError(name)


def _make_platform() -> type:
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

    class CpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc,unused-ignore]
        _enum = PlatformEnum.OOT
        device_name = device_type = "cpu"
        capabilities = PlatformCapabilities()

        def __init__(self) -> None:
            _ignore_pin_memory()

        def get_default_attention_backend(self) -> str:
            return "torch_native"

        def get_dispatch_key_name(self) -> str:
            return "native"

        def is_pin_memory_available(self, device: Any = None) -> bool:
            return False

    return CpuPlatform


def _ignore_pin_memory() -> None:
    """SGLang's LoRA layers ask for pinned memory whatever the platform is, and a torch without CUDA refuses it."""
    import torch

    torch.Tensor.pin_memory = lambda self, *_, **__: self
    for name in ("tensor", "zeros", "empty", "arange"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _unpinned(make: Any) -> Any:
    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return make(*args, **kwargs)

    return unpinned
