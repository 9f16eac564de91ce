from tests.fakes.tensorrt_llm_api import LLM

__all__ = ["LLM"]
