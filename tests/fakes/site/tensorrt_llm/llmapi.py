from tests.fakes.tensorrt_llm_api import CompletionOutput, GuidedDecodingParams, RequestOutput

__all__ = ["CompletionOutput", "GuidedDecodingParams", "RequestOutput"]
