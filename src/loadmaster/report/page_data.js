"use strict";
// The data of the page: unpacked, and the words for its numbers. page_data.py is the other half.

async function inflated(text) {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the data of the page");
  const coded = atob(text.trim()), bytes = new Uint8Array(coded.length);
  for (let i = 0; i < coded.length; i++) bytes[i] = coded.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Zigzag, seven bits a byte; sums of them where they are differences. Up to 2^53, so no bit operations past 32 bits.
function varints(bytes, at, count, differences) {
  const column = new Float64Array(count);
  let value = 0;
  for (let i = 0; i < count; i++) {
    let step = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      step += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    step = step % 2 ? -(step + 1) / 2 : step / 2;
    value = differences ? value + step : step;
    column[i] = value;
  }
  return column;
}

// Starts from the gaps after what ended before on the same device or link.
function starts(gap, length, resource, count) {
  const ended = new Float64Array(count), start = new Float64Array(gap.length);
  for (let i = 0; i < gap.length; i++) {
    start[i] = ended[resource[i]] + gap[i];
    ended[resource[i]] = start[i] + length[i];
  }
  return start;
}

// Rows of a table in which row i has count[i] entries.
function offsets(count) {
  const start = new Float64Array(count.length + 1);
  for (let i = 0; i < count.length; i++) start[i + 1] = start[i] + count[i];
  return start;
}

// Lets the page answer between pieces of work.
const breath = () => new Promise((done) => setTimeout(done));

async function unpacked(text) {
  const bytes = await inflated(text);
  const length = bytes[0] + 256 * (bytes[1] + 256 * (bytes[2] + 256 * bytes[3])), words = new TextDecoder();
  const data = JSON.parse(words.decode(bytes.subarray(4, 4 + length)));
  let at = 4 + length;
  for (const [name, size, count, differences] of data.columns) {
    data[name] = varints(bytes, at, count, differences);
    at += size;
    if (count > 10000) await breath();
  }
  for (const [name, size] of data.texts) {
    data[name] = JSON.parse(words.decode(bytes.subarray(at, at + size)));
    at += size;
    await breath();
  }
  data.op_start = starts(data.op_gap, data.op_length, data.op_device, data.devices.length);
  data.send_start = starts(data.send_gap, data.send_length, data.send_wire, data.wires.length);
  data.read_start = offsets(data.read_count);
  data.read_maker = new Float64Array(data.read_back.length);
  for (let op = 0; op < data.op_start.length; op++)
    for (let i = data.read_start[op]; i < data.read_start[op + 1]; i++) data.read_maker[i] = op - data.read_back[i];
  await breath();
  data.send_name = data.send_name.map((name, send) => name || "output of " + data.op_name[data.send_maker[send]]);
  await breath();
  return data;
}

function threeDigits(value) {
  return value.toFixed(Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0);
}

function scaled(value, units) {
  const shown = Math.max(value, Number(value.toPrecision(3)));
  const [unit, scale] = units.find(([, scale]) => shown >= scale) || units[units.length - 1];
  return (scale === 1 ? value.toFixed(0) : threeDigits(value / scale)) + " " + unit;
}

const TIMES = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];
const timeText = (ns) => scaled(ns, TIMES);
const sizeText = (bytes) => scaled(bytes, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
const energyText = (pj) => scaled(pj, [["kJ", 1e15], ["J", 1e12], ["mJ", 1e9], ["uJ", 1e6], ["nJ", 1e3], ["pJ", 1]]);
const shareText = (part, whole) => (!whole ? "-" : part > 0 && part < whole / 2000 ? "under 0.1 %" : (100 * part / whole).toFixed(1) + " %");
// A moment or a length in milliseconds, to the microsecond.
const exactMs = (ns) => `${(ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;
const countText = (count, word) => count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");
const signedText = (value, unit) => (value === 0 ? "±" : value > 0 ? "+" : "−") + { ns: timeText, bytes: sizeText, pJ: energyText }[unit](Math.abs(value));

// Elements are made here and nowhere else; names of ops are only ever text.
function element(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Six colours that stay apart for colour-blind readers; those that follow come again with stripes.
const COLOURS = 6;
const colourOf = (number) => `var(--c${number % COLOURS})`;
const swatch = (number) => element("b", { class: number >= COLOURS ? "stripe" : "", style: { backgroundColor: colourOf(number) } });

// Black or white, whichever can be read on the colour.
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#14161a" : "#ffffff";
}
