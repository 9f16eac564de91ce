from tests.fakes.tensorrt_llm_api import CppExecutorError, LoRARequest, RequestError

__all__ = ["CppExecutorError", "LoRARequest", "RequestError"]
