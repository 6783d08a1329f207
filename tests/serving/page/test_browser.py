"""The page in a real browser."""

import asyncio
import re
import threading

import numpy as np
import pytest

from kformer.plots.page.document import standalone_page
from kformer.serving import interface
from kformer.serving.keys import ApiKeys
from tests.serving.page.conftest import DOUBTFUL, MOST_BYTES, SENTENCE, why_no_browser
from tests.serving.page.engines import version_of

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.heavy,
    pytest.mark.skipif(why_no_browser() is not None, reason=str(why_no_browser())),
]
MARKUP = '</textarea><img src=x onerror="window.hit=1"><script>window.hit=1</script> <b>a</b> &amp;'


@pytest.fixture
def page(browser, engine, told_address):
    browser.open(told_address)
    yield browser
    browser.js("localStorage.clear(); sessionStorage.clear()")


def test_it_shows_what_the_saved_model_says(browser, real_engine, real_address):
    browser.open(real_address)
    browser["#example"].click()
    browser.wait(lambda: browser.js("return state.attention !== null"))
    text = "twenty past five"
    assert browser["#source"].get_property("value") == text
    (best,) = real_engine.translator.translate([text], n_best=4)
    expected = [hypothesis.text for hypothesis in best.hypotheses]
    assert browser.texts("#translation p") == [best.text]
    shown = [shown.replace("\u2423", " ") for shown in browser.texts("#hypotheses .text")]
    assert shown == expected
    scores = [one.replace("\u2212", "-").split()[-1] for one in browser.texts("#hypotheses .score")]
    np.testing.assert_allclose(
        [float(score) for score in scores], [one.score for one in best.hypotheses], atol=0.006
    )
    assert re.fullmatch(r"frozen \(version 1\), [\d.]+ m?s", browser["#facts"].text)
    weights = real_engine.compute(interface.Request("frozen", [text.encode()], "attention"))
    weights = weights["attention"][0]
    browser["#map-details summary"].click()
    for layer, head in ((-1, -1), (0, 1), (1, 0)):
        code = (
            "get('layer').value = arguments[0]; get('head').value = arguments[1];"
            "get('layer').dispatchEvent(new Event('change'));"
        )
        browser.js(code, layer, head)
        rows = browser.js(
            "return [...document.querySelectorAll('#map-table tbody tr')].map((r) =>"
            "[...r.querySelectorAll('td')].map((c) => Number(c.innerText)))"
        )
        part = weights[slice(None) if layer < 0 else [layer]]
        part = part[:, slice(None) if head < 0 else [head]].mean((0, 1))
        expected = part[: len(rows), : len(rows[0])]
        np.testing.assert_allclose(np.array(rows) / 100, expected, atol=6e-4)


def test_it_translates_what_is_typed(page, engine):
    page["#source"].send_keys("ab")
    page.wait(lambda: page.texts("#translation p") == ["AB"])
    engine.requests.clear()
    # Many keys within the pause: one request for a translation, of the last text.
    page.js(
        "for (const text of ['a', 'a b', 'a b c']) { get('source').value = text;"
        "get('source').dispatchEvent(new InputEvent('input')); }"
    )
    page.wait(lambda: page.texts("#translation p") == ["A B C"])
    page.wait(lambda: len(engine.requests) > 1)
    assert [request.signature for request in engine.requests] == ["n_best", "attention"]
    page["#clear"].click()
    page.wait(lambda: "appears here" in page["#translation"].text)
    assert not page["#details"].is_displayed()


def test_an_unfinished_character_is_no_text(page, engine):
    page.js(
        "get('source').value = 'ni'; get('source').dispatchEvent("
        "new InputEvent('input', {isComposing: true}));"
    )
    assert page.js("return state.timer") is None and not engine.requests
    page.js("get('source').dispatchEvent(new CompositionEvent('compositionend'))")
    page.wait(lambda: page.texts("#translation p") == ["NI"])


def test_a_late_answer_is_dropped(page, engine):
    held, began = threading.Event(), threading.Event()

    async def before(request):
        if request.texts == [b"first"]:
            began.set()
            await asyncio.to_thread(held.wait, 20)

    engine.before = before
    # The answer arrives although its request was given up.
    page.js(
        "AbortController.prototype.abort = () => {}; get('source').value = 'first'; schedule(0)"
    )
    assert began.wait(20)
    page.set_text("second")
    held.set()
    page.js("window.settled = false; fetch('page/models').then(() => { settled = true; })")
    page.wait(lambda: page.js("return settled"))
    page.wait(lambda: len(engine.requests) == 3)
    assert page.texts("#translation p") == ["SECOND"]


