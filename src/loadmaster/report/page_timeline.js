"use strict";
// The timeline: what each device does and holds, and the links, on one axis of time.

let GUTTER = 150; // as wide as the names need
const RULER = 22, GAP = 5, LEAST_OP = 12, MOST_OP = 170, LEAST_MEMORY = 8, MOST_MEMORY = 300, LINK_ROW = 14;

class Timeline {
  constructor(data, lanes, choose) {
    this.data = data;
    this.lanes = lanes;
    this.choose = choose; // called with {kind: "op" | "send" | "peak", index}
    this.from = 0;
    this.to = Math.max(1, data.step_ns);
    this.chosen = null;
    this.found = null; // Uint8Array of ops to show in full, or null
    this.foundSends = null;
    this.module = -1; // only this module in full colour, or -1
    this.onlyCritical = false;
    this.openLinks = false;
    this.numbers = data.op_module;
    this.most = this.mostBytes();
    this.sorted = this.sortItems();
    this.listen();
  }

  // Ops of each device and sends of each link, in order of time.
  sortItems() {
    const { data } = this, ops = data.devices.map(() => []), sends = data.wires.map(() => []), all = [];
    for (let op = 0; op < data.op_start.length; op++) ops[data.op_device[op]].push(op);
    for (let send = 0; send < data.send_start.length; send++) { sends[data.send_wire[send]].push(send); all.push(send); }
    const by = (start, length) => (a, b) => start[a] - start[b] || length[a] - length[b] || a - b;
    for (const items of ops) items.sort(by(data.op_start, data.op_length));
    for (const items of [...sends, all]) items.sort(by(data.send_start, data.send_length));
    return { ops, sends, all };
  }

  // One scale for all devices, so that they can be compared; up to the limit where a device comes near it.
  mostBytes() {
    const { data } = this;
    const near = data.peak_bytes.map((peak, device) => (2 * peak > data.memory_bytes[device] ? Math.max(peak, data.memory_bytes[device]) : peak));
    return Math.max(1, ...near) * 1.06;
  }

  // Rows fill the window: of each device its ops and under them what it holds; links in one row until they are opened.
  makeRows(height) {
    const { data, sorted } = this, count = data.devices.length;
    const links = !data.wires.length ? 0 : (this.openLinks ? data.wires.length + 1 : 1) * (LINK_ROW + 2) + 6;
    const each = Math.max(LEAST_OP + LEAST_MEMORY + GAP, (height - RULER - links) / count) - GAP;
    const tall = Math.max(LEAST_OP, Math.min(MOST_OP, Math.round(each * 0.58)));
    this.memory = Math.max(LEAST_MEMORY, Math.min(MOST_MEMORY, Math.round(each - tall - 1)));
    this.rows = [];
    let top = RULER;
    data.devices.forEach((name, device) => {
      this.rows.push({ name, device, kind: "op", items: sorted.ops[device], top, height: tall });
      top += tall + 1 + this.memory + GAP;
    });
    if (links) {
      top += 4;
      const title = `${this.openLinks ? "▾" : "▸"} ${countText(data.wires.length, "link")}`;
      this.rows.push({ name: title, wire: -1, kind: "send", items: this.openLinks ? [] : sorted.all, top, height: LINK_ROW });
      top += LINK_ROW + 2;
      if (this.openLinks) data.wires.forEach((name, wire) => {
        this.rows.push({ name, wire, kind: "send", items: sorted.sends[wire], top, height: LINK_ROW });
        top += LINK_ROW + 2;
      });
    }
    this.bottom = top + 2;
  }

  columns(row) {
    const { data } = this;
    return row.kind === "op" ? [data.op_start, data.op_length] : [data.send_start, data.send_length];
  }

  // Drawing

