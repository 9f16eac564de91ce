"""The shape of a Serve config file. Ray Serve ignores keys that it doesn't know; here they are refused.

The models mirror ray.serve.schema (a test compares them), because importing that takes a second.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RayActorOptions(_Section):
    runtime_env: dict[str, Any] | None = None
    num_cpus: float | None = Field(None, ge=0)
    num_gpus: float | None = Field(None, ge=0)
    memory: float | None = Field(None, ge=0)
    resources: dict[str, Any] | None = None
    accelerator_type: str | None = None
    label_selector: dict[str, str] | None = None
    fallback_strategy: list[dict[str, Any]] | None = None


class LoggingOptions(_Section):
    encoding: Literal["TEXT", "JSON"] | None = None
    log_level: int | str | None = None
    logs_dir: str | None = None
    enable_access_log: bool | None = None
    additional_log_standard_attrs: list[str] | None = None


class DeploymentOptions(_Section):
    name: str
    num_replicas: Annotated[int, Field(gt=0)] | Literal["auto"] | None = None
    max_ongoing_requests: int | None = Field(None, gt=0)
    max_queued_requests: int | None = Field(None, ge=-1)
    backpressure_config: dict[str, Any] | None = None
    user_config: dict[str, Any] | None = None
    autoscaling_config: dict[str, Any] | None = None
    graceful_shutdown_wait_loop_s: float | None = Field(None, ge=0)
    graceful_shutdown_timeout_s: float | None = Field(None, ge=0)
    health_check_period_s: float | None = Field(None, gt=0)
    health_check_timeout_s: float | None = Field(None, gt=0)
    ray_actor_options: RayActorOptions | None = None
    placement_group_bundles: list[dict[str, float]] | None = None
    placement_group_strategy: str | None = None
    placement_group_bundle_label_selector: list[dict[str, str]] | None = None
    max_replicas_per_node: int | None = None
    logging_config: LoggingOptions | None = None
    request_router_config: dict[str, Any] | None = None
    gang_scheduling_config: dict[str, Any] | None = None
    deployment_actors: list[Any] | None = None
    rolling_update_percentage: float | None = Field(None, gt=0, le=1)
    max_surge_percent: int | None = Field(None, ge=0, le=100)


class ApplicationOptions(_Section):
    name: str = Field(min_length=1)
    route_prefix: str | None = "/"
    import_path: str
    runtime_env: dict[str, Any] | None = None
    host: str | None = None
    port: int | None = None
    deployments: list[DeploymentOptions] = []
    autoscaling_policy: dict[str, Any] | None = None
    args: dict[str, Any] = {}
    logging_config: LoggingOptions | None = None
    external_scaler_enabled: bool | None = None


class HttpOptions(_Section):
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    root_path: str | None = None
    request_timeout_s: float | None = None
    keep_alive_timeout_s: int | None = None
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None


class ServeFile(_Section):
    """A whole file, as `serve run` and `serve deploy` take it."""

    proxy_location: Literal["Disabled", "HeadOnly", "EveryNode"] | None = None
    http_options: HttpOptions = HttpOptions()
    grpc_options: dict[str, Any] | None = None
    controller_options: dict[str, Any] | None = None
    logging_config: LoggingOptions | None = None
    tracing_config: dict[str, Any] | None = None
    target_capacity: float | None = Field(None, ge=0, le=100)
    applications: list[ApplicationOptions] = Field(min_length=1)