def test_a_request_that_is_given_up_is_not_computed(page, engine):
    began, dropped = threading.Event(), threading.Event()

    async def before(request):
        if request.texts == [b"first"]:
            began.set()
            try:
                await asyncio.sleep(20)
            finally:
                dropped.set()

    engine.before = before
    page.js("get('source').value = 'first'; schedule(0)")
    assert began.wait(20)
    page.set_text("second")
    assert dropped.wait(5) and engine.dropped == 1


def test_hypotheses_and_where_they_parted(page):
    page.set_text(SENTENCE)
    assert page.texts("#hypotheses mark") == ["Schnee.", "Kinder spielen im Schnee."]
    assert page.texts("#hypotheses .probability") == ["61%", "14%", "5.0%"]
    assert page.texts("#tree .part") == [
        "Zwei Kinder spielen",
        "im Schnee.",
        "Schnee.",
        "Kinder spielen im Schnee.",
    ]
    leaves = page.js("return [...document.querySelectorAll('#tree .leaf')].map((e) => e.title)")
    assert leaves == ["hypothesis 1", "hypothesis 2", "hypothesis 3"]


def test_the_keyboard_alone(page):
    from selenium.webdriver import Keys

    page["#source"].click()
    page.set_text(SENTENCE)

    def tab_to(selector):
        for _ in range(12):
            page.press(Keys.TAB)
            if page.js("return document.activeElement.matches(arguments[0])", selector):
                outline = page.js("return getComputedStyle(document.activeElement).outlineStyle")
                assert outline == "solid", f"no visible focus on {selector}"
                return
        raise AssertionError(f"no way to {selector} by the keyboard")

    tab_to("#target-words button")
    assert page["#words-reading"].text.startswith("Zwei came from Two")
    page.press(Keys.ARROW_RIGHT)
    assert page["#words-reading"].text.startswith("Kinder came from children")
    assert page.texts("#source-words .on") == ["children"]
    tab_to("#words-details summary")
    page.press(Keys.ENTER)
    page.wait(lambda: page.texts("#words-table tbody th")[:2] == ["Zwei", "Kinder"])
    tab_to("#layer")
    page.press(Keys.HOME)
    page.wait(lambda: page["#layer"].get_property("value") == "-1")
    tab_to("#map")
    assert "\u2423Zwei \u2192 \u2423Two" in page["#map-reading"].text
    page.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert "\u2423Kinder \u2192 \u2423children" in page["#map-reading"].text


def test_the_pointer(page):
    from selenium.webdriver import ActionChains

    page.set_text(SENTENCE)
    ActionChains(page.driver).move_to_element(page.all("#target-words button")[0]).perform()
    page.wait(lambda: page["#words-reading"].text.startswith("Zwei came from Two"))
    assert page.all("#curves .active")
    # The middle of the map.
    ActionChains(page.driver).move_to_element(page["#map canvas"]).perform()
    page.wait(lambda: "\u2192" in page["#map-reading"].text)
    page.js("document.querySelectorAll('#overview span')[0].click()")
    assert [page[f"#{name}"].get_property("value") for name in ("layer", "head")] == ["0", "0"]


def test_markup_is_text(page):
    page.set_text(f"{MARKUP}\n{MARKUP} 2")
    assert page.texts("#translation p") == [MARKUP.upper(), f"{MARKUP.upper()} 2"]
    assert page.js("return window.hit === undefined")
    assert not page.all("body img") and not page.all("body b b, #translation *:not(p)")
    # Nor may a script that got in run.
    page.js(
        "const s = document.createElement('script'); s.textContent = 'window.hit = 1';"
        "document.body.append(s)"
    )
    assert page.js("return window.hit === undefined")
    assert any(
        "Content Security Policy" in row["message"] for row in page.driver.get_log("browser")
    )


def test_what_was_left_out_is_marked(page):
    page.set_text(SENTENCE)
    assert not page["#coverage-card"].is_displayed()
    page.set_text(f"{SENTENCE}\n{DOUBTFUL}")
    assert "left out or added something: 2." in page["#facts"].text
    page.js("chooseLine(1)")
    page.wait(page["#coverage-card"].is_displayed)
    found = [
        page[f"#coverage-{side}"].get_attribute("textContent") for side in ("source", "target")
    ]
    assert found[0] == DOUBTFUL.replace("555", "left out: 555")
    assert found[1] == "Ruf an without a source: ruf an jetzt."
    assert page["#coverage-target"].get_attribute("lang") == "de"
    page.language("zh")
    assert page["mark.missing"].get_attribute("textContent") == "漏译：555"
    assert page.violations() == []
    page.language("en")


