"""One Ray for all tests of a process: its start takes seconds."""

import atexit
import contextlib
import functools

from kformer.serving import ray_cluster


@functools.cache
def shared_ray():
    """The module `ray`, with a Ray of four CPUs that ends with the process, and its address."""
    stack = contextlib.ExitStack()
    ray = stack.enter_context(ray_cluster.connected(num_cpus=4))
    atexit.register(stack.close)
    return ray, ray.get_runtime_context().gcs_address
