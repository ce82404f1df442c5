// Twenty searches on the built site: is a right page among the first three hits? `make docs`, then
// `node benchmarks/site_searches.js site`. The site's own search worker ranks, so nothing is emulated.
const fs = require("fs");
const vm = require("vm");

const RIGHT = {
  "install": ["start/install/"],
  "API": ["reference/python/"],
  "fsdp": ["tasks/coming_from/"],
  "out of memory": ["tasks/fits/", "methods/memory/"],
  "device_map": ["tasks/serve/", "tasks/coming_from/"],
  "llama.cpp": ["tasks/serve/"],
  "pipeline": ["methods/pipelines/"],
  "quantized": ["tasks/serve/"],
  "deepspeed": ["tasks/coming_from/"],
  "torch.compile": ["tasks/train/", "tasks/coming_from/"],
  "memory limit": ["tasks/train/", "methods/memory/"],
  "offload": ["methods/memory/"],
  "vllm": ["tasks/serve/"],
  "onnx": ["formats/"],
  "slow": ["scale/", "start/page/"],
  "two gpus": ["tasks/devices/"],
  "cpu": ["tasks/devices/"],
  "optimal": ["methods/exact/"],
  "error": ["tasks/train/", "start/run/"],
  "plan file": ["formats/"],
};
const [SETUP, QUERY, RESULT] = [0, 2, 3]; // kinds of the worker's messages

async function main(site) {
  const folder = `${site}/assets/javascripts/workers/`;
  const index = JSON.parse(fs.readFileSync(`${site}/search/search_index.json`));
  const said = [];
  let handle;
  const page = { console, setTimeout, clearTimeout, URL, importScripts() {}, location: { href: "http://site/" } };
  Object.assign(page, { addEventListener: (_, f) => (handle = f), postMessage: (message) => said.push(message) });
  page.self = page.window = page.globalThis = page;
  vm.createContext(page);
  vm.runInContext(fs.readFileSync(folder + fs.readdirSync(folder).find((name) => name.endsWith(".js")), "utf8"), page);
  await handle({ data: { type: SETUP, data: { config: index.config, docs: index.docs, options: { suggest: true } } } });
  let found = 0;
  for (const [words, right] of Object.entries(RIGHT)) {
    said.length = 0;
    await handle({ data: { type: QUERY, data: words } });
    const hits = said.find((message) => message.type === RESULT).data.items;
    const first = hits.slice(0, 3).map((sections) => sections[0].location.split("#")[0]);
    const good = first.some((hit) => right.includes(hit));
    found += good;
    console.log(good ? "found" : "no   ", words.padEnd(14), first.map((hit) => hit || "home").join(", "));
  }
  console.log(`${found} of ${Object.keys(RIGHT).length}`);
}

main(process.argv[2]);
