"""Checks a config file without starting anything, and without importing Ray or an engine."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from app.access.keys_file import KeysError, read_keys
from app.access.listening import unprotected
from app.access.settings import AccessConfig
from app.config import IngressArgs, IngressConfig, environment_variables, load_ingress_config
from app.environment import unknown_variables
from app.serve_file import ApplicationOptions, ServeFile
from app.validation import explain
from app.yaml_lines import Document, Location, YamlError, load
from deployments import registry
from deployments.adapters import AdapterSet
from deployments.config import PoolConfig
from deployments.errors import dotted, sentence

T = TypeVar("T", bound=BaseModel)

INGRESS = "app.main:build"
POOL = "deployments.pool:build"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do."""

    where: str  # the key, in dotted form; "" for the file as a whole
    message: str
    line: int | None = None  # counted from 1

    def __str__(self) -> str:
        parts = (f"line {self.line}" if self.line else "", self.where, self.message)
        return ": ".join(part for part in parts if part)


@dataclass(slots=True)
class Checked:
    """A file as far as it could be read, and what is wrong with it."""

    file: ServeFile | None = None
    document: dict[str, Any] = field(default_factory=dict)  # the file as it was written, where `file` is there
    pools: dict[str, PoolConfig] = field(default_factory=dict)  # by application name
    ingress: IngressConfig | None = None
    problems: list[Problem] = field(default_factory=list)


def check_file(path: Path, environ: Mapping[str, str] = os.environ) -> Checked:
    """Read and check `path`. Never raises for what is in the file: that becomes a problem."""
    checked = Checked(problems=list(_environment_problems(environ)))
    try:
        document = load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        checked.problems.append(Problem("", f"Cannot read {path}: {reason}."))
        return checked
    except YamlError as error:
        checked.problems.append(Problem("", str(error), error.line))
        return checked
    _Checker(document, checked).run()
    checked.problems.sort(key=lambda problem: problem.line or 0)
    return checked


def _environment_problems(environ: Mapping[str, str]) -> Iterator[Problem]:
    yield from (Problem("", message) for message in unknown_variables(environ))
    try:
        load_ingress_config({}, environ)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            variable = environment_variables()[str(details["loc"][0])]
            yield Problem("", f"The environment variable '{variable}' doesn't fit: {sentence(details['msg'])}")


