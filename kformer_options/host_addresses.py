"""The hosts that train together: from the command line, or as a launcher describes them.

This module imports only the standard library, as `kformer_options.training` does.
"""

import os
import re
from typing import NamedTuple

from kformer_options.names import named

# The port of the first host, where the others meet it.
DEFAULT_PORT = 8476
AUTO = "auto"
# A list of nodes as Slurm writes it, up to the first comma outside of brackets.
_FIRST_NODES = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
# The variables of a process's number and of their count.
_LAUNCHER, _SLURM = ("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class HostPlace(NamedTuple):
    """The place of a host among those that train together.

    Attributes:
        coordinator: str. `HOST:PORT` of the first host.
        index: int, from 0. The number of this host.
        count: int. How many hosts there are.
    """

    coordinator: str
    index: int
    count: int

    @property
    def is_on_one_machine(self):
        """Whether the first host is known to the others by a loopback address."""
        return self.coordinator.rpartition(":")[0] in _LOOPBACK


def seconds_of_silence():
    """Returns the seconds after which a host that answers no more is given up."""
    return _number_in(os.environ, "KFORMER_HEARTBEAT_SECONDS", 60)


def seconds_to_meet():
    """Returns the seconds in which all hosts must have come."""
    return _number_in(os.environ, "KFORMER_MEETING_SECONDS", 300)


def place_of_host(hosts, index, environment=None):
    """The place of this host.

    Args:
        hosts: list of str, str or `None`. The addresses of all hosts, each `HOST` or `HOST:PORT`,
            also several in one str with commas between them; or "auto", which reads them from the
            environment of a launcher; `None` for a training on one host.
        index: int or `None`. The number of this host, from 0; `None` with "auto".
        environment: dict of str, default `None`. `None` for that of the process.

    Returns:
        `HostPlace`, or `None` for a training on one host.

    Raises:
        ValueError: the two do not fit together, or no launcher has set its variables.
    """
    words = [hosts] if isinstance(hosts, str) else list(hosts or ())
    addresses = [part.strip() for word in words for part in str(word).split(",")]
    if not addresses:
        if index is not None:
            raise ValueError(
                f"The index of a host needs the addresses of all: give {named('hosts')}, too."
            )
        return None
    if AUTO in addresses:
        if len(addresses) > 1 or index is not None:
            raise ValueError(
                f"{named('hosts')} auto reads the hosts and the index of this one from the "
                "environment: give no addresses and no index with it."
            )
        return _of_launcher(os.environ if environment is None else environment)
    if not all(addresses):
        raise ValueError(f"The hosts {','.join(addresses)!r} lack an address: give HOST[:PORT].")
    if len(set(addresses)) < len(addresses) and len(set(map(_port, addresses))) == 1:
        raise ValueError(
            f"The hosts {', '.join(addresses)} are not distinct: give each host once, with a port "
            "of its own where several are one machine."
        )
    if index is None or not 0 <= index < len(addresses):
        it = "no index" if index is None else f"the index {index}"
        raise ValueError(
            f"This host has {it} among {len(addresses)} hosts: give {named('host_index')} 0 on the "
            f"first, up to {len(addresses) - 1} on the last."
        )
    return HostPlace(_with_port(addresses[0], DEFAULT_PORT), index, len(addresses))


def _of_launcher(environment):
    """The place of this host by the variables of a launcher."""
    if "KFORMER_HOSTS" in environment:
        for name in ("KFORMER_HOST_INDEX", "JOB_COMPLETION_INDEX"):
            if name in environment:
                return place_of_host(environment["KFORMER_HOSTS"], _number_in(environment, name))
        raise ValueError(
            "KFORMER_HOSTS is set, but neither KFORMER_HOST_INDEX nor JOB_COMPLETION_INDEX, which "
            "Kubernetes sets in an indexed job: set one to the number of this host."
        )
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST"))
    if {"MASTER_ADDR", *_LAUNCHER} <= environment.keys():
        host, names = environment["MASTER_ADDR"], _LAUNCHER
        # torchrun listens on that port itself.
        port = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        port += _number_in(environment, "MASTER_PORT", DEFAULT_PORT)
    elif nodes and set(_SLURM) <= environment.keys():
        host, names = first_node(nodes), _SLURM
        # Two jobs may share a node.
        port = DEFAULT_PORT + _number_in(environment, "SLURM_JOB_ID", 0) % 4096
    else:
        raise ValueError(
            "No launcher describes the hosts in the environment: start the command by srun, or set "
            "KFORMER_HOSTS and KFORMER_HOST_INDEX, or MASTER_ADDR, RANK and WORLD_SIZE; or give "
            "the addresses."
        )
    index, count = (_number_in(environment, name) for name in names)
    if not 0 <= index < count:
        raise ValueError(f"The environment has host {index} of {count}, but hosts count from 0.")
    return HostPlace(_with_port(host, port), index, count)


def first_node(nodes):
    """The first name in a list of nodes as Slurm writes it: `node01` of `node[01-04,7],gpu1`."""
    first = _FIRST_NODES.match(nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _number_in(environment, name, default=None):
    """The whole number that a variable of the environment has."""
    value = environment.get(name, default)
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, but it is {value!r}.") from None


def _port(address):
    """The port of an address, or `None`. An IPv6 address with a port stands in brackets."""
    match = re.fullmatch(r"(?:\[.*\]|[^:\[\]]*):(\d+)", address)
    return match and match[1]


def _with_port(address, port):
    if _port(address):
        return address
    is_ipv6 = ":" in address and not address.startswith("[")
    return f"[{address}]:{port}" if is_ipv6 else f"{address}:{port}"
