"""The stand-in under the package's own names."""

from tests.fakes.tensorrt_llm_api import LLM, CompletionOutput, RequestOutput, SamplingParams

__version__ = "1.2.1"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]
