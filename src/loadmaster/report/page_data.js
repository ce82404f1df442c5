"use strict";
// The data of the page: unpacked, and the words for its numbers. page_data.py is the other half.

async function inflated(text) {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the data of the page");
  const coded = atob(text.trim());
  const bytes = new Uint8Array(coded.length);
  for (let i = 0; i < coded.length; i++) bytes[i] = coded.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Differences, zigzag, seven bits a byte. Numbers up to 2^53, so no bit operations past 32 bits.
function varints(bytes, at, count) {
  const column = new Float64Array(count);
  let value = 0;
  for (let i = 0; i < count; i++) {
    let step = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      step += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    value += step % 2 ? -(step + 1) / 2 : step / 2;
    column[i] = value;
  }
  return column;
}

async function unpacked(text) {
  const bytes = await inflated(text);
  const length = bytes[0] + 256 * (bytes[1] + 256 * (bytes[2] + 256 * bytes[3]));
  const words = new TextDecoder();
  const data = JSON.parse(words.decode(bytes.subarray(4, 4 + length)));
  let at = 4 + length;
  for (const [name, size, count] of data.columns) {
    data[name] = varints(bytes, at, count);
    at += size;
  }
  for (const [name, size] of data.texts) {
    data[name] = JSON.parse(words.decode(bytes.subarray(at, at + size)));
    at += size;
  }
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

const timeText = (ns) => scaled(ns, [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]]);
const sizeText = (bytes) => scaled(bytes, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
const shareText = (part, whole) => (whole ? (100 * part / whole).toFixed(1) + " %" : "-");
// A moment or a length in milliseconds, to the microsecond.
const exactMs = (ns) => `${(ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;
const countText = (count, word) => count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");

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

// As many colours as can be told apart at a glance; all that follow are grey.
const MODULE_COLOURS = 8;
const moduleColour = (number) => (number < MODULE_COLOURS ? `var(--c${number})` : "var(--other)");

// Black or white, whichever can be read on the colour.
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue > 118 ? "#14161a" : "#f5f4f0";
}
