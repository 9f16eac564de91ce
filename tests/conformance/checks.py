"""All checks: importing this registers every theme's, in the order in which they run and are shown."""

from tests.conformance import (  # noqa: I001 (the order is the table's)
    check_streams as check_streams,
    check_usage as check_usage,
    check_finish as check_finish,
    check_stops as check_stops,
    check_unicode as check_unicode,
    check_sampling as check_sampling,
    check_logprobs as check_logprobs,
    check_prompts as check_prompts,
    check_structured as check_structured,
    check_tools as check_tools,
    check_cancel as check_cancel,
    check_load as check_load,
    check_errors as check_errors,
    check_endpoints as check_endpoints,
)
from tests.conformance.suite import CHECKS as CHECKS
