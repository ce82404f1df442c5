"use strict";
// Joins the parts of the page: search, legends, details, keys.

function factList(rows) {
  const list = element("dl");
  for (const [name, text] of rows) if (text !== "") list.append(element("dt", {}, name), element("dd", {}, String(text)));
  return list;
}

function smallTable(head, rows, numbers) {
  const cells = (row, tag) => row.map((cell, at) => element(tag, numbers.includes(at) ? { class: "number" } : {}, cell));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row, "td"))));
  return element("table", {}, element("thead", {}, element("tr", {}, ...cells(head, "th"))), body);
}

// What each device does with the step, until something is chosen.
function deviceDetails(data) {
  const parts = [["computes", "--c0"], ["waits for a transfer", "--c1"], ["waits for another device", "--c5"], ["has finished", "--line"]];
  const rows = data.device_times.map((row) => {
    const times = [row.compute_ns, row.transfer_wait_ns, row.idle_ns, row.finished_ns];
    const bar = element("div", { class: "share", role: "img", "aria-label": parts.map(([name], at) => `${name} ${timeText(times[at])}`).join(", ") });
    times.forEach((ns, at) => bar.append(element("span", { title: `${parts[at][0]} ${timeText(ns)}`, style: { flex: String(ns), background: `var(${parts[at][1]})` } })));
    return [element("div", { class: "pair" }, element("span", {}, row.device), element("span", {}, shareText(row.compute_ns, data.step_ns) + " busy")), bar];
  });
  const key = element("div", { class: "legend" }, ...parts.map(([name, tone]) => element("span", {}, element("b", { style: { background: `var(${tone})` } }), element("i", {}, name))));
  return [element("h3", {}, "Devices"), ...rows.flat(), key, element("p", { class: "hint" }, "Choose an op, a transfer or a peak to see more.")];
}

function opDetails(data, op) {
  const start = data.op_start[op], length = data.op_length[op];
  return [element("h3", {}, data.op_name[op]), factList([
    ["kind", data.kinds[data.op_kind[op]]], ["module", data.paths[data.op_path[op]].join(".")], ["device", data.devices[data.op_device[op]]],
    ["starts", exactMs(start)], ["takes", exactMs(length)],
    ["of the step", shareText(length, data.step_ns)], ["makes", sizeText(data.op_bytes[op])],
    ["ops", data.op_ops[op] > 1 ? `${data.op_ops[op]} fused into one kernel` : ""], ["critical path", data.op_critical[op] ? "yes" : "no"],
  ])];
}

function sendDetails(data, send) {
  const start = data.send_start[send], length = data.send_length[send];
  return [element("h3", {}, data.send_name[send]), factList([
    ["transfer", `${data.devices[data.send_src[send]]} > ${data.devices[data.send_dst[send]]}`], ["over", data.wires[data.send_wire[send]]],
    ["bytes", sizeText(data.send_bytes[send])], ["starts", exactMs(start)],
    ["takes", exactMs(length)], ["critical path", data.send_critical[send] ? "yes" : "no"],
  ])];
}

function peakDetails(data, device) {
  const peak = data.peaks[device];
  const bar = element("div", { class: "share", role: "presentation" });
  peak.by_role.forEach(([, bytes], at) => bar.append(element("span", { style: { flex: String(bytes), background: moduleColour(at) } })));
  const roles = element("div", { class: "legend" });
  peak.by_role.forEach(([role, bytes], at) => roles.append(element("span", {}, element("b", { style: { background: moduleColour(at) } }), element("i", {}, `${role} ${sizeText(bytes)}`))));
  return [
    element("h3", {}, `Peak of ${peak.device}`),
    factList([["holds", sizeText(peak.peak_bytes)], ["of", sizeText(peak.limit_bytes)],
      ["first at", timeText(peak.at_ns)], ["reached by", peak.cause.name], ["which needs", sizeText(peak.cause.nbytes)]]),
    bar, roles,
    smallTable(["module", "role", "bytes"], peak.parts.map((part) => [part.scope, part.role, sizeText(part.nbytes)]), [2]),
    element("p", { class: "hint" }, "Largest tensors alive then"),
    smallTable(["tensor", "role", "bytes"], peak.largest.map((one) => [one.name, one.role, sizeText(one.nbytes)]), [2]),
  ];
}

// What all names begin with, up to a dot: said once is enough.
function commonStart(names) {
  const full = names.filter((name) => !name.startsWith("(")).map((name) => name.split(/[. ]/));
  let depth = 0;
  while (full.length > 1 && full.every((parts) => parts.length > depth + 1 && parts[depth] === full[0][depth])) depth++;
  return full.length ? full[0].slice(0, depth).map((part) => part + ".").join("") : "";
}

function legend(place, names, press) {
  const start = commonStart(names);
  place.replaceChildren(...names.map((name, at) => {
    const swatch = element("b", { style: { background: name === "(all others)" ? "var(--other)" : moduleColour(at) } }), text = element("i", { title: name }, name.startsWith(start) ? name.slice(start.length) : name);
    if (!press) return element("span", {}, swatch, text);
    return element("button", { type: "button", "aria-pressed": "false", onclick: (event) => press(at, event.currentTarget) }, swatch, text);
  }));
}

class Page {
  constructor(data) {
    const find = (id) => document.getElementById(id);
    this.data = data;
    this.find = find;
    this.timeline = new Timeline(data, find("lanes"), find("memory"), (what) => this.tell(what));
    this.graph = new Folded(data, find("canvas"), (op) => this.timeline.reveal("op", op));
    this.matches = [];
    find("details").replaceChildren(...deviceDetails(data));
    this.setLegends();
    this.setButtons();
    this.setSearch();
    this.setTip();
    this.timeline.resize();
    new ResizeObserver(() => this.timeline.resize()).observe(find("lanes").parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.timeline.later());
    matchMedia("print").addEventListener("change", () => this.timeline.draw());
  }