def test_each_line_has_its_own_hypotheses(page):
    page.set_text(f"\n{SENTENCE}\na b")
    assert page.texts("#line option") == [f"2: {SENTENCE}", "3: a b"]
    assert page.texts("#hypotheses .text")[0] == "Zwei Kinder spielen im Schnee."
    page.js("get('line').value = '2'; get('line').dispatchEvent(new Event('change'))")
    page.wait(lambda: page.texts("#target-words button") == ["A", "B"])
    assert page.texts("#hypotheses .text") == ["A B"]


def test_the_pairs_of_one_model(browser, engine, told_address, monkeypatch):
    pairs = ("en", "de"), ("de", "en"), ("en", "fr")
    fields = {"pairs": pairs, "target_languages": ("de", "en", "fr")}
    outputs = {name: ["translation"] for name in ("serving_default", "n_best", "attention")}
    monkeypatch.setattr(engine, "listed", [version_of("many", outputs, **fields)])
    browser.open(told_address)
    labels = ["English → German", "German → English", "English → French"]
    assert browser.texts("#model option") == labels
    browser["#model"].find_elements("css selector", "option")[2].click()
    browser.set_text("Two cats")
    assert [request.target_languages for request in engine.requests[-2:]] == [[b"fr"]] * 2
    code = "return document.querySelector('#translation p').lang"
    assert browser.js(code) == "fr" and browser["#target-language"].text == "French"
    browser.language("zh")
    assert browser.texts("#model option")[2] == "英语 → 法语"
    browser.language("en")
    # Beside another model its name stands before them.
    models = [*engine.listed, version_of("plain", {"serving_default": ["translation"]})]
    monkeypatch.setattr(engine, "listed", models)
    browser.open(told_address)
    assert browser.texts("#model option")[2:] == ["many: English → French", "plain"]


def test_a_glossary(page, engine):
    page["#source"].send_keys("the snow")
    page.wait(lambda: page.texts("#translation p") == ["THE SNOW"])
    engine.requests.clear()
    page.js("get('glossary').value = 'winter'; get('glossary').dispatchEvent(new Event('change'))")
    page.wait(lambda: page.texts("#translation p") == ["THE Pulverschnee"])
    assert "terms used: snow → Pulverschnee (1 of 1)" in page["#facts"].text
    assert "put together" in page["#details"].text
    assert all(request.signature == "serving_default" for request in engine.requests)
    page["button[data-language=zh]"].click()
    assert page.texts("#glossary option") == ["不用", "winter"]
    assert "拼合" in page["#details"].text
    assert page["#glossary"].get_attribute("value") == "winter"
    assert "术语：snow → Pulverschnee（1 处用了 1 处）" in page["#facts"].text


def test_languages(page, told_address):
    page.set_text(SENTENCE)
    assert page.js("return document.documentElement.lang") == "en"
    page.language("zh")
    assert page.js("return document.documentElement.lang") == "zh-Hans"
    assert page["#hypotheses-title"].text == "候选译文" and page["#source-language"].text == "英语"
    missing = page.js("return Object.keys(TEXTS.en).filter((name) => !(name in TEXTS.zh))")
    assert missing == []
    page.open(told_address)
    assert page["#translation-title"].text == "译文"  # It is kept.
    page.js("localStorage.clear()")
    agent = {"userAgent": "test", "acceptLanguage": "fr-FR,zh-CN,en"}
    page.driver.execute_cdp_cmd("Network.setUserAgentOverride", agent)
    page.open(told_address)
    assert page["#translation-title"].text == "译文"  # The browser's first that the page has.
    agent["acceptLanguage"] = "en-US"
    page.driver.execute_cdp_cmd("Network.setUserAgentOverride", agent)


def test_texts_have_language_and_direction(page):
    page.js("get('model').value = 'en-ar en ar'; get('model').dispatchEvent(new Event('change'))")
    page.set_text("Two cats")
    code = "const e = document.querySelector(arguments[0]); return [e.lang, e.dir]"
    for selector in ("#translation p", "#hypotheses .text", "#target-words", ".labels-left span"):
        assert page.js(code, selector) == ["ar", "rtl"], selector
    for selector in ("#source", "#source-words", ".labels-top span"):
        assert page.js(code, selector) == ["en", "ltr"], selector


