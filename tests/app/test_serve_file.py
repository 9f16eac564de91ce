"""Our mirror of Ray Serve's config schema says what Ray's says."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from ray.serve import schema as ray_schema

from app import serve_file
from app.serve_file import ServeFile

ROOT = Path(__file__).parents[2]
CONFIGS = ["serve_config.yaml", *(f"cluster/{path.name}" for path in (ROOT / "cluster").glob("*.yaml"))]
MIRRORED = [
    (serve_file.ServeFile, ray_schema.ServeDeploySchema),
    (serve_file.ApplicationOptions, ray_schema.ServeApplicationSchema),
    (serve_file.DeploymentOptions, ray_schema.DeploymentSchema),
    (serve_file.HttpOptions, ray_schema.HTTPOptionsSchema),
    (serve_file.RayActorOptions, ray_schema.RayActorOptionsSchema),
]


@pytest.mark.parametrize(("ours", "rays"), MIRRORED)
def test_the_keys_are_rays(ours: type[BaseModel], rays: type[BaseModel]) -> None:
    assert set(ours.model_fields) == set(rays.model_fields)


@pytest.mark.parametrize(("ours", "rays"), MIRRORED)
def test_what_ray_requires_is_required_here(ours: type[BaseModel], rays: type[BaseModel]) -> None:
    assert required(ours) - {"name"} == required(rays) - {"name"}  # Ray calls an application without a name "default"
    assert required(ours) >= required(rays)


def required(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if field.is_required()}


@pytest.mark.parametrize("name", CONFIGS)
def test_ray_accepts_each_shipped_config(name: str) -> None:
    ray_schema.ServeDeploySchema.model_validate(yaml.safe_load((ROOT / name).read_text()))


def with_deployment(**options: Any) -> dict[str, Any]:
    return {"applications": [{"name": "a", "import_path": "m:build", "deployments": [{"name": "D", **options}]}]}


def test_the_route_by_default() -> None:
    for model in (ServeFile, ray_schema.ServeDeploySchema):
        assert [application.route_prefix for application in model.model_validate(with_deployment()).applications] == [
            "/"
        ]


def test_the_address_by_default() -> None:
    ours = ServeFile.model_validate(with_deployment()).http_options
    rays = ray_schema.ServeDeploySchema.model_validate(with_deployment()).http_options
    assert ours.port == rays.port
    assert ours.host == "127.0.0.1"  # Ray's is every address of the machine


@pytest.mark.parametrize(
    "options",
    [
        {"num_replicas": 0},
        {"num_replicas": "many"},
        {"max_ongoing_requests": 0},
        {"max_queued_requests": -2},
        {"graceful_shutdown_timeout_s": -1},
        {"health_check_period_s": 0},
        {"rolling_update_percentage": 1.5},
        {"max_surge_percent": 101},
        {"user_config": [1]},
        {"ray_actor_options": {"num_cpus": -1}},
    ],
)
def test_what_ray_refuses_is_refused_here(options: dict[str, Any]) -> None:
    for model in (ServeFile, ray_schema.ServeDeploySchema):
        with pytest.raises(ValidationError):
            model.model_validate(with_deployment(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"num_replicas": 1, "max_ongoing_requests": 1, "max_surge_percent": 0},
        {"graceful_shutdown_wait_loop_s": 0, "graceful_shutdown_timeout_s": 0},
        {"health_check_period_s": 0.1, "health_check_timeout_s": 0.1},
        {"ray_actor_options": {"num_cpus": 0, "num_gpus": 0, "memory": 0}},
        {"num_replicas": "auto"},
        {"max_queued_requests": -1},
        {"autoscaling_config": {"min_replicas": 0, "max_replicas": 4}},
        {"ray_actor_options": {"num_gpus": 0.5, "resources": {"tpu": 1}, "runtime_env": {"env_vars": {"A": "1"}}}},
        {"placement_group_bundles": [{"CPU": 1}], "placement_group_strategy": "PACK"},
        {"logging_config": {"log_level": "DEBUG"}},
        {"rolling_update_percentage": 0.5, "max_surge_percent": 100},
    ],
)
def test_what_ray_takes_is_taken_here(options: dict[str, Any]) -> None:
    for model in (ServeFile, ray_schema.ServeDeploySchema):
        model.model_validate(with_deployment(**options))


@pytest.mark.parametrize(
    "change",
    [{"target_capacity": 101}, {"applications": [{"name": "", "import_path": "m:build"}]}, {"applications": 5}],
)
def test_what_ray_refuses_outside_a_deployment(change: dict[str, Any]) -> None:
    for model in (ServeFile, ray_schema.ServeDeploySchema):
        with pytest.raises(ValidationError):
            model.model_validate(with_deployment() | change)


@pytest.mark.parametrize(
    "change", [{"target_capacity": 0}, {"target_capacity": 100}, {"http_options": {"port": 65535}}]
)
def test_what_ray_takes_outside_a_deployment(change: dict[str, Any]) -> None:
    for model in (ServeFile, ray_schema.ServeDeploySchema):
        model.model_validate(with_deployment() | change)


def test_unknown_keys_are_refused_at_every_level() -> None:
    options = with_deployment(num_replica=2, ray_actor_options={"num_cpu": 1})
    document = {**options, "http_options": {"hosts": "x"}, "application": []}
    document["applications"][0]["route"] = "/"
    with pytest.raises(ValidationError) as raised:
        ServeFile.model_validate(document)
    assert sorted(details["loc"][-1] for details in raised.value.errors() if details["type"] == "extra_forbidden") == [
        "application",
        "hosts",
        "num_cpu",
        "num_replica",
        "route",
    ]
