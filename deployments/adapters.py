"""The adapters of a replica: which it should have, and how its engine gets there, again and again."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from deployments import lora, models
from deployments.engine import Adapter, Engine, PoolModel
from deployments.errors import ApiError

logger = logging.getLogger("ray.serve")

# The adapters that clients loaded live in this pool, by name, with their paths as the clients named them. It blocks.
ReadLive = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an engine has to do; first unload, then load."""

    unload: tuple[str, ...]
    load: tuple[str, ...]


def changes(wanted: Mapping[str, str], loaded: Mapping[str, str]) -> Changes:
    """From the adapters that are `loaded` to those that are `wanted`: each name with its path."""
    return Changes(
        unload=tuple(name for name, path in loaded.items() if wanted.get(name) != path),
        load=tuple(name for name, path in wanted.items() if loaded.get(name) != path),
    )


class AdapterSet:
    """A replica's adapters: those of its pool's configuration, and those that were loaded live."""

    def __init__(
        self,
        engine: Engine,
        model: PoolModel,
        configured: Mapping[str, str] | None = None,  # the folder of each, by name
        folder: str | None = None,  # which live ones must be inside; None: there may be none
        read_live: ReadLive = dict,
    ) -> None:
        self._engine = engine
        self._model = model
        self._configured = configured or {}
        self._allowed_folder = folder
        self._read_live = read_live
        self._loaded: dict[str, str] = {}
        self._failed: dict[str, str] = {}  # why, by name
        self._trouble = ""  # why the last look failed
        self._lock = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    @property
    def configured(self) -> list[str]:
        return list(self._configured)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong with the configuration, by its key, as far as this machine can tell. Nothing is started."""
        if not self._engine.capabilities().lora:
            key = "adapters" if self._configured else "adapters_folder"
            yield (key,), "The engine takes no adapters with these engine_args."
            return
        for name, path in self._configured.items():
            try:
                if models.local_folder(self._model.source, self._model.revision) is None:
                    lora.check_files(configured_folder(path), path)
                else:
                    self._check_files(configured_folder(path), path)
            except ApiError as error:
                yield ("adapters", name), error.message
        if self._allowed_folder is not None and not os.path.isdir(os.path.expanduser(self._allowed_folder)):
            yield ("adapters_folder",), f"There is no folder '{self._allowed_folder}'."

    def refuse_absent(self, name: str | None) -> None:
        """Return if requests for the adapter `name` can be answered.

        Raises:
            ApiError: 404.
        """
        if name is not None and name not in self._loaded:
            raise ApiError(404, f"The adapter '{name}' is not loaded.", param="model", code="model_not_found")

    def check(self, name: str, path: str) -> None:
        """Return if an adapter may be loaded live and its files fit. It blocks, and changes nothing.

        Raises:
            ApiError: 400, with the reason.
        """
        if not self._engine.capabilities().lora:
            raise lora.refused("This pool's engine takes no adapters.")
        folder = self._folder(name, path)
        if name == self._model.served_name:
            message = f"'{name}' is the name of this pool's model; an adapter needs a name of its own."
            raise ApiError(400, message, param="lora_name", code="name_taken")
        self._check_files(folder, path)

    def _check_files(self, folder: Path, shown: str) -> None:
        base = models.local_folder(self._model.source, self._model.revision)
        if base is None:
            raise lora.refused("The pool's model can't be compared with the adapter: its files aren't on this machine.")
        lora.check_adapter(folder, base, self._engine.capabilities().max_lora_rank, shown)

    async def start(self) -> None:
        """Load what there should be, before the first request.

        Raises:
            ValueError: the configuration lists an adapter that can't be loaded.
        """
        if self._configured and not self._engine.capabilities().lora:
            raise ValueError("'adapters' are listed, but the engine takes none as it is configured")
        failed = await self.reconcile()
        if wrong := [f"{name}: {failed[name]}" for name in self._configured if name in failed]:
            raise ValueError(" ".join(wrong))

    async def reconcile(self) -> Mapping[str, str]:
        """Load what is missing, unload what isn't wanted any more. Those that can't be loaded, with the reason."""
        if not self._engine.capabilities().lora:
            return {}
        async with self._lock:
            wanted = {**await asyncio.to_thread(self._read_live), **self._configured}
            todo = changes(wanted, self._loaded)
            for name in todo.unload:
                del self._loaded[name]  # first: from now on no request for it is taken
                await self._engine.unload_adapter(name)
            failed = {name: why for name in todo.load if (why := await self._load(name, wanted[name]))}
            for name in failed.keys() - {name for name, why in self._failed.items() if failed.get(name) == why}:
                logger.error("the adapter %s can't be loaded: %s", name, failed[name])
            self._failed = failed
            return failed

    async def _load(self, name: str, path: str) -> str | None:
        """Why `name` couldn't be loaded; None where it was."""
        try:
            folder = self._folder(name, path)
            await asyncio.to_thread(self._check_files, folder, path)
            await self._engine.load_adapter(Adapter(name, folder))
        except ApiError as error:
            return error.message
        self._loaded[name] = path
        return None

    def _folder(self, name: str, path: str) -> Path:
        if name in self._configured:
            return configured_folder(path)
        if self._allowed_folder is None:
            raise lora.refused("This pool loads no adapters live: its configuration has no 'adapters_folder'.")
        return lora.inside(self._allowed_folder, path)

    def look(self) -> None:
        """Reconcile in the background, unless that is under way: loading may take longer than a health check may."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        trouble = ""
        try:
            await self.reconcile()
        except Exception as error:
            trouble = repr(error)
        if trouble and trouble != self._trouble:
            logger.error("cannot bring the adapters up to date, trying again: %s", trouble)
        self._trouble = trouble

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])


def configured_folder(path: str) -> Path:
    """Where an adapter of a configuration is, as a model's folder is found."""
    return Path(os.path.expanduser(path)).absolute()
