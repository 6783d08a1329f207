"""The batch job: shards of a file go to workers, and their files are merged in order."""

import concurrent.futures
import contextlib
import dataclasses
import io
import pathlib
from typing import NamedTuple

import keras

from kformer.serving import ray_cluster
from kformer.serving.batch import manifest as manifests
from kformer.serving.batch import pools, shards
from kformer.serving.batch.formats import format_of
from kformer.translating import streaming
from kformer.utils import files
from kformer.utils.checks import check_whole
from kformer_options import model_folders
from kformer_options.installed import check_extra
from kformer_options.names import on_command_line
from kformer_options.text_files import check_output, check_rereadable

# Records of a shard for each sentence of a batch: as many as `kformer translate` sorts at once.
_BATCHES = 16


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """How a file is translated. The output depends on these alone.

    Args:
        model: path of a run directory, or of a SavedModel.
        n_best: int, default 1. Translations of each record, best first.
        scores: bool, default `False`. Whether each translation has its log-probability beside it.
        batch_size: int, default 64. Sentences that are translated at once.
        search: dict, default empty. Fields of `kformer.decoding.SearchOptions`.
        source_language, target_language: str, default `None`. As for
            `kformer.translating.streaming.open_translator`.
        ensemble: tuple of paths, default empty. Further runs that translate together with the
            first.
        dtype: str, default `None`. How a run's matrices are multiplied.
        trust_models: bool, default `False`. As for `kformer.export.SavedModelTranslator`.
        backend: str, default `None`, for the backend of this process. A SavedModel always runs on
            TensorFlow.
        threads: int, default 1. Threads of each worker, whatever the number of workers.
        field: str, default "text". The field of JSON lines or the column of Parquet with the text.
        output_field: str, default "translation". The field or column for the translations.
    """

    model: str
    n_best: int = 1
    scores: bool = False
    batch_size: int = 64
    search: dict = dataclasses.field(default_factory=dict)
    source_language: str | None = None
    target_language: str | None = None
    ensemble: tuple = ()
    dtype: str | None = None
    trust_models: bool = False
    backend: str | None = None
    threads: int = 1
    field: str = "text"
    output_field: str = "translation"


class BatchResult(NamedTuple):
    """What a job has done.

    Attributes:
        records: int. The records of the output.
        translated: int. Those that this call translated; earlier calls did the others.
        truncated: `kformer.translating.streaming.TruncatedLines`.
    """

    records: int
    translated: int
    truncated: streaming.TruncatedLines


def translate_file(input, output, options, *, workers, address=None, progress=None):
    """Translates a file by several workers.

    The file is cut into shards of 16 batches. A worker writes each shard's file into the folder
    `OUTPUT.parts`, whole or not at all, and at the end they are merged. Shards and batches depend
    on the input alone, so that the output is the same for any number of workers. A job that ended
    early goes on when it is called again, and translates no finished shard again.

    Args:
        input, output: path. Lines of text, JSON lines (`.jsonl`, `.ndjson`), both also compressed
            (`.gz`, `.bz2`, `.xz`, `.zst`), or Parquet (`.parquet`); both of one kind. The output
            appears when it is whole.
        options: `BatchOptions`.
        workers: int. Processes that translate at a time.
        address: str, default `None`. Address of a Ray cluster, whose machines see the model and
            the output's folder by the same paths; `None` for processes of this machine.
        progress: `kformer.utils.progress.Progress`, default `None`.

    Returns:
        `BatchResult`.

    Raises:
        FileNotFoundError: the input, the model or the output's folder does not exist.
        ValueError: the input is damaged or lacks the field; the options do not fit the model; or
            the input, the model or an option has changed since the job began.
        RuntimeError: a shard ended its workers again and again.
        ImportError: Ray, pyarrow or TensorFlow is needed and not installed.

    Example:
        ```python
        from kformer.serving.batch import BatchOptions, translate_file

        options = BatchOptions("saved_models/en-de")
        translate_file("test.en", "test.translated", options, workers=1)
        ```
    """
    workers = check_whole("workers", workers)
    check_rereadable(input, "input")
    input, output = pathlib.Path(input).resolve(), pathlib.Path(output).resolve()
    format_class = _check_paths(input, output)
    for name in ("n_best", "batch_size", "threads"):
        check_whole(name, getattr(options, name))
    variables = _worker_variables(options)
    models = manifests.model_paths(options)
    first, *others = map(str, models)
    options = dataclasses.replace(options, model=first, ensemble=tuple(others))
    records_format = format_class(input, options)
    stat = input.stat()
    folder = output.with_name(f"{output.name}.parts")
    with files.locked(folder):
        manifest = manifests.make_manifest(records_format, models)
        manifests.check_or_write(folder, manifest)
        job = _Job(folder, manifest, records_format, progress)
        try:
            if address is None:
                pool = pools.Processes(workers, variables)
            else:
                pool = pools.RayTasks(address, variables)
            with contextlib.closing(pool):
                translated = job.run(pool, workers)
            now = input.stat()
            if (stat.st_size, stat.st_mtime_ns) != (now.st_size, now.st_mtime_ns):
                raise ValueError(
                    f"{input} changed while it was translated: remove {folder} and begin again."
                )
            truncated = job.merge(output)
            manifests.remove_job(folder)
        except BaseException:
            if not manifests.has_shards(folder):
                manifests.remove_job(folder)
            raise
    with contextlib.suppress(OSError):  # A killed call made it, so that the lock leaves it.
        folder.rmdir()
    return BatchResult(manifest["input"]["records"], translated, truncated)


