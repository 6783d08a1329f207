/** Translates beside the page, so that it never waits. */

import { Translator } from "./kformer/translator.mjs";

const loading = Translator.load(new URL("model/", import.meta.url));
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
