"""The examples of deployment: each is read by a parser, and its command is one that there is."""

import json
import pathlib
import shutil
import subprocess
import sys

import crossplane
import dockerfile_parse
import pytest
import typer
import yaml

from kformer.serving.ingress.app import description
from kformer.serving.settings import ServerSettings, read_config
from kformer_cli.app import app
from kformer_options.serving import ENGINES

pytestmark = pytest.mark.any_backend

DEPLOY = pathlib.Path(__file__).resolve().parent.parent / "deploy"
PATHS = description()["paths"]


def yaml_of(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def options_of(words):
    """The options of a command line of the server."""
    return typer.main.get_command(app).commands["serve"].make_context("serve", list(words)).params


def image():
    return dockerfile_parse.DockerfileParser(str(DEPLOY / "Dockerfile"), cache_content=True)


def of_image(kind):
    """The value of the last instruction of a kind, from JSON."""
    values = [step["value"] for step in image().structure if step["instruction"] == kind]
    return json.loads(values[-1].removeprefix("--start-period=120s CMD "))


def test_the_image_runs_the_server_and_copies_what_is_there():
    words = of_image("ENTRYPOINT")
    assert words[:2] == ["/opt/kformer/bin/kformer", "serve"]
    options = options_of([*words[2:], *of_image("CMD")])
    assert options["host"] == "0.0.0.0" and str(options["config"]) == "/etc/kformer/serve.yaml"
    compile(of_image("HEALTHCHECK")[2], "HEALTHCHECK", "exec")
    steps = [step for step in image().structure if step["instruction"] == "COPY"]
    names = [name for step in steps[:-1] for name in step["value"].split()[:-1]]
    included = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for name in names:
        assert (DEPLOY.parent / name).exists() and f"!{name}" in included
    script = next(step["value"] for step in image().structure if "case" in step["value"])
    for engine in set(ENGINES) - {"ray"}:
        assert f"{engine}) extras=serve," in script


def test_the_configurations_are_those_of_the_server(tmp_path):
    (config, *_) = yaml_of("kubernetes.yaml")
    inner = tmp_path / "serve.yaml"
    inner.write_text(config["data"]["serve.yaml"])
    settings = [ServerSettings(**read_config(path)) for path in (DEPLOY / "serve.yaml", inner)]
    assert settings[0] == settings[1]
    # Whoever ends the server waits for what is in flight.
    (compose,) = yaml_of("compose.yaml")
    pod = yaml_of("kubernetes.yaml")[1]["spec"]["template"]["spec"]
    assert compose["services"]["kformer"]["stop_grace_period"] == "40s"
    assert pod["terminationGracePeriodSeconds"] == 40 > settings[0].drain_s


def test_compose():
    (compose,) = yaml_of("compose.yaml")
    server, proxy = compose["services"]["kformer"], compose["services"]["proxy"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert set(server["build"]["args"].values()) <= set(ENGINES)
    assert list(proxy["depends_on"]) == ["kformer"]
    volumes = dict(one.split(":")[:2] for one in [*server["volumes"], *proxy["volumes"]])
    files = [name for name in volumes if name.endswith((".yaml", ".conf"))]
    assert len(files) == 2 and all((DEPLOY / name).is_file() for name in files)
    assert volumes["./serve.yaml"] == str(options_of(of_image("CMD"))["config"])


def containers():
    deployment = yaml_of("kubernetes.yaml")[1]
    runtime, model = yaml_of("kserve.yaml")
    assert runtime["kind"] == "ServingRuntime" and model["kind"] == "InferenceService"
    formats = [one["name"] for one in runtime["spec"]["supportedModelFormats"]]
    assert model["spec"]["predictor"]["model"]["modelFormat"]["name"] in formats
    return *deployment["spec"]["template"]["spec"]["containers"], *runtime["spec"]["containers"]


def test_kubernetes_runs_and_probes_the_server():
    for container in containers():
        # KServe writes the name of the model there.
        words = [word.replace("{{.Name}}", "en-de") for word in container["args"]]
        port = options_of(words)["port"] or 8501
        assert [one["containerPort"] for one in container["ports"]] == [port]
        for name in {"startupProbe", "readinessProbe", "livenessProbe"} & set(container):
            probe = container[name]["httpGet"]
            assert probe["path"] in PATHS and probe["port"] in (port, "http")
    _, deployment, service = yaml_of("kubernetes.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    (container, _), volumes = containers(), deployment["spec"]["template"]["spec"]["volumes"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in volumes}


def test_the_proxy_waits_longer_than_the_server_and_reads_as_much():
    parsed = crossplane.parse(str(DEPLOY / "nginx.conf"), check_ctx=False, single=True)
    assert parsed["status"] == "ok"
    upstream, server = parsed["config"][0]["parsed"]
    settings = {one["directive"]: one["args"] for one in server["block"]}
    assert {"server", "keepalive"} == {one["directive"] for one in upstream["block"]}
    assert int(settings["proxy_read_timeout"][0].rstrip("s")) > 60
    assert settings["client_max_body_size"] == ["4m"]
    (closed,) = (one["args"][1] for one in server["block"] if one["args"][0] == "=")
    assert closed in PATHS


def test_the_unit(tmp_path):
    text = (DEPLOY / "kformer.service").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    program, *words = line.removeprefix("ExecStart=").split()
    assert words[0] == "serve" and options_of(words[1:])["config"] is not None
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "kformer.service"
        unit.write_text(text.replace(program, sys.executable))
        verify = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True
        )
        assert not verify.returncode and "kformer.service" not in verify.stderr, verify.stderr
