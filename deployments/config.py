"""The settings of a pool, typed. Unknown keys are refused."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from deployments import registry
from deployments.engine import PoolModel
from deployments.engine_args import EngineArgs
from deployments.placement import Need
from deployments.replica_choice.settings import PrefixSettings

# Plain enough for a URL, a log line and every engine.
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=200)]
# No control characters: it stands in errors and logs.
AdapterPath = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]

# As Ray has them: `a`, `!a`, `in(a, b)`, `!in(a, b)`.
LabelSelector = Annotated[
    str, StringConstraints(pattern=r"^!?(in\([\w.-]+(, ?[\w.-]+)*\)|[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)$")
]


class PoolConfig(BaseModel):
    """`args` of a pool's application: one model on one engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str = Field(
        description="The program that runs the model: `transformers`, `vllm`, `sglang`, `tensorrt_llm`; `triton`, "
        "`tgi` and `openai` for servers that run elsewhere; or `simulated`, which runs none."
    )
    model: str = Field(
        min_length=1,
        description="A local folder, a model hub's id (`org/name`), or a bundled model's name "
        "(`smollm2-135m-instruct`, `all-minilm-l6-v2`); on `openai` the name that the servers know; any name on "
        "`simulated`.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id.")
    served_name: str | None = Field(
        None, min_length=1, description="The model name that answers carry; default: the last part of `model`."
    )
    num_cpus: float = Field(
        1.0, ge=0, description="CPUs that Ray keeps for each replica when it places it; an engine may use more."
    )
    gpus: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="GPUs of each replica, all on one node, which no other has. A part of one (0.5) shares it with "
        "other pools, and 0 runs the engine on CPUs. Default: what its parallel sizes come to, in `engine_args`, on "
        "`vllm`, `sglang` and `tensorrt_llm`; on `transformers` 1 with `device: cuda`, on `tgi` `num_shard` of "
        "`launch`; else 0.",
    )
    gpu_type: str | None = Field(
        None, min_length=1, description="The kind of these GPUs, as Ray calls it: `A100`, `H100`, `L4`."
    )
    node_labels: dict[str, LabelSelector] = Field(
        {},
        description="Labels of the nodes that a replica may run on, as Ray selects them: `a`, `!a`, `in(a, b)`, "
        "`!in(a, b)`.",
    )
    engine_args: dict[str, Any] = Field({}, description="The engine's own arguments, in its own words.")
    replica_choice: Literal["least_outstanding", "prefix"] = Field(
        "least_outstanding",
        description="Which replica a request goes to: the one with the fewest requests; or, within a bound of its "
        "load, the one that was sent the most of the prompt before, whose prefix cache may have it.",
    )
    prefix: PrefixSettings = Field(PrefixSettings(), description="Of `replica_choice: prefix`.")
    adapters: dict[AdapterName, AdapterPath] = Field(
        {}, description="LoRA adapters, each a model name of its own: its name, and its folder on every node."
    )
    adapters_folder: AdapterPath | None = Field(
        None,
        description="Folder whose subfolders may be loaded as adapters while the pool runs; without it, none may.",
    )

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value not in registry.ENGINES:
            raise ValueError(f"no engine '{value}'; there are: {', '.join(sorted(registry.ENGINES))}")
        return value

    @model_validator(mode="after")
    def _adapters_have_names_of_their_own(self) -> Self:
        if (name := self.pool_model.served_name) in self.adapters:
            raise ValueError(f"the adapter '{name}' has the name of the pool's model; give it one of its own")
        return self

    @model_validator(mode="after")
    def _prefix_has_an_effect(self) -> Self:
        if self.replica_choice != "prefix" and self.prefix != PrefixSettings():
            raise ValueError("'prefix' has an effect only with replica_choice: prefix")
        return self

    @model_validator(mode="after")
    def _gpus_fit(self) -> Self:
        if (gpus := self.gpus) is not None and gpus > 1 and not gpus.is_integer():
            raise ValueError(f"gpus: {gpus:g} can't be had: a replica has whole GPUs, or a part of one")
        try:
            sizes = self.typed_engine_args().gpus()
        except ValidationError:
            return self  # which whoever needs them is told
        if gpus is not None and 0 < gpus < sizes != 1:
            raise ValueError(f"gpus: {gpus:g} is too few: the parallel sizes in engine_args come to {sizes}")
        if self.gpu_type is not None and not self.need.gpus:
            raise ValueError("gpu_type is of GPUs, and there are none; say how many: 'gpus: 1'")
        return self

    def typed_engine_args(self) -> EngineArgs:
        """`engine_args` as the engine's own type, with a share of a GPU's memory where the pool has but a part of one.

        Raises:
            pydantic.ValidationError: they don't fit.
        """
        args = self.engine_args_type.model_validate(self.engine_args)
        return args.sharing(self.gpus) if self.gpus and self.gpus < 1 else args

    @property
    def need(self) -> Need:
        """What a replica needs of its node.

        Raises:
            pydantic.ValidationError: `engine_args` don't fit.
        """
        gpus = self.typed_engine_args().gpus() if self.gpus is None else self.gpus
        return Need(self.num_cpus, gpus, self.gpu_type, self.node_labels)

    @property
    def engine_args_type(self) -> type[EngineArgs]:
        return registry.args_type(self.engine)

    @property
    def pool_model(self) -> PoolModel:
        name = self.served_name or self.model.rstrip("/").rpartition("/")[2]
        return PoolModel(source=self.model, served_name=name, revision=self.revision)
