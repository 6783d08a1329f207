"""The engine `local`: models in this process, on threads of their own."""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import logging
import time

from kformer.serving import interface
from kformer.serving.batcher import Batcher, BatchLimits, estimated_tokens
from kformer.serving.interface import ModelStats, ModelVersion
from kformer.serving.languages import pairs_of
from kformer.serving.served_model import ServedModel, joins_requests, most_texts
from kformer.serving.served_translator import served_folder, served_run
from kformer.serving.versions import VersionWatch, fingerprint, version_folders

_REFUSED = "It could not be loaded; the server's log says why."
# Batches of at least this many texts, and full batches, show the rate of a busy model: one text
# alone takes almost as long.
_BUSY_BATCH = 8
_logger = logging.getLogger(__name__)


class _Version:
    """A version that is loaded: the model, its thread and its batcher."""

    def __init__(self, served, info, settings, stats):
        self.served, self.info, self.stats = served, info, stats
        name, replicas = f"{info.name}-{info.version}", settings.replicas
        self._executor = concurrent.futures.ThreadPoolExecutor(replicas, thread_name_prefix=name)
        limits = BatchLimits(
            settings.max_batch_tokens,
            settings.max_batch_texts,
            settings.batch_wait_ms / 1000,
            served.metadata.get("max_source_length"),
        )
        self.batcher = Batcher(served.call, limits, self._executor, replicas, self._observe)

    def _observe(self, texts, outputs, seconds, is_full):
        stats = self.stats
        stats.batches[len(texts)] += 1
        stats.texts += len(texts)
        stats.seconds += seconds
        if is_full or len(texts) >= _BUSY_BATCH:
            stats.busy_texts += len(texts)
            stats.busy_seconds += seconds
        stats.tokens += sum(map(estimated_tokens, texts))
        stats.tokens += sum(map(estimated_tokens, outputs.get("translation", ())))

    async def close(self):
        await self.batcher.close()
        self._executor.shutdown(wait=False)
        # TensorFlow frees the weights when nothing refers to them any more.
        self.served = self.batcher = None
        gc.collect()


