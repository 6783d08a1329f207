"""The description in OpenAPI is that of the routes."""

import json

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from kformer.plots.page.document import asset_names
from kformer.serving.ingress.app import description, make_app
from kformer.serving.ingress.ingress import Ingress
from kformer.serving.settings import ServerSettings
from tests.serving.page.engines import ToldEngine, version_of

pytestmark = pytest.mark.any_backend
OUTPUTS = {"serving_default": ["translation"], "n_best": ["translations"]}
SERVED = version_of("en-de", OUTPUTS, pairs=(("en", "de"),), search={"n_best": 2})
SCHEMA = schemathesis.openapi.from_asgi(
    "/openapi.json",
    make_app(
        Ingress(ToldEngine([SERVED]), ServerSettings(["m=path"], allowed_hosts=["testserver"]))
    ),
)


def referenced(value):
    """Each `$ref` in a value of JSON."""
    if isinstance(value, list):
        return {name for one in value for name in referenced(one)}
    if isinstance(value, dict):
        names = {value["$ref"]} if "$ref" in value else set()
        return names.union(*map(referenced, value.values()))
    return set()


def test_it_has_each_route_and_no_other():
    app = make_app(Ingress(ToldEngine([]), ServerSettings(["m=path"])))._app
    routes = {}
    for route in app.routes:
        if route.path.removeprefix("/page/") not in asset_names():
            methods = route.methods - {"HEAD"}
            # A body is refused with 405 where the method is not POST.
            takes_body = "post_route" in getattr(route.endpoint, "__qualname__", "")
            routes[route.path] = {"POST"} if takes_body else methods
    content = description()
    assert routes == {
        path: {name.upper() for name in item if name != "parameters"}
        for path, item in content["paths"].items()
    }
    for path, item in content["paths"].items():
        names = {one["$ref"].rpartition("/")[2] for one in item.get("parameters", ())}
        assert names == {name for name in ("model", "version") if f"{{{name}}}" in path}
    parts = {
        f"#/components/{kind}/{name}"
        for kind, values in content["components"].items()
        for name in values
        if kind != "securitySchemes"
    }
    assert referenced(content) == parts


def test_bodies_of_the_documentation_fit_their_schemas():
    content = json.loads(json.dumps(description()))
    schemas = {"components": content["components"]}

    def fits(name, body):
        schema = {"$ref": f"#/components/schemas/{name}", **schemas}
        return jsonschema.Draft202012Validator(schema).is_valid(body)

    assert fits("PredictRequest", {"instances": [{"text": "a", "target_language": "de"}, "b"]})
    assert fits("PredictRequest", {"inputs": {"text": ["a"], "target_language": "fr"}})
    assert fits("PredictRequest", {"inputs": [{"b64": "YQ=="}], "signature_name": "n_best"})
    for wrong in ({}, {"instances": ["a"], "inputs": ["a"]}, {"instances": [1]}, {"inputs": 1}):
        assert not fits("PredictRequest", wrong)
    for item in content["paths"].values():
        for media in item.get("post", {}).get("requestBody", {}).get("content", {}).values():
            name = media["schema"]["$ref"].rpartition("/")[2]
            assert "example" not in media or fits(name, media["example"])


@SCHEMA.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_schemathesis_sends_is_answered_as_described(case):
    """Its other checks know neither which languages there are, nor that 501 and 503 are meant."""
    checks = schemathesis.checks
    response = case.call_and_validate(
        excluded_checks=[checks.not_a_server_error, checks.positive_data_acceptance]
    )
    assert response.status_code != 500
