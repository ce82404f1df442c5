// The page around the timeline: answers with their evidence, what is selected, search, colours and tabs.

function factList(rows) {
  return element("dl", {}, ...rows.filter(([, text]) => text !== "").flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
}

function smallTable(rows) {
  return element("table", {}, element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, at) => element("td", at === row.length - 1 ? { class: "number" } : {}, cell))))));
}

class Page {
  constructor(data) {
    const find = (id) => document.getElementById(id);
    this.data = data;
    this.find = find;
    this.timeline = new Timeline(data, find("lanes"), (what) => this.tell(what));
    this.matches = [];
    this.setLegend();
    this.setMarks();
    this.setButtons();
    this.setAnswers();
    this.setTabs();
    this.setSearch();
    this.setTip();
    this.timeline.resize();
    addEventListener("resize", () => this.timeline.resize());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.timeline.later());
    matchMedia("print").addEventListener("change", () => this.timeline.resize());
  }

  get graph() {
    if (!this.folded) {
      this.folded = new Folded(this.data, this.find("canvas"), (op) => this.go("op", op));
    }
    return this.folded;
  }

  // What is selected

  tell(what) {
    const place = this.find("details");
    this.find("answers").hidden = what !== null;
    place.hidden = what === null;
    if (what === null) return;
    const back = element("button", { type: "button", id: "back", onclick: () => this.timeline.select(null) }, "← Answers");
    place.replaceChildren(element("h2", { class: "hidden" }, "Selected"), back, ...{ op: (at) => this.opDetails(at), send: (at) => this.sendDetails(at), peak: (at) => this.peakDetails(at) }[what.kind](what.index));
  }

  go(kind, index) {
    this.timeline.reveal(kind, index);
    scrollTo({ top: 0 });
  }

  link(kind, index, note = "") {
    const { data } = this, name = kind === "op" ? data.op_name[index] : data.send_name[index];
    return element("li", {}, element("button", { type: "button", class: "go", onclick: () => this.go(kind, index) }, name), note ? ` ${note}` : "");
  }

  links(items, note) {
    const shown = items.slice(0, 5).map((op) => this.link("op", op, note(op)));
    if (items.length > 5) shown.push(element("li", {}, `and ${items.length - 5} more`));
    return element("ul", {}, ...(shown.length ? shown : [element("li", {}, "none")]));
  }

  opDetails(op) {
    const { data } = this, start = data.op_start[op], length = data.op_length[op];
    const made = [...new Set(data.read_maker.slice(data.read_start[op], data.read_start[op + 1]))], readers = this.readersOf(op);
    const until = Math.max(start + length, ...readers.slice(0, 10000).map((other) => data.op_start[other] + data.op_length[other]));
    const on = (other) => `on ${data.devices[data.op_device[other]]}`;
    return [element("h3", {}, data.op_name[op]), factList([
      ["on", data.devices[data.op_device[op]]], ["starts", exactMs(start)], ["takes", `${exactMs(length)}, ${shareText(length, data.step_ns)} of the step`],
      ["module", data.paths[data.op_path[op]].join(".")], ["kind", data.kinds[data.op_kind[op]]],
      ["fused", data.op_ops[op] > 1 ? `${data.op_ops[op]} ops in one kernel` : ""], ["critical path", data.op_critical[op] ? "yes" : "no"],
      ["mark", ["", "runs again, so that less is held", "a tensor that waits elsewhere"][data.op_state[op]]],
    ]), element("h2", {}, "Why here"), ...this.whyHere(op), element("h2", {}, "Waited for"), this.waitedFor(op),
    element("h2", {}, "Reads from"), this.links(made, on), element("h2", {}, "Read by"), this.links(readers, on),
    element("h2", {}, "Holds"), element("p", {}, data.op_bytes[op] ? `${sizeText(data.op_bytes[op])}, until its last reader ends at ${exactMs(until)}.` : "Nothing of its own."),
    element("button", { type: "button", onclick: () => { this.openTab("graph"); this.graph.show(op); } }, "Show in the graph")];
  }

  // What moving its group to each other device alone would cost, as it was simulated.
  whyHere(op) {
    const { data } = this, reason = data.reasons[data.op_group[op]];
    if (!reason || data.devices.length < 2) return [element("p", {}, "There is one device.")];
    const [group, , ops, verdict, moves] = reason;
    if (verdict === "nowhere else") return [element("p", {}, "No other device can run it.")];
    if (!moves.length) return [element("p", {}, `What moving its group '${group}' costs was not tried.`)];
    const said = { "better elsewhere": "would be better elsewhere", matters: "is best here", "does not matter": "could as well be elsewhere" }[verdict];
    const rows = moves.map(([device, change, over]) => [device, (over ? sizeText(over) + " over, " : "") + signedText(change, data.unit)]);
    return [element("p", {}, `Its group '${group}' (${countText(ops, "op")}) ${said}. Simulated, if the group alone moves to:`), smallTable(rows)];
  }

  waitedFor(op) {
    const { data } = this, start = data.op_start[op];
    const none = (text) => element("p", {}, text);
    if (start === 0) return none("nothing: it starts the step");
    for (let send = 0; send < data.send_start.length; send++) {
      if (data.send_dst[send] !== data.op_device[op] || data.send_start[send] + data.send_length[send] !== start) continue;
      if (this.reads(op, data.send_maker[send])) return element("ul", {}, this.link("send", send, "to arrive"));
    }
    for (let i = data.read_start[op]; i < data.read_start[op + 1]; i++) {
      const maker = data.read_maker[i];
      if (data.op_device[maker] === data.op_device[op] && data.op_start[maker] + data.op_length[maker] === start) return element("ul", {}, this.link("op", maker, "to end"));
    }
    const row = this.timeline.sorted.ops[data.op_device[op]], before = row[row.indexOf(op) - 1];
    if (before !== undefined && data.op_start[before] + data.op_length[before] === start) return element("ul", {}, this.link("op", before, "to free the device"));
    return none("an op that must come before it, or its host");
  }

  reads(op, maker) {
    const { data } = this;
    for (let i = data.read_start[op]; i < data.read_start[op + 1]; i++) if (data.read_maker[i] === maker) return true;
    return false;
  }

  readersOf(op) {
    const { data } = this;
    if (!this.readers) {
      const count = new Float64Array(data.op_start.length);
      for (const maker of data.read_maker) count[maker]++;
      const start = offsets(count), fill = start.slice(), readers = new Float64Array(data.read_maker.length);
      for (let reader = 0; reader < data.op_start.length; reader++)
        for (let i = data.read_start[reader]; i < data.read_start[reader + 1]; i++) readers[fill[data.read_maker[i]]++] = reader;
      this.readers = { start, readers };
    }
    return [...new Set(this.readers.readers.slice(this.readers.start[op], this.readers.start[op + 1]))];
  }

  sendDetails(send) {
    const { data } = this, start = data.send_start[send];
    return [element("h3", {}, data.send_name[send]), factList([
      ["transfer", `${data.devices[data.send_src[send]]} > ${data.devices[data.send_dst[send]]}`], ["over", data.wires[data.send_wire[send]]],
      ["bytes", sizeText(data.send_bytes[send])], ["starts", exactMs(start)],
      ["takes", exactMs(data.send_length[send])], ["critical path", data.send_critical[send] ? "yes" : "no"],
    ]), element("h2", {}, "Made by"), data.send_maker[send] >= 0 ? element("ul", {}, this.link("op", data.send_maker[send])) : element("p", {}, "nothing: it is there before the step")];
  }

  peakDetails(device) {
    const { data } = this, peak = data.peaks[device];
    const shade = (at) => ({ backgroundColor: "var(--text)", opacity: String(0.85 * 0.62 ** at) }); // colours are modules
    const bar = element("div", { class: "share", role: "presentation" }, ...peak.by_role.map(([, bytes], at) => element("span", { style: { flex: String(bytes), ...shade(at) } })));
    const roles = element("div", { class: "legend" }, ...peak.by_role.map(([role, bytes], at) => element("span", {}, element("b", { style: shade(at) }), element("i", {}, `${role} ${sizeText(bytes)}`))));
    return [
      element("h3", {}, `Peak of ${peak.device}`),
      factList([["holds", `${sizeText(peak.peak_bytes)} of ${sizeText(peak.limit_bytes)}`], ["first at", timeText(peak.at_ns)],
        ["reached by", `${peak.cause.name}, which needs ${sizeText(peak.cause.nbytes)}`]]),
      bar, roles, element("h2", {}, "By module"), smallTable(peak.parts.slice(0, 8).map((part) => [part.scope, part.role, sizeText(part.nbytes)])),
      element("h2", {}, "Largest tensors"), smallTable(peak.largest.map((one) => [one.name, one.role, sizeText(one.nbytes)])),
    ];
  }

  // Answers: every sentence shows its evidence

  setAnswers() {
    const { data, timeline } = this;
    document.querySelectorAll("button.say").forEach((button) => {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true", set = Number(button.dataset.set);
        document.querySelectorAll("button.say").forEach((other) => other.setAttribute("aria-pressed", other === button && on));
        if (!on) { timeline.mark(null); return; }
        const items = Array.from(data.evidence.slice(data.evidence_start[set], data.evidence_start[set + 1]));
        this.showEvidence(button.dataset.kind, items);
      });
    });
  }

  showEvidence(kind, items) {
    const { data, timeline } = this, ops = new Uint8Array(data.op_start.length), sends = new Uint8Array(data.send_start.length);
    if (kind === "peak") { timeline.mark(null); timeline.select({ kind, index: items[0] }); return; }
    if (kind === "op") for (const op of items) ops[op] = 1;
    if (kind === "send") for (const send of items) sends[send] = 1;
    if (kind === "device") for (const device of items) for (const op of timeline.sorted.ops[device]) ops[op] = 1;
    timeline.mark(ops, sends);
    timeline.fit();
  }

  // Controls

  setLegend() {
    const { data, timeline } = this, byPhase = timeline.numbers === data.op_phase, names = byPhase ? data.phases : data.modules;
    this.find("legend").replaceChildren(...names.map((name, at) => element("button", { type: "button", "aria-pressed": "false", onclick: (event) => {
      timeline.module = timeline.module === at ? -1 : at;
      for (const other of this.find("legend").children) other.setAttribute("aria-pressed", other === event.currentTarget && timeline.module === at);
      timeline.later();
    } }, swatch(at), element("i", { title: name }, name.length > 30 ? "…" + name.slice(-29) : name))));
    this.find("colouring").hidden = data.phases.length < 2;
    this.find("colouring").textContent = `Colour: ${byPhase ? "phase" : "module"}`;
  }

  setMarks() {
    const { data } = this, near = data.memory_bytes.some((limit) => limit <= this.timeline.most), states = new Set(data.op_state);
    const marks = [["path", "critical path"], ["idle", "idle"], ["held", "memory held"], near && ["full", "memory limit"],
      states.has(1) && ["again", "runs again"], states.has(2) && ["waits", "tensor kept elsewhere"]].filter(Boolean);
    this.find("marks").replaceChildren(...marks.map(([kind, text]) => element("span", {}, element("b", { class: kind }), text)));
  }

  setButtons() {
    const { timeline, data } = this;
    this.find("zoom-in").onclick = () => timeline.zoom(2);
    this.find("zoom-out").onclick = () => timeline.zoom(0.5);
    this.find("zoom-fit").onclick = () => timeline.fit();
    this.find("colouring").onclick = () => {
      timeline.numbers = timeline.numbers === data.op_phase ? data.op_module : data.op_phase;
      timeline.module = -1;
      this.setLegend();
      timeline.later();
    };
    this.find("critical").onclick = (event) => {
      timeline.onlyCritical = !timeline.onlyCritical;
      event.currentTarget.setAttribute("aria-pressed", timeline.onlyCritical);
      timeline.later();
    };
    document.querySelectorAll("button.every").forEach((button) => { button.onclick = () => { button.parentElement.classList.add("all"); button.remove(); }; });
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
      event.preventDefault();
      this.find("search").focus();
    });
  }

  setTabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    tabs.forEach((tab, at) => {
      tab.onclick = () => this.openTab(tab.dataset.tab);
      tab.onkeydown = (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (by) { const next = tabs[(at + by + tabs.length) % tabs.length]; next.focus(); this.openTab(next.dataset.tab, false); }
      };
    });
    this.openTab(tabs[0].dataset.tab, false);
  }

  openTab(name, scroll = true) {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const on = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", on);
      tab.tabIndex = on ? 0 : -1;
      this.find("panel-" + tab.dataset.tab).classList.toggle("shown", on);
      if (on && name === "graph") this.graph.draw();
      if (on && scroll) tab.parentElement.scrollIntoView();
    }
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
    const { data, timeline } = this, wanted = text.trim().toLowerCase();
    this.matches = [];
    this.here = -1;
    let found = null;
    if (wanted) {
      const paths = data.paths.map((path) => path.join(".").toLowerCase().includes(wanted));
      const kinds = data.kinds.map((kind) => kind.toLowerCase().includes(wanted));
      found = new Uint8Array(data.op_name.length);
      for (let op = 0; op < found.length; op++) {
        if (paths[data.op_path[op]] || kinds[data.op_kind[op]] || data.op_name[op].toLowerCase().includes(wanted)) { found[op] = 1; this.matches.push(op); }
      }
      this.matches.sort((a, b) => data.op_start[a] - data.op_start[b]);
    }
    this.find("found").textContent = wanted ? this.matches.length.toLocaleString("en") : "";
    timeline.mark(found);
    if (this.folded) { this.folded.found = found; this.folded.draw(); }
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

document.documentElement.classList.add("js");
window.loadmaster = { ready: false };
unpacked(document.getElementById("packed").textContent).then((data) => {
  window.loadmaster = { ready: true, data, page: new Page(data), at: performance.now() };
}).catch((error) => {
  const place = document.getElementById("failed");
  place.textContent = `The drawings could not be made: ${error.message}. The words and tables are complete.`;
  place.hidden = false;
  console.error(error);
});