def test_a_model_without_attention_and_n_best(page):
    page.js(
        "get('model').value = 'plain'; get('model').dispatchEvent(new Event('change'));"
        "get('source').value = 'a b'; schedule(0)"
    )
    page.wait(lambda: "without its attention" in page["#attention-hint"].text)
    assert page.texts("#hypotheses .text") == ["A B"] and not page["#words-card"].is_displayed()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (interface.DeadlineExceeded("late"), "took too long"),
        (interface.Draining("ending"), "no model that is ready"),
        (interface.ModelFailed("It failed."), "It failed."),
    ],
)
def test_errors_of_the_server(page, engine, error, words):
    async def before(request):
        raise error

    engine.before = before
    page.set_text("a")
    assert words in page["#notice"].text and not page["#details"].is_displayed()
    engine.before = None
    page["#again"].click()
    page.wait(lambda: page.texts("#translation p") == ["A"])
    assert not page["#notice"].is_displayed()


def test_a_busy_server_is_asked_again(page, engine):
    refused = []

    async def before(request):
        if not refused:
            refused.append(request)
            raise interface.Overloaded("full", 0.1)

    engine.before = before
    page.set_text("a")
    page.wait(lambda: page.texts("#translation p") == ["A"])
    assert refused


def test_a_text_that_is_too_long(page):
    page.set_text("a" * (MOST_BYTES + 1))
    assert "than this server takes" in page["#notice"].text


def test_a_server_that_asks_for_a_key(page, told_ingress, told_address):
    told_ingress.keys = ApiKeys([b"secret-of-this-test-0123456789"])
    page.open(told_address)
    page.wait(lambda: page["#key-form"].is_displayed())
    page["#key"].send_keys("wrong\n")
    page.wait(lambda: "did not accept" in page["#notice"].text)
    page["#key"].clear()
    page["#key"].send_keys("secret-of-this-test-0123456789\n")
    page.wait(lambda: not page["#key-form"].is_displayed())
    page.set_text("a")
    assert page.texts("#translation p") == ["A"]


def test_a_narrow_window_and_10_kilobytes(page):
    page.size(360)
    for text in ("A sentence of some words. " * 400, "x" * 10_000, f"{SENTENCE}\n" * 200):
        page.set_text(text[:10_000])
        fits = "const e = document.documentElement; return e.scrollWidth <= e.clientWidth"
        assert page.js(fits) and page.js("return innerWidth") == 360
    assert page["#translation"].is_displayed()


def test_nothing_comes_from_elsewhere(page, told_address):
    page.set_text(SENTENCE)
    loaded = page.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(loaded) > 5 and all(name.startswith(told_address) for name in loaded)
    assert page.driver.get_log("browser") == []


def test_axe_finds_nothing(page, engine):
    assert page.violations() == []
    page.set_text(f"{SENTENCE}\na b")
    for name in ("words-details", "map-details"):
        page.js("get(arguments[0]).open = true", name)
    page.wait(lambda: page.texts("#map-table th"))
    page.js("view.words.activate(0)")
    for scheme, width, language in (("light", 1200, "en"), ("dark", 360, "zh")):
        page.scheme(scheme)
        page.size(width)
        page.language(language)
        assert page.violations() == [], (scheme, width, language)

    async def before(request):
        raise interface.DeadlineExceeded("late")

    engine.before = before
    page.js("get('key-form').hidden = false")
    page.set_text("b")
    assert page.violations() == []


def test_the_page_without_a_server(browser, tmp_path):
    from kformer.plots.page import content

    source, target = ["\u2581a", "\u2581b", "</s>"], ["\u2581x", "</s>"]
    weights = np.array([[[[0.2, 0.6, 0.2], [0.2, 0.2, 0.6]]]], "float32")
    encoder = np.full((1, 2, 3, 3), 1 / 3, "float32")
    maps = {"cross": (weights, target, source), "encoder": (encoder, source, source)}
    reply = {
        "model": content.model_entry("en-fa"),
        "lines": [content.line_entry(MARKUP, [f"{MARKUP} x", "y"], [-0.1, -2.0])],
    }
    attention = content.attention_entry(source, target, maps)
    path = tmp_path / "page.html"
    path.write_text(standalone_page(reply, attention, MARKUP), encoding="utf-8")
    browser.driver.get(path.as_uri())
    browser.wait(lambda: browser.js("return state.reply !== null"))
    assert browser["#source"].get_property("value") == MARKUP
    assert browser.texts("#translation p") == [f"{MARKUP} x"]
    assert browser["#source"].get_property("readOnly") and not browser["#example"].is_displayed()
    browser.js("document.querySelector('#target-words button').focus()")
    assert browser["#words-reading"].text == "x came from b (75%), a (25%)"
    browser.js("get('kind').value = 'encoder'; get('kind').dispatchEvent(new Event('change'))")
    assert browser.texts(".labels-left span") == ["\u2423a", "\u2423b", "</s>"]
    assert browser.js("return window.hit === undefined")
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    assert browser.violations() == []
    assert browser.driver.get_log("browser") == []
