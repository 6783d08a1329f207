/** Translates beside the page, so that it never waits. */

import { Translator } from "./kformer/translator.mjs";

// A page that holds its files has set the options.
const loading = Translator.load("model/", globalThis.translatorOptions);
loading.then(
  ({ languages, metadata }) => postMessage({ languages, width: metadata.search.beam_size }),
  (error) => postMessage({ error: error.message }),
);
onmessage = async ({ data: { texts, options } }) => {
  try {
    const translator = await loading, start = performance.now();
    const results = await translator.translate(texts, options);
    postMessage({ results, time: performance.now() - start });
  } catch (error) {
    postMessage({ error: error.message });
  }
};
