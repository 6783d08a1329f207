"""Several hosts that train one model: a JAX process on each, with all of its devices."""

import contextlib
import json
import random
import time

import keras
import numpy as np

from kformer.utils import files
from kformer_options.host_addresses import seconds_of_silence, seconds_to_meet

# Hosts wait for the slowest when they part; the first may still write the model.
_SECONDS_TO_PART = 300


class Hosts:
    """The hosts of a training. All take the same steps in the same order.

    Args:
        index: int, default 0. The number of this host.
        count: int, default 1. How many there are. With one, nothing is sent.

    Attributes:
        index, count: as given.
        is_first: bool. Whether this host writes the run directory.
        ends_together: bool. Whether all hosts end at this step.
    """

    def __init__(self, index=0, count=1):
        self.index, self.count = index, count
        self.is_first, self.ends_together = index == 0, False

    def gather(self, value):
        """The values of all hosts.

        Args:
            value: of JSON types.

        Returns:
            list, by host.
        """
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        longest = int(self._all(np.int32(len(text))).max())
        padded = np.full(1 << max(longest - 1, 1023).bit_length(), ord(" "), np.uint8)
        padded[: len(text)] = text
        return [json.loads(row.tobytes()) for row in self._all(padded)]

    @staticmethod
    def _all(array):
        from jax.experimental.multihost_utils import process_allgather

        return process_allgather(array)

    def greatest(self, number):
        """The greatest of a number of each host, int."""
        return number if self.count == 1 else int(self._all(np.int32(number)).max())

    def each(self, work):
        """Runs a function on each host. If it fails on one, all raise.

        Args:
            work: function without arguments, which computes on no device.

        Returns:
            What it returned on this host.

        Raises:
            ValueError: it failed on another host. Where it failed, its own exception is raised.
        """
        if self.count == 1:
            return work()
        result = error = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        failures = self.gather(None if error is None else f"{error}")
        if error is not None:
            self.ends_together = True
            raise error
        for host, failure in enumerate(failures):
            if failure is not None:
                self.ends_together = True
                raise ValueError(f"Host {host} cannot train: {failure}")
        return result

    def first(self, work):
        """As `each`, but on the first host alone; the others wait, and have `None`."""
        return self.each(lambda: work() if self.is_first else None)

    def check_same(self, facts):
        """Checks that all hosts are about to do the same.

        Args:
            facts: dict of str to value of JSON types. What a message calls them, and what they are.

        Raises:
            ValueError: a host has another value than the first; raised on all.
        """
        facts_of_hosts = self.gather(facts)
        for host, facts_of_host in enumerate(facts_of_hosts):
            for name, value in facts_of_host.items():
                if value != (first_value := facts_of_hosts[0].get(name)):
                    self.ends_together = True
                    values = f", {value} and not {first_value}"
                    values = values if len(values) < 51 else ""  # A digest tells nothing.
                    raise ValueError(
                        f"Host {host} has another {name} than host 0{values}: give all hosts the "
                        "same options, files and versions."
                    )

    @contextlib.contextmanager
    def together(self):
        """In this context a host that is lost ends the process: JAX ends it, with the reason."""
        try:
            yield
        except RuntimeError as error:
            # Where another host is lost, JAX knows which one when its time is up, and then ends
            # this process.
            if self.count > 1:
                import jax

                if isinstance(error, jax.errors.JaxRuntimeError):
                    time.sleep(seconds_of_silence() + 15)
            raise
        finally:
            if self.ends_together:
                self.part()

    def part(self):
        """Waits for the other hosts, and ends the connection; what follows computes alone."""
        if self.count == 1:
            return
        import jax

        self.ends_together = False
        keras.distribution.set_distribution(None)
        jax.distributed.shutdown()


def check_shared(path, hosts):
    """Checks that all hosts see the run directory that the first has locked.

    Args:
        path: `pathlib.Path` of the run directory.
        hosts: `Hosts`.

    Raises:
        ValueError: a host does not see it.
    """
    lock = path / files.LOCK_FILE
    seen = hosts.gather(lock.read_text() if lock.is_file() else None)

    def check():
        if not path.is_dir() or seen[hosts.index] != seen[0]:
            raise ValueError(
                f"this host does not see {path} of host 0: all hosts need it under this name, "
                "on a file system that they share."
            )

    hosts.each(check)


def join_hosts(place):
    """Meets the other hosts of a training.

    Args:
        place: `HostPlace` of this host, or `None` for a training on one host.

    Returns:
        `Hosts`.

    Raises:
        ValueError: the backend is not JAX, or JAX was used before in this process.
    """
    if place is None:
        return Hosts()
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Several hosts train together on JAX alone: choose the backend jax, or train on one "
            "host."
        )
    if place.count == 1:
        return Hosts()
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Programs that run side by side may wait for the other hosts in different orders, for ever.
    # This runs one after the other within a process; `fit` waits for each step besides.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    try:
        # Not by `keras.distribution.initialize`, which has no times; it does the same.
        jax.distributed.initialize(
            place.coordinator,
            place.count,
            place.index,
            # Else Slurm's number of a process on its node chooses one device for it.
            cluster_detection_method="deactivate",
            coordinator_bind_address=place.coordinator if place.is_on_one_machine else None,
            initialization_timeout=seconds_to_meet(),
            heartbeat_timeout_seconds=seconds_of_silence(),
            shutdown_timeout_seconds=_SECONDS_TO_PART,
        )
    except RuntimeError as error:
        if "must be called before" not in str(error) and "only be called once" not in str(error):
            raise
        raise ValueError(
            "Hosts can meet only before JAX has computed anything, and once in a process: begin "
            "the training in a new process."
        ) from error
    met = Hosts(place.index, place.count)
    versions = {"version of Keras": keras.__version__, "version of JAX": jax.__version__}
    met.check_same({"number of devices": jax.local_device_count(), **versions})
    # What has no seed of its own takes one from Keras, and must take the same everywhere.
    keras.utils.set_random_seed(met.gather(random.getrandbits(31))[0])
    return met
