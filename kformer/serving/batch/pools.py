"""The workers of the batch job: processes of this machine, or tasks of a Ray cluster.

Both take a shard by `submit`, which returns a `concurrent.futures.Future`. The shard of a process
that died goes to another one.
"""

import concurrent.futures
import contextlib
import pickle
import subprocess
import sys
import threading

from kformer.serving import ray_cluster
from kformer.serving.batch import shards
from kformer_options.child_process import environment

# How often a shard goes to another process after its process died.
RETRIES = 3


class WorkerDied(RuntimeError):
    """A shard ended its processes again and again."""


class Processes:
    """Processes of this machine, and a thread for each, which hands it a shard and waits.

    Args:
        workers: int. Their number.
        variables: dict of str. Environment variables of the processes.
    """

    died = WorkerDied

    def __init__(self, workers, variables):
        self._environment = environment(**variables)
        self._threads = concurrent.futures.ThreadPoolExecutor(workers)
        self._of_thread = threading.local()
        self._lock, self._processes, self._is_closed = threading.Lock(), [], False

    def submit(self, *shard):
        """Gives a shard, the arguments of `shards.translate_shard`, to a process.

        Returns:
            Future of what that function returns.
        """
        return self._threads.submit(self._translate, pickle.dumps(shard))

    def _translate(self, shard):
        for _ in range(RETRIES + 1):
            process = self._living_process()
            try:
                process.stdin.write(shard)
                process.stdin.flush()
                count, error = pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError):
                code = process.wait()
                continue
            if error is not None:
                raise error
            return count
        raise WorkerDied(f"exit code {code}")

    def _living_process(self):
        process = getattr(self._of_thread, "process", None)
        if process is None or process.poll() is not None:
            with self._lock:
                if self._is_closed:
                    raise WorkerDied("the job has ended")
                process = subprocess.Popen(
                    [sys.executable, "-m", __package__],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # So that Ctrl-C comes once, from here.
                )
                self._processes.append(process)
            self._of_thread.process = process
        return process

    def close(self):
        """Ends the processes, also in the middle of a shard."""
        with self._lock:
            self._is_closed = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(OSError), process:  # Its pipes are closed.
                process.wait()


class RayTasks:
    """Tasks of a Ray cluster, one for each shard.

    Ray keeps the processes of tasks that ended for the next ones, so each loads the model once.

    Args:
        address: str. As for `ray_cluster.connected`.
        variables: dict of str. Environment variables of the processes.
    """

    def __init__(self, address, variables):
        self._stack = contextlib.ExitStack()
        ray = self._stack.enter_context(ray_cluster.connected(address))
        errors = ray.exceptions
        self.died = (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError)
        self._translate = ray.remote(
            num_cpus=int(variables["OMP_NUM_THREADS"]),
            max_retries=RETRIES,
            runtime_env={"env_vars": variables},
        )(shards.translate_shard)

    def submit(self, *shard):
        """Gives a shard to a task; arguments and value are those of `Processes.submit`."""
        return self._translate.remote(*shard).future()

    def close(self):
        """Leaves the cluster."""
        self._stack.close()
