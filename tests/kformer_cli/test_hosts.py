"""The addresses of hosts, and what is said when one is lost."""

import signal

import pytest

from kformer.trainer import train_run
from kformer_cli.hosts import explanation, runs_as_child
from kformer_cli.main import main
from kformer_options.host_addresses import (
    DEFAULT_PORT,
    HostPlace,
    first_node,
    place_of_host,
    seconds_of_silence,
    seconds_to_meet,
)

pytestmark = pytest.mark.any_backend


def test_addresses():
    place = HostPlace("a:1234", 1, 2)
    assert place_of_host(["a:1234", "b:1234"], 1) == place
    assert place_of_host("a:1234, b:1234", 1) == place == place_of_host(["a:1234,b"], 1)
    assert place_of_host(["a", "b"], 0).coordinator == f"a:{DEFAULT_PORT}"
    assert place_of_host(["fe80::1", "b"], 0).coordinator == f"[fe80::1]:{DEFAULT_PORT}"
    assert place_of_host(["[fe80::1]:5", "b"], 0).coordinator == "[fe80::1]:5"
    assert place_of_host(["127.0.0.1:1", "127.0.0.1:2"], 0).is_on_one_machine
    assert place_of_host(None, None) is None


@pytest.mark.parametrize(
    "hosts, index, words",
    [
        (["a", "b"], None, "no index among 2 hosts"),
        (["a", "b"], 2, "the index 2 among 2 hosts"),
        (["a", "a"], 0, "not distinct"),
        ("a,,b", 0, "lack an address"),
        (None, 1, "give hosts, too"),
        (["auto"], 1, "no addresses and no index"),
        (["auto", "a"], None, "no addresses and no index"),
    ],
)
def test_refused_addresses(hosts, index, words):
    with pytest.raises(ValueError, match=words):
        place_of_host(hosts, index)


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("node1", "node1"),
        ("node[01-04,7]", "node01"),
        ("a,b", "a"),
        ("gpu[7,9],cpu[1-2]", "gpu7"),
        ("rack[2-3]n[05-06]", "rack2n05"),
    ],
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert first_node(nodes) == first


def test_places_that_launchers_describe():
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "node[01-04]"}
    slurm["SLURM_JOB_ID"] = "5"
    assert place_of_host("auto", None, slurm) == HostPlace(f"node01:{DEFAULT_PORT + 5}", 3, 4)
    launcher = {"MASTER_ADDR": "m", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    # Within an allocation of Slurm the nearer launcher counts.
    assert place_of_host("auto", None, slurm | launcher) == HostPlace("m:29500", 1, 2)
    launcher["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    assert place_of_host("auto", None, launcher).coordinator == "m:29501"
    job = {"KFORMER_HOSTS": "job-0.net,job-1.net", "JOB_COMPLETION_INDEX": "1"}
    assert place_of_host("auto", None, launcher | job) == HostPlace(
        f"job-0.net:{DEFAULT_PORT}", 1, 2
    )
    # Without "auto" nothing is read.
    assert place_of_host(None, None, job) is None


@pytest.mark.parametrize(
    "environment, words",
    [
        ({}, "No launcher"),
        ({"KFORMER_HOSTS": "a,b"}, "neither KFORMER_HOST_INDEX"),
        ({"MASTER_ADDR": "m", "RANK": "2", "WORLD_SIZE": "2"}, "host 2 of 2"),
        ({"MASTER_ADDR": "m", "RANK": "x", "WORLD_SIZE": "2"}, "whole number"),
    ],
)
def test_environments_that_describe_no_hosts(environment, words):
    with pytest.raises(ValueError, match=words):
        place_of_host("auto", None, environment)


@pytest.mark.parametrize(
    "seconds, name",
    [
        (seconds_of_silence, "KFORMER_HEARTBEAT_SECONDS"),
        (seconds_to_meet, "KFORMER_MEETING_SECONDS"),
    ],
)
def test_a_variable_that_is_no_number_is_named(seconds, name, monkeypatch):
    monkeypatch.setenv(name, "1m")
    with pytest.raises(ValueError, match=f"^{name} must be a whole number, but it is '1m'"):
        seconds()


def test_what_is_said_when_a_host_is_lost(tmp_path):
    arguments = ["train", "--output", str(tmp_path), "--hosts", "a,b"]
    silent = "The following tasks are unhealthy (stopped sending heartbeats):\n1\n3\nThe tasks"
    sentence = explanation(silent, signal.SIGABRT, arguments)
    assert sentence.startswith("Hosts 1 and 3 no longer answer: start the same command with")
    assert sentence.endswith(f"{tmp_path} has no checkpoint yet, so the training begins at step 0.")
    for step in (5, 10):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    sentence = explanation("Failed to send RPC to coordination service.", signal.SIGABRT, arguments)
    assert sentence.startswith("Host 0 no longer answers")
    assert sentence.endswith(f"the training goes on from step 10 of {tmp_path}.")
    hung = (
        "DEADLINE_EXCEEDED: Deadline Exceeded\nRPC: /xla.coordination.CoordinationService/Heartbeat"
    )
    assert explanation(hung, signal.SIGABRT, arguments).startswith("Host 0 no longer answers")
    assert "within 300 seconds" in explanation(
        "DEADLINE_EXCEEDED\n\nRPC: /xla.coordination.CoordinationService/RegisterTask", 6, arguments
    )
    assert "ended by SIGKILL" in explanation("", signal.SIGKILL, arguments)


def test_only_a_training_on_hosts_has_a_process_of_its_own(monkeypatch):
    assert runs_as_child(["train", "--hosts", "a,b"]) and runs_as_child(["train", "--hosts=auto"])
    assert not runs_as_child(["train", "--output", "run"])
    assert not runs_as_child(["translate", "--hosts", "a"])
    monkeypatch.setenv("KFORMER_HOST_DESCRIPTORS", "3,4")
    assert not runs_as_child(["train", "--hosts", "a,b"])


def test_a_wrong_place_is_one_sentence(capfd, tmp_path):
    assert main(["train", "--output", str(tmp_path / "run"), "--hosts", "a,b"]) == 1
    error = capfd.readouterr().err
    assert error.startswith("error: This host has no index among 2 hosts: give --host-index 0")
    assert error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_an_effort_is_refused_on_several_hosts(tmp_path):
    with pytest.raises(
        ValueError, match="^An effort of 2 or 3 trains on one host: leave hosts out"
    ):
        train_run(tmp_path / "run", effort=2, hosts=["a", "b"], host_index=1)
