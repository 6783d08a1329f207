"""Malformed requests: each is the client's error, in its protocol's shape."""

import json
import os

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.serving.conftest import MODEL

pytestmark = pytest.mark.any_backend

# KFORMER_MALFORMED=100000 makes a campaign of it.
COUNT = int(os.environ.get("KFORMER_MALFORMED", "500"))
PATHS = (
    f"/v1/models/{MODEL}:predict",
    f"/v1/models/{MODEL}/versions/1:predict",
    f"/v2/models/{MODEL}/infer",
    "/translate",
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["b64", "text", "data", "name", "shape"]), inner)
    ),
    max_leaves=8,
)
_KEYS = (
    "instances inputs signature_name q source target alternatives format outputs parameters id "
    "api_key binary_data_size datatype"
).split()
_BODIES = st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=4)
_V2 = st.fixed_dictionaries(
    {
        "inputs": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": st.just("text") | _JSON,
                    "datatype": st.just("BYTES") | _JSON,
                    "shape": st.lists(st.integers(-2, 3), max_size=3) | _JSON,
                    "data": _JSON,
                    "parameters": st.dictionaries(st.just("binary_data_size"), _JSON) | _JSON,
                },
            ),
            max_size=2,
        )
    },
    optional={"outputs": _JSON, "parameters": _JSON},
)
_CONTENT = st.binary(max_size=80) | (_BODIES | _V2).map(lambda value: json.dumps(value).encode())
_HEADERS = st.dictionaries(
    st.sampled_from(["inference-header-content-length", "content-type", "content-encoding"]),
    st.sampled_from(
        ["0", "7", "-1", "x", "9" * 20, "application/json", "application/x-www-form-urlencoded"]
    ),
    max_size=2,
)
METHODS = st.sampled_from(["POST"] * 8 + ["GET", "PUT", "DELETE", "OPTIONS"])


@pytest.mark.heavy
def test_malformed_requests_are_the_clients_errors(client):
    counts = {}

    @hypothesis.settings(
        max_examples=COUNT,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        st.sampled_from(PATHS) | st.text(max_size=12).map(lambda text: f"/v1/models/{text!r}"),
        METHODS,
        _CONTENT,
        _HEADERS,
    )
    def ask(path, method, content, headers):
        answered = client.request(method, path, content=content, headers=headers)
        status = answered.status_code
        counts[status] = counts.get(status, 0) + 1
        assert status < 500, (status, path, content)
        if status >= 400 and method == "POST":
            assert list(answered.json()) == ["error"]

    ask()
    # Some are well-formed by chance.
    assert sum(n for status, n in counts.items() if status >= 400) >= 0.9 * sum(counts.values())
    assert client.get("/-/ready").status_code == 200