def _check_paths(input, output):
    """Returns the format of both files, once the paths are checked."""
    if not input.is_file():
        raise FileNotFoundError(f"The input file '{input}' does not exist, or is not a file.")
    check_output(output, input)
    input_format, output_format = format_of(input), format_of(output)
    if input_format is not output_format:
        raise ValueError(
            f"{input} is {input_format.name} by its ending, and {output} is {output_format.name}: "
            "give both names endings of one kind."
        )
    return input_format


class _Job:
    """A job whose manifest is written.

    Args:
        folder: `pathlib.Path`. The folder of the job.
        manifest: dict.
        records_format, progress: of the job.
    """

    def __init__(self, folder, manifest, records_format, progress):
        self._folder = manifests.shards_folder(folder, manifest)
        self._folder.mkdir(exist_ok=True)
        self._total = manifest["input"]["records"]
        self._format, self._progress = records_format, progress
        self._done = self._num_shards = 0
        self._running = {}  # A future for each shard that is being translated.

    def run(self, pool, workers):
        """Translates the shards that are not finished; returns the number of their records."""
        translated = first = 0
        for records in self._format.shards(_BATCHES * self._format.options.batch_size):
            index, self._num_shards = self._num_shards, self._num_shards + 1
            if shards.read_shard(self._folder, index) is not None:
                self._advance(len(records), before=len(records))
            else:
                if len(self._running) == workers:
                    self._wait(pool)
                shard = self._format, index, first, records, self._folder, on_command_line()
                future = pool.submit(*shard)
                self._running[future] = (first + 1, first + len(records))
                translated += len(records)
            first += len(records)
        while self._running:
            self._wait(pool)
        return translated

    def _wait(self, pool):
        """Waits until a shard is finished."""
        done, _ = concurrent.futures.wait(
            self._running, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            first, last = self._running.pop(future)
            try:
                self._advance(future.result())
            except pool.died as error:
                raise RuntimeError(
                    f"Records {first:,} to {last:,} ended their worker {pools.RETRIES + 1} times "
                    f"({' '.join(str(error).split())[:200]}): give the same command again, with "
                    "fewer --workers if there is too little memory."
                ) from error
            except Exception as error:  # Ray's errors have the worker's as their cause.
                raise getattr(error, "cause", error) from None

    def _advance(self, count, before=0):
        self._done += count
        if self._progress is not None:
            self._progress.before += before
            self._progress(self._done, self._total)

    def merge(self, output):
        """Writes the output of all shards' files; returns its `TruncatedLines`."""
        truncated = streaming.TruncatedLines()
        mode = output.stat().st_mode & 0o7777 if output.exists() else None
        with files.replacing(output) as aside:
            self._format.merge(aside, self._payloads(truncated))
            if mode is not None:
                aside.chmod(mode)
        return truncated

    def _payloads(self, truncated):
        for index in range(self._num_shards):
            shard = shards.read_shard(self._folder, index)
            if shard is None:
                raise ValueError(
                    f"{shards.shard_path(self._folder, index)} was changed or removed while the "
                    "job ran: give the same command again to translate it again."
                )
            cut, payload = shard
            truncated.add(cut)
            yield io.BytesIO(payload)


def _worker_variables(options):
    """The environment variables of the workers."""
    if model_folders.is_run(options.model):
        backend = options.backend or keras.backend.backend()
        check_extra(f"The backend {backend}", backend, (backend,))
    else:
        check_extra("A SavedModel", "tensorflow")
        backend = "tensorflow"
    return ray_cluster.worker_variables(backend, options.threads)