class _Checker:
    def __init__(self, document: Document, checked: Checked) -> None:
        self._document = document
        self._checked = checked

    def run(self) -> None:
        if self._document.value is None:
            self._problem((), "The file is empty.")
            return
        file = self._parse(ServeFile, self._document.value, ())
        if file is None:
            return
        self._checked.file = file
        self._checked.document = self._document.value
        if "host" not in file.http_options.model_fields_set:
            message = (
                "Say where to listen, 'http_options: {host: 127.0.0.1}': plain 'serve run' would listen everywhere."
            )
            self._problem(self._document.existing(("http_options",)), message)
        self._check_names(file.applications)
        for index, application in enumerate(file.applications):
            self._check_application(application, ("applications", index))
        self._check_adapter_names(file.applications)

    def _check_names(self, applications: Sequence[ApplicationOptions]) -> None:
        self._check_unique("name", [application.name for application in applications])
        # A pool must have no route at all: _check_pool says so.
        routes = [None if application.import_path == POOL else application.route_prefix for application in applications]
        self._check_unique("route_prefix", routes)
        if not any(application.import_path == INGRESS for application in applications):
            message = f"No application has 'import_path: {INGRESS}', so nothing would answer. Add the ingress."
            self._problem(("applications",), message)

    def _check_unique(self, key: str, values: Sequence[str | None]) -> None:
        for index, value in enumerate(values):
            if value is not None and value in values[:index]:
                message = f"The {key} '{value}' is taken by an application above; each needs its own."
                self._problem(("applications", index, key), message)

    def _check_application(self, application: ApplicationOptions, at: Location) -> None:
        if application.import_path == POOL:
            self._check_pool(application, at)
        elif application.import_path == INGRESS:
            self._parse(IngressArgs, application.args, (*at, "args"))
            self._check_ingress(application, at)

    def _check_pool(self, application: ApplicationOptions, at: Location) -> None:
        if application.route_prefix is not None:
            message = "A pool is reached through the ingress only: write 'route_prefix: null'."
            self._problem((*at, "route_prefix"), message)
        self._check_deployment_names(application, at, "Pool")
        pool = self._parse(PoolConfig, application.args, (*at, "args"))
        if pool is not None:
            self._checked.pools[application.name] = pool
            engine_args = self._parse(pool.engine_args_type, pool.engine_args, (*at, "args", "engine_args"))
            if engine_args is not None and (pool.adapters or pool.adapters_folder):
                engine = registry.create(pool.engine, pool.pool_model, engine_args)
                adapters = AdapterSet(engine, pool.pool_model, pool.adapters, pool.adapters_folder)
                for key, message in adapters.problems():
                    self._problem((*at, "args", *key), message)

    def _check_ingress(self, application: ApplicationOptions, at: Location) -> None:
        self._check_deployment_names(application, at, "Ingress")
        for index, deployment in enumerate(application.deployments):
            if deployment.name == "Ingress" and deployment.user_config is not None:
                location = (*at, "deployments", index, "user_config")
                ingress = self._parse(IngressConfig, deployment.user_config, location)
                if ingress is not None:
                    self._checked.ingress = ingress
                    self._check_names_in(ingress, location)
                    self._check_access(ingress.access, (*location, "access"))
                return
        self._problem(
            at, "The ingress has no models: add 'deployments: [{name: Ingress, user_config: {models: ...}}]'."
        )

    def _check_deployment_names(self, application: ApplicationOptions, at: Location, expected: str) -> None:
        for index, deployment in enumerate(application.deployments):
            if deployment.name != expected:
                message = f"This application has one deployment, '{expected}'; there is no '{deployment.name}'."
                self._problem((*at, "deployments", index, "name"), message)

    def _check_adapter_names(self, applications: Sequence[ApplicationOptions]) -> None:
        models = self._checked.ingress.models if self._checked.ingress else {}
        for index, application in enumerate(applications):
            pool = self._checked.pools.get(application.name)
            for name in pool.adapters if pool is not None else ():
                if name in models:
                    message = f"The adapter '{name}' has a model's name; give it one of its own."
                    self._problem(("applications", index, "args", "adapters", name), message)

    def _check_access(self, access: AccessConfig, at: Location) -> None:
        file = self._checked.file
        assert file is not None
        if (message := unprotected(file.http_options.host, access)) is not None:
            self._problem(("http_options", "host"), message)
        if access.keys_file is not None and Path(access.keys_file).exists():
            try:
                read_keys(Path(access.keys_file))
            except KeysError as error:
                for problem in error.problems:
                    self._problem((*at, "keys_file"), f"In {access.keys_file}: {problem}")

    def _check_names_in(self, ingress: IngressConfig, at: Location) -> None:
        """Pools that are named must be applications of this file, and the models of aliases be there."""
        file = self._checked.file
        assert file is not None
        there = [app.name for app in file.applications if app.import_path == POOL]
        for model, entry in ingress.models.items():
            for pool in entry.pools:
                self._check_there(pool, there, "pool", f"The model '{model}'", (*at, "models", model))
        for index, route in enumerate(ingress.routes):
            for pool in route.named_pools:
                self._check_there(pool, there, "pool", f"The route '{route.name}'", (*at, "routes", index))
        for pool in ingress.admission.pools:
            self._check_there(pool, there, "pool", "A limit", (*at, "admission", "pools", pool))
        for model in ingress.admission.models:
            self._check_there(model, list(ingress.models), "model", "A limit", (*at, "admission", "models", model))
        for alias, target in ingress.aliases.items():
            for model in [target] if isinstance(target, str) else target:
                self._check_there(model, list(ingress.models), "model", f"The alias '{alias}'", (*at, "aliases", alias))
            if alias in ingress.models:
                message = f"The alias '{alias}' has a model's name, which comes first; take one of them away."
                self._problem((*at, "aliases", alias), message)

    def _check_there(self, name: str, there: Sequence[str], noun: str, who: str, at: Location) -> None:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"{noun}s: {', '.join(there) or 'none'}."
            self._problem(at, f"{who} names a {noun} '{name}' that isn't there; {hint}")

    def _parse(self, schema: type[T], value: Any, at: Location) -> T | None:
        """`value`, which stands `at` a place in the document, as `schema`; None where it doesn't fit."""
        try:
            return schema.model_validate(value)
        except ValidationError as error:
            for location, message in explain(error, schema, self._document, at):
                self._problem(location, message)
            return None

    def _problem(self, location: Location, message: str) -> None:
        self._checked.problems.append(Problem(dotted(location), message, self._document.line(location)))
