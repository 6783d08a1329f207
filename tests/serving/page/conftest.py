"""A browser and servers for the tests of the page."""

import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import shutil
import threading

import pytest

pytest.importorskip("starlette", reason="the page needs kformer[serve]")
pytest.importorskip("uvicorn", reason="the page needs kformer[serve]")

import uvicorn  # noqa: E402

from kformer.serving import interface  # noqa: E402
from kformer.serving.ingress.app import make_app  # noqa: E402
from kformer.serving.ingress.ingress import Ingress  # noqa: E402
from kformer.serving.keys import ApiKeys  # noqa: E402
from kformer.serving.settings import ServerSettings  # noqa: E402
from tests.serving.page.engines import SavedModelEngine, ToldEngine, version_of  # noqa: E402

MOST_BYTES = 20_000
SENTENCE = "Two children are playing in the snow."
ANSWER = {
    "best": [
        ("Zwei Kinder spielen im Schnee.", -0.5),
        ("Zwei Kinder spielen Schnee.", -2.0),
        ("Kinder spielen im Schnee.", -3.0),
    ],
    "source": [
        "\u2581Two",
        "\u2581children",
        "\u2581are",
        "\u2581play",
        "ing",
        "\u2581in",
        "\u2581the",
    ]
    + ["\u2581snow", "."],
    "target": ["\u2581Zwei", "\u2581Kinder", "\u2581spiel", "en", "\u2581im", "\u2581Schnee", "."],
    "shape": (6, 4),
}
# Its sign counts as one character in Python, as two in a browser.
DOUBTFUL = "\U0001f600 Call 555 now."


@functools.cache
def why_no_browser():
    """Why the tests in a browser cannot run here, or `None`."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install chromium chromium-driver)"
    return None


@contextlib.contextmanager
def serving(ingress):
    """Yields the address of a server."""
    server = uvicorn.Server(
        uvicorn.Config(make_app(ingress), port=0, log_level="error", lifespan="off", ws="none")
    )
    ready = threading.Event()
    startup = server.startup

    async def started(**options):
        await startup(**options)
        ready.set()

    server.startup = started
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(30)
    (socket,) = server.servers[0].sockets
    yield f"http://127.0.0.1:{socket.getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="session")
def told_engine():
    outputs = {name: ["translation"] for name in ("serving_default", "n_best", "attention")}
    return ToldEngine(
        [
            version_of("en-de", outputs, pairs=(("en", "de"),), version=3),
            version_of("en-ar", outputs, pairs=(("en", "ar"),), example="Hello"),
            version_of("plain", {"serving_default": ["translation"]}),
        ],
        {SENTENCE: ANSWER, DOUBTFUL: {"best": [("Ruf an ruf an jetzt.", -1.0)]}},
    )


@pytest.fixture(scope="session")
def told_ingress(told_engine, tmp_path_factory):
    terms = tmp_path_factory.mktemp("glossary") / "terms.tsv"
    terms.write_text("snow\tPulverschnee\nKim\n", encoding="utf-8")
    settings = ServerSettings(
        ["model=path"], max_text_bytes=MOST_BYTES, glossaries=[f"winter={terms}"]
    )
    return Ingress(told_engine, settings)


@pytest.fixture(scope="session")
def told_address(told_ingress):
    with serving(told_ingress) as address:
        yield address


@pytest.fixture
def engine(told_engine, told_ingress):
    """The engine that answers as told, as new."""
    told_engine.before = None
    told_engine.requests.clear()
    told_engine.dropped = 0
    told_ingress.keys = ApiKeys()
    yield told_engine
    told_engine.before = None
    told_ingress.keys = ApiKeys()


@pytest.fixture(scope="session")
def real_engine(frozen):
    engine = SavedModelEngine(frozen, "frozen", example="twenty past five")
    for signature in ("n_best", "attention"):  # The first call takes long.
        engine.compute(interface.Request("frozen", [b"one"], signature))
    return engine


@pytest.fixture(scope="session")
def real_address(real_engine):
    with serving(Ingress(real_engine, ServerSettings(["model=path"]))) as address:
        yield address


@pytest.fixture(scope="session")
def driver():
    if why_no_browser():
        pytest.skip(why_no_browser())
    os.environ["SE_OFFLINE"] = "true"
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "lang=en-US"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


class Browser:
    """A window with the page, and what a test does there."""

    def __init__(self, driver):
        self.driver = driver

    def __getitem__(self, selector):
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def texts(self, selector):
        code = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText.trim())"
        return self.js(code, selector)

    def wait(self, condition, seconds=60):
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, seconds, 0.02).until(lambda _: condition())

    def open(self, address):
        self.driver.get(address)
        known = "state.models.length > 0 || state.problem !== null || !get('key-form').hidden"
        self.wait(lambda: self.js(f"return {known}"))

    def set_text(self, text):
        """Puts a text into the box as a paste does, and returns when all of it is shown."""
        code = (
            "const box = get('source'); box.value = arguments[0]; state.reply = null;"
            "state.problem = null; state.attention = null; get('details').hidden = true;"
            "box.dispatchEvent(new InputEvent('input', {bubbles: true}));"
        )
        self.js(code, text)
        self.wait(lambda: self.js("return Boolean(state.attention || state.problem)"))

    def size(self, width, height=800):
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def scheme(self, name):
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def language(self, name):
        code = "document.querySelector(`[data-language=${arguments[0]}]`).click()"
        self.js(code, name)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def violations(self):
        """What axe finds: (rule, first element) of each violation."""
        script = pytest.importorskip("axe_core_python")
        folder = pathlib.Path(script.__file__).parent
        # By the protocol: the page itself lets no script of another in.
        code = (folder / "axe.min.js").read_text(encoding="utf-8")
        self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": code})
        found = self.driver.execute_async_script(
            "axe.run({resultTypes: ['violations']}).then((r) => arguments[0](JSON.stringify("
            "r.violations.map((v) => [v.id, v.nodes[0].html, v.nodes[0].failureSummary]))))"
        )
        return json.loads(found)


@pytest.fixture
def browser(driver):
    """A new page in light colors, in a window of 1200 x 800 pixels."""
    browser = Browser(driver)
    driver.get("about:blank")
    browser.size(1200)
    browser.scheme("light")
    yield browser
    driver.get("about:blank")
    driver.get_log("browser")
