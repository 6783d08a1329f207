"""Ray, as the batch job and the engine `ray` start it or connect to it.

Ray starts without a dashboard and without usage statistics, and its processes ask each other for a
token. What is started here listens on the loopback interface alone.
"""

import contextlib
import os
import secrets

from kformer_options.installed import check_extra
from kformer_options.training import THREAD_VARIABLES

# Ray reads these once, when it is imported.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # A warning about GPUs, which tells a machine without any nothing.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# What is started here.
_LOCAL = {
    # By this setting Ray takes 127.0.0.1 as the address of this machine, as it does on macOS and
    # Windows. Then its processes listen there, and not on all interfaces.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Its own processes may take longer to start than the half minute that Ray waits for each.
    "RAY_gcs_server_port_wait_time_s": "120",
    "RAY_raylet_start_wait_time_s": "120",
    # Ray's own metrics, which nobody reads.
    "RAY_enable_metrics_collection": "0",
    # Its history of tasks, which grows with their number.
    "RAY_task_events_report_interval_ms": "0",
    # Processes start when there is work for them, with its environment.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_LEAST_STORE_BYTES = 128 << 20
_STARTS = 3


def worker_variables(backend, threads):
    """The environment variables of a process that computes.

    Args:
        backend: str. The backend of Keras.
        threads: int.

    Returns:
        dict of str.
    """
    threads = dict.fromkeys(THREAD_VARIABLES, str(threads))
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **threads}


def _init(ray, options):
    for left in range(_STARTS - 1, -1, -1):
        try:
            return ray.init(**options)
        except Exception as error:
            # Ray waits for its own processes for half a minute, which a busy machine exceeds.
            if "timed out during startup" not in str(error) or not left:
                raise
            ray.shutdown()


@contextlib.contextmanager
def connected(address=None, *, num_cpus=1):
    """Starts Ray on this machine, or connects to a cluster, and leaves it at the end.

    A process that has connected to Ray already stays with that one.

    Args:
        address: str, default `None`. Address of the cluster's head, such as `10.0.0.1:6379`, or
            `auto` on one of its machines; `None` starts Ray here, for this process alone.
        num_cpus: int, default 1. What Ray gives to tasks at once, where it is started here.

    Yields:
        The module `ray`.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: there is no cluster at the address, or it wants another token.
    """
    os.environ.update(_ENVIRONMENT)
    if address is None:
        os.environ.update(_LOCAL)
        if not any(os.environ.get(name) for name in _TOKEN_VARIABLES):
            # Ray would write one into a file in the user's home, which others can read.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    check_extra("Work on Ray", "cluster", ("ray",))
    import ray

    if ray.is_initialized():
        yield ray
        return
    # "local" is not the cluster that RAY_ADDRESS may name.
    options = {"address": address or "local", "configure_logging": False, "log_to_driver": False}
    if address is None:
        memory = _LEAST_STORE_BYTES + (num_cpus << 24)
        options |= {"num_cpus": num_cpus, "include_dashboard": False, "object_store_memory": memory}
    try:
        _init(ray, options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if address is None:
            raise
        reason = " ".join(str(error).split())[:300]
        raise ConnectionError(
            f"There is no Ray cluster to work with at {address} ({reason}): start one with `ray "
            "start --head`, and give this process its token by RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()