class LocalEngine(interface.Engine):
    """Models in this process.

    The newest version of a model is served, unless versions are pinned. A newer version that
    appears is loaded and warmed up, then replaces the former, which is unloaded when its requests
    are answered.

    Args:
        settings: `ServerSettings`, whose models are as the engine takes them: SavedModels, runs or
            folders for CTranslate2.
    """

    def __init__(self, settings):
        self._settings = settings
        self._versions = {model.name: {} for model in settings.models}  # By number, loaded.
        self._others = collections.defaultdict(dict)  # Loading, unloading and refused, as shown.
        self._watches = {model.name: VersionWatch(model.path) for model in settings.models}
        self._stats = {}
        self._loader = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._tasks, self._is_draining = set(), False

    async def start(self):
        try:
            await self._in_loader(_set_threads, self._settings)
            for model in self._settings.models:
                await self._load_first(model)
        except BaseException:
            await self.close()
            raise
        for model in self._settings.models:
            if model.versions is None:
                self._begin(self._watch(model))

    async def run(self, request):
        if self._is_draining:
            raise interface.Draining
        info = self.metadata(request.model, request.version)
        signature = info.signature(request.signature)
        version = self._versions[request.model][info.version]
        outputs = await version.batcher.run(
            request.signature,
            request.texts,
            languages=info.languages_of(request),
            joins=joins_requests(signature),
            max_texts=most_texts(signature),
            deadline=request.deadline,
        )
        return interface.Reply(outputs, info.version)

    def models(self):
        models = {}
        for name, versions in self._versions.items():
            infos = {number: version.info for number, version in versions.items()}
            infos = {**self._others[name], **infos}
            models[name] = [infos[number] for number in sorted(infos, reverse=True)]
        return models

    async def stats(self):
        for (name, number), stats in self._stats.items():
            version = self._versions[name].get(number)
            stats.waiting = version.batcher.waiting if version else 0
        return list(self._stats.values())

    async def drain(self, seconds):
        self._is_draining = True
        loaded = [version for versions in self._versions.values() for version in versions.values()]
        await asyncio.gather(*(version.batcher.drain(seconds) for version in loaded))

    async def close(self):
        self._is_draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for versions in self._versions.values():
            for version in versions.values():
                await version.close()
            versions.clear()
        self._loader.shutdown(wait=False)

    # ---- loading ----

    def _begin(self, coroutine):
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_loader(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._loader, function, *arguments)

    async def _load_first(self, model):
        """Loads the pinned versions, or the newest one that can be loaded."""
        folders = await self._in_loader(model.pinned_folders)
        for number, folder in folders.items():
            if error := await self._load(model, number, folder, fingerprint(folder)):
                raise error
        if folders:
            return
        folders = await self._in_loader(version_folders, model.path)
        if not folders:
            raise FileNotFoundError(f"models.{model.name}: there is no version in {model.path}.")
        errors = []
        for number, folder in sorted(folders.items(), reverse=True):
            error = await self._load(model, number, folder, fingerprint(folder))
            if error is None:
                return
            errors.append(error)
        raise errors[0]

    def _open(self, model, folder):
        settings = self._settings
        if settings.engine == "torch":
            return served_run(folder, model.dtype or settings.dtype)
        if settings.engine == "ctranslate2":
            return served_folder(folder, settings.threads, settings.replicas)
        return ServedModel(folder, settings.trust_models)

    async def _load(self, model, number, folder, content):
        """Loads and warms a version, which is served from then on.

        Returns:
            `None`, or the error for which it is refused as long as its content is the same.
        """
        start, others = time.monotonic(), self._others[model.name]
        pairs = (model.languages,) if model.languages else ()
        info = ModelVersion(model.name, number, interface.LOADING, pairs=pairs)
        others[number] = info
        try:
            served = await self._in_loader(self._open, model, folder)
            await self._in_loader(served.warm_up, self._settings.max_batch_texts)
        except Exception as error:
            _logger.error("model %s, version %d is refused: %s", model.name, number, error)
            self._watches[model.name].refuse(number, content)
            others[number] = dataclasses.replace(info, state=interface.END, error=_REFUSED)
            return error
        del others[number]
        info = dataclasses.replace(
            info,
            state=interface.AVAILABLE,
            signatures=served.signatures,
            search=served.metadata["search"],
            dtype=served.metadata.get("dtype") or "",
            pairs=pairs or pairs_of(served.metadata),
            target_languages=tuple(served.metadata.get("languages") or ()),
            texts_per_second=served.texts_per_second,
            example=str((served.metadata.get("config") or {}).get("example", "")),
        )
        stats = self._stats.setdefault((model.name, number), ModelStats(model.name, number))
        self._versions[model.name][number] = _Version(served, info, self._settings, stats)
        seconds = time.monotonic() - start
        _logger.info("model %s, version %d: ready after %.1f s", model.name, number, seconds)

    async def _watch(self, model):
        watch, served = self._watches[model.name], self._versions[model.name]
        while True:
            await asyncio.sleep(self._settings.poll_s)
            try:
                newest = await self._in_loader(watch.look, set(served))
                for number in watch.forgotten():
                    self._others[model.name].pop(number, None)
                if newest is None or newest[0] in served:
                    continue
                former = list(served)
                if await self._load(model, *newest) is None:
                    for old in former:
                        self._begin(self._unload(model.name, old, served.pop(old)))
            except Exception:
                _logger.exception("model %s: the look for new versions failed", model.name)

    async def _unload(self, name, number, version):
        self._others[name][number] = dataclasses.replace(version.info, state=interface.UNLOADING)
        try:
            await version.batcher.drain()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await version.close()
            self._others[name].pop(number, None)
        _logger.info("model %s, version %d: unloaded", name, number)


def _set_threads(settings):
    """Sets the threads of TensorFlow, where it has not begun to compute, or of PyTorch."""
    threads = settings.threads
    if threads is None or settings.engine == "ctranslate2":  # Its models have threads of their own.
        return
    if settings.engine == "torch":
        import torch

        torch.set_num_threads(threads)
        return
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        _logger.warning("TensorFlow computes already: its number of threads stays as it is")