  tell(what) {
    const details = { op: opDetails, send: sendDetails, peak: peakDetails }[what.kind](this.data, what.index);
    if (what.kind === "op") details.push(element("button", { type: "button", onclick: () => this.graph.show(what.index) }, "Show in the graph"));
    this.find("details").replaceChildren(...details);
    this.find("details").scrollTop = 0;
    this.find("peaks").querySelectorAll("button").forEach((button, at) => button.setAttribute("aria-pressed", what.kind === "peak" && at === what.index));
  }

  setLegends() {
    const { data, timeline } = this;
    const rest = data.op_module.some((module) => module >= data.modules.length);
    legend(this.find("legend"), rest ? [...data.modules, "(all others)"] : data.modules, (at, button) => {
      timeline.module = timeline.module === at ? -1 : at;
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", other === button && timeline.module === at);
      timeline.later();
    });
    this.find("peaks").replaceChildren(...data.peaks.map((peak, device) => element("button",
      { type: "button", "aria-pressed": "false", onclick: () => timeline.selectPeak(device) }, `${peak.device}: ${sizeText(peak.peak_bytes)} of ${sizeText(peak.limit_bytes)}`)));
    this.colourLegend();
  }

  colourLegend() {
    const { data, graph } = this, place = this.find("colours");
    if (graph.colouring === "device") legend(place, data.devices, null);
    else place.replaceChildren(element("span", { class: "whole" }, graph.colouring === "time" ? `the darker, the more time; most: ${timeText(graph.most.time)}` : `the darker, the more bytes made; most: ${sizeText(graph.most.bytes)}`));
  }

  setButtons() {
    const { timeline, graph } = this;
    this.find("zoom-in").onclick = () => timeline.zoom(2);
    this.find("zoom-out").onclick = () => timeline.zoom(0.5);
    this.find("zoom-fit").onclick = () => timeline.fit();
    this.find("critical").onclick = (event) => {
      timeline.onlyCritical = !timeline.onlyCritical;
      event.currentTarget.setAttribute("aria-pressed", timeline.onlyCritical);
      timeline.later();
    };
    this.find("fold-all").onclick = () => { graph.foldAll(); this.colourLegend(); };
    for (const button of document.querySelectorAll("[data-colour]")) {
      button.onclick = () => {
        graph.colouring = button.dataset.colour;
        for (const other of document.querySelectorAll("[data-colour]")) other.setAttribute("aria-pressed", other === button);
        graph.draw();
        this.colourLegend();
      };
    }
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      this.find("search").focus();
    });
  }

  setSearch() {
    const box = this.find("search");
    box.addEventListener("input", () => this.search(box.value));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.matches.length) this.next(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") { box.value = ""; this.search(""); }
    });
  }

  search(text) {
    const { data, timeline, graph } = this, wanted = text.trim().toLowerCase();
    this.matches = [];
    this.here = -1;
    timeline.found = graph.found = null;
    if (wanted) {
      const paths = data.paths.map((path) => path.join(".").toLowerCase().includes(wanted));
      const kinds = data.kinds.map((kind) => kind.toLowerCase().includes(wanted));
      const found = new Uint8Array(data.op_name.length);
      for (let op = 0; op < found.length; op++) {
        if (paths[data.op_path[op]] || kinds[data.op_kind[op]] || data.op_name[op].toLowerCase().includes(wanted)) { found[op] = 1; this.matches.push(op); }
      }
      timeline.found = graph.found = found;
      this.matches.sort((a, b) => data.op_start[a] - data.op_start[b]);
    }
    this.find("found").textContent = wanted ? this.matches.length.toLocaleString("en") : "";
    timeline.later();
    graph.draw();
  }

  next(by) {
    const count = this.matches.length;
    this.here = (this.here + by + count) % count;
    this.timeline.reveal("op", this.matches[this.here]);
    this.find("found").textContent = `${this.here + 1} of ${count.toLocaleString("en")}`;
  }

  setTip() {
    const { data, timeline } = this, tip = this.find("tip"), lanes = this.find("lanes");
    lanes.addEventListener("pointermove", (event) => {
      const hit = event.buttons ? null : timeline.at(event.offsetX, event.offsetY);
      tip.hidden = !hit;
      if (!hit) return;
      const op = hit.kind === "op", at = hit.index;
      const name = op ? data.op_name[at] : `${data.send_name[at]}, ${sizeText(data.send_bytes[at])}`;
      const note = op ? `${timeText(data.op_length[at])} · ${data.paths[data.op_path[at]].join(".") || data.kinds[data.op_kind[at]]}`
        : `${timeText(data.send_length[at])} · ${data.devices[data.send_src[at]]} > ${data.devices[data.send_dst[at]]}`;
      tip.replaceChildren(name, element("br"), element("small", {}, note));
      tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = event.clientY + 16 + "px";
    });
    lanes.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
}

window.loadmaster = { ready: false };
unpacked(document.getElementById("packed").textContent).then((data) => {
  window.loadmaster = { ready: true, data, page: new Page(data) };
}).catch((error) => {
  const place = document.getElementById("failed");
  place.textContent = `The drawings could not be made: ${error.message}. The words and tables below are complete.`;
  place.hidden = false;
  console.error(error);
});