  resize() {
    const place = this.lanes.parentElement, dense = window.devicePixelRatio || 1, style = getComputedStyle(place);
    const room = innerWidth > 800 ? innerHeight - (this.lanes.getBoundingClientRect().top + scrollY) - 62 : 420;
    const longest = Math.max(118, ...this.data.devices.map((name) => name.length * 7), ...(this.openLinks ? this.data.wires.map((name) => name.length * 6.2) : [0]));
    this.width = place.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    GUTTER = Math.round(Math.min(this.width * 0.3, 200, longest + 12));
    this.makeRows(Math.max(180, room));
    this.lanes.style.height = this.bottom + "px";
    this.lanes.width = Math.round(this.width * dense);
    this.lanes.height = Math.round(this.bottom * dense);
    this.lanes.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
    this.draw();
  }

  x(ns) {
    return GUTTER + ((ns - this.from) / (this.to - this.from)) * (this.width - GUTTER);
  }

  ns(x) {
    return this.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.to - this.from);
  }

  later() {
    if (!this.waiting) this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  // Colours as the pen takes them: those after the sixth with stripes.
  takeColours(pen) {
    const names = ["text", "quiet", "idle", "line", "accent", "ground", "panel", "warn", "held", "link"];
    this.palette = Object.fromEntries(names.map((name) => [name, colour("--" + name)]));
    const plain = Array.from({ length: COLOURS }, (_, at) => colour("--c" + at));
    this.inks = plain.map(inkOn);
    this.colours = [...plain, ...plain.map((tone) => this.pattern(pen, tone, "#ffffff", "stripe"))];
    this.marks = [null, this.pattern(pen, null, this.palette.text, "cross"), this.pattern(pen, null, this.palette.text, "dot")];
  }

  pattern(pen, ground, ink, kind) {
    const tile = document.createElement("canvas"), brush = tile.getContext("2d");
    tile.width = tile.height = 8;
    if (ground) { brush.fillStyle = ground; brush.fillRect(0, 0, 8, 8); }
    brush.strokeStyle = brush.fillStyle = ink;
    brush.lineWidth = ground ? 2.2 : 1.3;
    if (kind === "dot") { brush.fillRect(2, 2, 2, 2); brush.fillRect(6, 6, 2, 2); }
    else if (kind === "cross") { brush.strokeRect(0, 0, 8, 8); }
    else for (const shift of [-8, 0, 8]) { brush.beginPath(); brush.moveTo(shift, 8); brush.lineTo(shift + 8, 0); brush.stroke(); }
    return pen.createPattern(tile, "repeat");
  }

  draw() {
    const pen = this.lanes.getContext("2d");
    this.takeColours(pen);
    pen.clearRect(0, 0, this.width, this.bottom);
    this.drawRuler(pen);
    for (const row of this.rows) {
      this.drawTitle(pen, row);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, row.top - 1, this.width - GUTTER, row.height + this.memory + 4);
      pen.clip();
      pen.fillStyle = this.palette.idle;
      pen.fillRect(GUTTER, row.top, this.width - GUTTER, row.height);
      this.drawRow(pen, row);
      if (row.kind === "op") this.drawMemory(pen, row);
      pen.restore();
    }
    this.drawPath(pen);
    this.drawChosen(pen);
  }

  drawTitle(pen, row) {
    pen.fillStyle = this.palette.text;
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillText(this.shortened(pen, row.name, GUTTER - 10), 0, row.top + row.height / 2);
    if (row.kind !== "op" || this.memory < 12) return;
    pen.fillStyle = this.data.peak_bytes[row.device] > this.data.memory_bytes[row.device] ? this.palette.warn : this.palette.quiet;
    pen.font = "11px system-ui, sans-serif";
    const peak = sizeText(this.data.peak_bytes[row.device]), held = `${peak} of ${sizeText(this.data.memory_bytes[row.device])}`;
    pen.fillText(pen.measureText(held).width < GUTTER - 8 ? held : peak, 0, row.top + row.height + 1 + this.memory / 2);
  }

  drawRuler(pen) {
    const span = this.to - this.from, rough = span / Math.max(2, (this.width - GUTTER) / 120);
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough));
    const [unit, scale] = TIMES.find(([, scale]) => this.to >= scale) || TIMES[3];
    const digits = Math.max(0, -Math.floor(Math.log10(tick / scale) + 1e-9));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    for (let ns = Math.ceil(this.from / tick) * tick; ns <= this.to; ns += tick) {
      const x = this.x(ns), text = `${(ns / scale).toFixed(digits)} ${unit}`;
      pen.fillStyle = this.palette.line;
      pen.fillRect(x, 15, 1, this.bottom);
      pen.fillStyle = this.palette.quiet;
      pen.textAlign = x + pen.measureText(text).width > this.width ? "right" : "left";
      pen.fillText(text, x + (pen.textAlign === "left" ? 3 : -3), 3);
    }
    if (span >= this.data.step_ns * 0.999) return;
    const all = this.width - GUTTER;
    pen.fillStyle = this.palette.line;
    pen.fillRect(GUTTER, 0, all, 2);
    pen.fillStyle = this.palette.accent;
    pen.fillRect(GUTTER + (this.from / this.data.step_ns) * all, 0, Math.max(3, (span / this.data.step_ns) * all), 2);
  }

  // How strongly an op or transfer is drawn: what was asked for in full, the rest faint.
  weight(row, item) {
    const { data } = this, isOp = row.kind === "op";
    if (this.onlyCritical && !(isOp ? data.op_critical[item] : data.send_critical[item])) return 0.14;
    if (this.found && !(isOp ? this.found[item] : this.foundSends && this.foundSends[item])) return 0.12;
    if (this.module >= 0 && this.numbers[isOp ? item : data.send_maker[item]] !== this.module) return 0.12;
    return 1;
  }

  drawRow(pen, row) {
    const { data } = this, [start, length] = this.columns(row), items = row.items, isOp = row.kind === "op";
    const pixel = { x: -1, total: 0, strong: 0, by: new Float64Array(2 * COLOURS) };
    let ended = null;
    for (let at = this.firstAt(row, this.from); at < items.length && start[items[at]] <= this.to; at++) {
      const item = items[at], left = this.x(start[item]), right = this.x(start[item] + length[item]);
      const number = isOp ? this.numbers[item] % (2 * COLOURS) : 0, strong = this.weight(row, item);
      if (isOp && ended !== null && left - ended > 78) this.drawIdle(pen, row, ended, left);
      ended = Math.max(ended === null ? right : ended, right);
      if (right - left < 1.5) {
        this.gather(pen, row, pixel, left, right, number, strong);
        continue;
      }
      this.flush(pen, row, pixel);
      pen.globalAlpha = strong * (isOp ? 1 : 0.55);
      pen.fillStyle = isOp ? this.colours[number] : this.palette.link;
      const wide = right - left - (right - left > 5 ? 0.6 : 0);
      pen.fillRect(left, row.top, wide, row.height);
      if (isOp && data.op_state[item]) { pen.fillStyle = this.marks[data.op_state[item]]; pen.fillRect(left, row.top, wide, row.height); }
      if (isOp && row.height > 13) this.drawName(pen, row, item, left, right, number);
    }
    this.flush(pen, row, pixel);
    pen.globalAlpha = 1;
  }

  drawIdle(pen, row, left, right) {
    const from = Math.max(left, GUTTER), to = Math.min(right, this.width), text = "idle " + timeText(this.ns(right) - this.ns(left));
    pen.globalAlpha = 1;
    pen.font = "11px system-ui, sans-serif";
    if (row.height < 12 || to - from < pen.measureText(text).width + 8) return;
    pen.fillStyle = this.palette.quiet;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(text, (from + to) / 2, row.top + row.height / 2);
  }

  // Things too narrow to see add up: a column of pixels takes the colour of what fills most of it, as dense as it is full.
  gather(pen, row, pixel, left, right, number, strong) {
    const x = Math.floor(left);
    if (x !== pixel.x) this.flush(pen, row, pixel);
    pixel.x = x;
    const size = Math.max(right - left, 0.06);
    pixel.total += size;
    pixel.strong = Math.max(pixel.strong, strong);
    pixel.by[number] += size * strong;
  }

  flush(pen, row, pixel) {
    if (pixel.x < 0) return;
    let most = 0;
    for (let at = 1; at < pixel.by.length; at++) if (pixel.by[at] > pixel.by[most]) most = at;
    pen.globalAlpha = (0.25 + 0.75 * Math.min(1, pixel.total)) * pixel.strong * (row.kind === "op" ? 1 : 0.7);
    pen.fillStyle = row.kind === "op" ? this.colours[most] : this.palette.link;
    pen.fillRect(pixel.x, row.top, 1, row.height);
    pixel.x = -1;
    pixel.total = pixel.strong = 0;
    pixel.by.fill(0);
  }

  drawName(pen, row, op, left, right, number) {
    const batch = this.data.op_batch.length ? this.data.op_batch[op] : -1, most = Math.min(right, this.width);
    if (right - left < (batch >= 0 ? 10 : 46)) return;
    const from = Math.max(left, GUTTER) + (batch >= 0 ? 2 : 5);
    pen.fillStyle = this.inks[number % COLOURS];
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const text = this.shortened(pen, batch >= 0 ? String(batch) : this.data.op_name[op], most - from - 3);
    if (batch < 0 && text.length < 3) return;
    if (number >= COLOURS) {
      pen.fillStyle = this.colours[number % COLOURS];
      pen.fillRect(from - 2, row.top + row.height / 2 - 8, pen.measureText(text).width + 4, 15);
      pen.fillStyle = this.inks[number % COLOURS];
    }
    pen.fillText(text, from, row.top + row.height / 2);
  }

  shortened(pen, text, width) {
    if (pen.measureText(text).width <= width) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
      else high = middle - 1;
    }
    return low ? text.slice(0, low) + "…" : "";
  }

  rowOf(kind, index) {
    const { data } = this;
    if (kind === "op") return this.rows[data.op_device[index]];
    return this.rows[data.devices.length + (this.openLinks ? 1 + data.send_wire[index] : 0)];
  }

  // The critical path: a line along the foot of its ops and transfers; when asked for, joined from row to row.
  drawPath(pen) {
    const { data } = this;
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, this.width - GUTTER, this.bottom);
    pen.clip();
    pen.strokeStyle = this.palette.text;
    pen.lineWidth = this.onlyCritical ? 1.5 : 2;
    pen.beginPath();
    let before = null, drawn = -1;
    for (let at = 0; at < data.path_index.length; at++) {
      const kind = data.path_kind[at] ? "send" : "op", item = data.path_index[at], row = this.rowOf(kind, item);
      const [start, length] = this.columns(row);
      if (start[item] > this.to) break;
      const left = this.x(start[item]), right = this.x(start[item] + length[item]), foot = row.top + row.height - 1;
      if (right >= GUTTER && (before === null || foot !== before || right - drawn > 0.4)) {
        if (before === null || (foot !== before && !this.onlyCritical)) pen.moveTo(left, foot);
        else pen.lineTo(left, foot);
        pen.lineTo(right, foot);
        before = foot;
        drawn = right;
      }
    }
    pen.stroke();
    pen.restore();
  }

  drawChosen(pen) {
    if (!this.chosen || this.chosen.kind === "peak") return;
    const row = this.rowOf(this.chosen.kind, this.chosen.index), [start, length] = this.columns(row);
    const left = this.x(start[this.chosen.index]), right = this.x(start[this.chosen.index] + length[this.chosen.index]);
    if (right < GUTTER || left > this.width) return;
    pen.strokeStyle = this.palette.accent;
    pen.lineWidth = 2.5;
    pen.strokeRect(Math.max(GUTTER, left) - 1, row.top - 1, Math.max(4, Math.min(right, this.width) - Math.max(GUTTER, left)) + 1, row.height + 2);
  }

  drawMemory(pen, row) {
    const { data } = this, device = row.device, top = row.top + row.height + 1, limit = data.memory_bytes[device], over = data.peak_bytes[device] > limit;
    this.drawCurve(pen, device, top);
    if (limit <= this.most) {
      const y = top + this.memory * (1 - limit / this.most);
      pen.fillStyle = over ? this.palette.warn : this.palette.quiet;
      for (let x = GUTTER; x < this.width; x += 7) pen.fillRect(x, y, 4, 1);
    }
    const x = this.x(data.peaks[device].at_ns), chosen = this.chosen && this.chosen.kind === "peak" && this.chosen.index === device;
    if (x < GUTTER - 1 || x > this.width + 1) return;
    pen.beginPath();
    pen.arc(Math.min(x, this.width - 4), top + Math.max(3, this.memory * (1 - data.peak_bytes[device] / this.most)), chosen ? 5 : 3, 0, 7);
    pen.fillStyle = chosen ? this.palette.accent : over ? this.palette.warn : this.palette.text;
    pen.fill();
  }

  drawCurve(pen, device, top) {
    const { data } = this, low = data.curve_start[device], high = data.curve_start[device + 1];
    const base = top + this.memory, y = (bytes) => base - (bytes / this.most) * this.memory;
    let at = low;
    for (let step = high - low; step > 0; ) {
      const half = step >> 1;
      if (data.curve_ns[at + half] <= this.from) { at += half + 1; step -= half + 1; } else step = half;
    }
    at = Math.max(low, at - 1);
    pen.beginPath();
    pen.moveTo(GUTTER, base);
    let held = data.curve_bytes[at] || 0, last = GUTTER;
    pen.lineTo(GUTTER, y(held));
    for (at += 1; at < high && data.curve_ns[at] <= this.to; at++) {
      // Of all changes within one pixel the highest is drawn, and the last.
      const x = Math.floor(this.x(data.curve_ns[at]));
      let most = data.curve_bytes[at];
      while (at + 1 < high && Math.floor(this.x(data.curve_ns[at + 1])) === x) most = Math.max(most, data.curve_bytes[++at]);
      pen.lineTo(x, y(held));
      if (most > held) pen.lineTo(x, y(most));
      held = data.curve_bytes[at];
      pen.lineTo(x, y(held));
      last = x;
    }
    const end = Math.max(last, Math.min(this.width, this.x(data.step_ns)));
    pen.lineTo(end, y(held));
    pen.lineTo(end, base);
    pen.closePath();
    pen.fillStyle = this.palette.held;
    pen.globalAlpha = 0.55;
    pen.fill();
    pen.globalAlpha = 1;
  }

  // Moving about

  show(from, to) {
    const most = Math.max(1, this.data.step_ns), span = Math.min(most, Math.max(10, to - from));
    this.from = Math.min(Math.max(0, from), most - span);
    this.to = this.from + span;
    this.later();
  }

  zoom(times, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) / times, at + (this.to - at) / times);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  fit() {
    this.show(0, this.data.step_ns);
  }

  // Shows only these in full; null: all.
  mark(ops, sends = null) {
    this.found = ops;
    this.foundSends = sends;
    this.later();
  }

  // Brings an op or a transfer into view, wide enough to see.
  reveal(kind, index) {
    const row = this.rowOf(kind, index), [start, length] = this.columns(row);
    const middle = start[index] + length[index] / 2, span = Math.max(length[index] * 12, 200);
    if (middle < this.from || middle > this.to || length[index] < (this.to - this.from) / 40) this.show(middle - span / 2, middle + span / 2);
    this.select({ kind, index });
  }

  select(what) {
    this.chosen = what;
    this.choose(what);
    this.later();
  }

  // The first item of a row that may end at or after a time.
  firstAt(row, ns) {
    const [start, length] = this.columns(row), items = row.items;
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[items[middle]] + length[items[middle]] < ns) low = middle + 1;
      else high = middle;
    }
    return row.wire === -1 ? Math.max(0, low - 64) : low; // links in one row overlap
  }

  at(x, y) {
    const row = this.rows.find((row) => y >= row.top - 1 && y <= row.top + row.height + 1);
    if (!row || x < GUTTER) return null;
    const slack = 3 * ((this.to - this.from) / (this.width - GUTTER)), ns = this.ns(x), [start, length] = this.columns(row);
    let best = null, near = Infinity;
    for (let at = this.firstAt(row, ns - slack); at < row.items.length; at++) {
      const item = row.items[at], away = Math.max(start[item] - ns, ns - start[item] - length[item], 0);
      if (start[item] > ns + slack) break;
      if (away < near && away <= slack) { near = away; best = { kind: row.kind, index: item }; }
    }
    return best;
  }

  step(by) {
    const { chosen } = this;
    const row = chosen && chosen.kind !== "peak" ? this.rowOf(chosen.kind, chosen.index) : this.rows.find((row) => row.items.length);
    if (!row) return;
    const here = chosen && chosen.kind !== "peak" ? row.items.indexOf(chosen.index) + by : 0;
    this.reveal(row.kind, row.items[Math.min(row.items.length - 1, Math.max(0, here))]);
  }

  toggleLinks() {
    this.openLinks = !this.openLinks;
    this.resize();
  }

  listen() {
    const { lanes } = this;
    let grip = null;
    lanes.addEventListener("pointerdown", (event) => {
      grip = { x: event.offsetX, from: this.from, to: this.to, moved: false };
      lanes.setPointerCapture(event.pointerId);
    });
    lanes.addEventListener("pointermove", (event) => {
      if (!grip) return;
      const by = ((grip.x - event.offsetX) / (this.width - GUTTER)) * (grip.to - grip.from);
      if (Math.abs(grip.x - event.offsetX) > 3) grip.moved = true;
      if (grip.moved) this.show(grip.from + by, grip.to + by);
    });
    lanes.addEventListener("pointerup", (event) => {
      const click = grip && !grip.moved;
      grip = null;
      if (click) this.click(event.offsetX, event.offsetY);
    });
    lanes.addEventListener("pointercancel", () => { grip = null; });
    lanes.addEventListener("dblclick", (event) => this.zoom(3, this.ns(event.offsetX)));
    lanes.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    lanes.addEventListener("keydown", (event) => this.key(event));
  }

  click(x, y) {
    const hit = this.at(x, y);
    if (hit) { this.select(hit); return; }
    const row = this.rows.find((row) => y >= row.top - 1 && y <= row.top + row.height + this.memory + 2);
    if (row && row.wire === -1 && x < GUTTER) this.toggleLinks();
    else if (row && row.kind === "op" && y > row.top + row.height) this.select({ kind: "peak", index: row.device });
    else this.select(null);
  }

  // A page must scroll: the wheel zooms only once the timeline has been clicked, or with Ctrl.
  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== this.lanes) return;
    event.preventDefault();
    if (sideways || event.shiftKey) this.pan((event.deltaX || event.deltaY) / 800);
    else this.zoom(Math.exp(-event.deltaY / 300), this.ns(Math.max(GUTTER, event.offsetX)));
  }

  key(event) {
    const does = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), "+": () => this.zoom(1.6), "=": () => this.zoom(1.6),
      "-": () => this.zoom(1 / 1.6), _: () => this.zoom(1 / 1.6), 0: () => this.fit(), Home: () => this.fit(), "[": () => this.step(-1), "]": () => this.step(1),
      l: () => this.toggleLinks(), Escape: () => this.select(null),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }
}
