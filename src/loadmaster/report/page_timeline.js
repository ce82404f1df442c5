"use strict";
// The timeline: a row per device and wire, the memory of each device under it, one view of time for both.

let GUTTER = 150; // as wide as the names need
const RULER = 26, WIRE_ROW = 15, GAP = 3;

class Timeline {
  constructor(data, lanes, memory, choose) {
    this.data = data;
    this.lanes = lanes;
    this.memory = memory;
    this.choose = choose; // called with {kind: "op" | "send" | "peak", index}
    this.from = 0;
    this.to = Math.max(1, data.step_ns);
    this.chosen = null;
    this.found = null; // Uint8Array of ops that match the search, or null
    this.module = -1; // only this module in full colour, or -1
    this.onlyCritical = false;
    this.rows = this.makeRows();
    this.most = this.mostBytes();
    this.listen();
  }

  makeRows() {
    const { data } = this;
    const count = data.devices.length;
    const tall = count > 24 ? 15 : count > 12 ? 20 : count > 4 ? 28 : 40;
    const thin = data.wires.length > 12 ? 11 : count > 4 ? WIRE_ROW : WIRE_ROW + 5;
    const longest = Math.max(...data.devices.map((name) => name.length * 7.4), ...data.wires.map((name) => name.length * 6.3), 90);
    GUTTER = Math.round(Math.min(210, longest + 16));
    const rows = data.devices.map((name, device) => ({ name, device, height: tall, items: [], kind: "op" }));
    data.wires.forEach((name, wire) => rows.push({ name, wire, height: thin, items: [], kind: "send" }));
    for (let op = 0; op < data.op_start.length; op++) rows[data.op_device[op]].items.push(op);
    for (let send = 0; send < data.send_start.length; send++) rows[count + data.send_wire[send]].items.push(send);
    let top = RULER;
    for (const row of rows) {
      const [start, length] = this.columns(row);
      row.items.sort((a, b) => start[a] - start[b] || length[a] - length[b] || a - b);
      row.top = top;
      top += row.height + GAP;
    }
    this.bottom = top + 4;
    this.strip = count > 16 ? 22 : count > 6 ? 32 : count > 3 ? 44 : 62;
    return rows;
  }

  // One scale for all devices, so that they can be compared; up to the limit where a device comes near it.
  mostBytes() {
    const { data } = this;
    const near = data.peak_bytes.map((peak, device) => (2 * peak > data.memory_bytes[device] ? Math.max(peak, data.memory_bytes[device]) : peak));
    return Math.max(1, ...near) * 1.06;
  }

  columns(row) {
    const { data } = this;
    return row.kind === "op" ? [data.op_start, data.op_length] : [data.send_start, data.send_length];
  }

  // Drawing

  resize() {
    for (const [canvas, height] of [[this.lanes, this.bottom], [this.memory, (this.strip + 8) * this.data.devices.length + 6]]) {
      const width = canvas.parentElement.clientWidth, dense = window.devicePixelRatio || 1;
      canvas.style.height = height + "px";
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      canvas.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
      this.width = width;
    }
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

  draw() {
    this.palette = { text: colour("--text"), quiet: colour("--quiet"), idle: colour("--idle"), line: colour("--line"), accent: colour("--accent"),
      path: colour("--path"), ground: colour("--ground"), panel: colour("--panel"), warn: colour("--warn"), soft: colour("--accent-soft") };
    this.colours = [...Array.from({ length: MODULE_COLOURS }, (_, at) => colour("--c" + at)), colour("--other")];
    this.inks = this.colours.map(inkOn);
    this.drawLanes();
    this.drawMemory();
  }

  drawLanes() {
    const pen = this.lanes.getContext("2d");
    pen.clearRect(0, 0, this.width, this.bottom);
    this.drawRuler(pen);
    for (const row of this.rows) {
      pen.fillStyle = this.palette.quiet;
      pen.font = row.kind === "op" ? "12.5px system-ui, sans-serif" : "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      pen.fillText(this.shortened(pen, row.name, GUTTER - 14), 0, row.top + row.height / 2);
      pen.fillStyle = this.palette.idle;
      pen.fillRect(GUTTER, row.top, this.width - GUTTER, row.height);
      pen.save();
      pen.beginPath();
      pen.rect(GUTTER, row.top - 1, this.width - GUTTER, row.height + 2);
      pen.clip();
      this.drawRow(pen, row);
      pen.restore();
    }
    this.drawPath(pen);
    this.drawChosen(pen);
  }

  drawRuler(pen) {
    const span = this.to - this.from, rough = span / Math.max(2, (this.width - GUTTER) / 130);
    const power = 10 ** Math.floor(Math.log10(rough));
    const tick = Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((step) => step >= rough));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    for (let ns = Math.ceil(this.from / tick) * tick; ns <= this.to; ns += tick) {
      const x = this.x(ns);
      pen.fillStyle = this.palette.line;
      pen.fillRect(x, 16, 1, this.bottom);
      pen.fillStyle = this.palette.quiet;
      const text = timeText(ns);
      pen.textAlign = x + pen.measureText(text).width > this.width ? "right" : "left";
      pen.fillText(text, x + (pen.textAlign === "left" ? 3 : -3), 3);
    }
    const all = this.width - GUTTER, shown = [GUTTER + (this.from / this.data.step_ns) * all, Math.max(3, (span / this.data.step_ns) * all)];
    if (span < this.data.step_ns * 0.999) {
      pen.fillStyle = this.palette.line;
      pen.fillRect(GUTTER, 0, all, 2);
      pen.fillStyle = this.palette.accent;
      pen.fillRect(shown[0], 0, shown[1], 2);
    }
  }

  // How strongly an op or transfer is drawn: what was asked for in full, the rest faint.
  weight(row, item) {
    const { data } = this;
    const critical = row.kind === "op" ? data.op_critical[item] : data.send_critical[item];
    if (this.onlyCritical && !critical) return 0.16;
    const op = row.kind === "op" ? item : data.send_maker[item];
    if (this.found && !(row.kind === "op" && this.found[op])) return 0.12;
    if (this.module >= 0 && data.op_module[op] !== this.module) return 0.12;
    return 1;
  }

  drawRow(pen, row) {
    const { data } = this, [start, length] = this.columns(row), items = row.items;
    const pixel = { x: -1, total: 0, strong: 0, by: new Float64Array(MODULE_COLOURS + 1) };
    for (let at = this.firstAt(row, this.from); at < items.length && start[items[at]] <= this.to; at++) {
      const item = items[at], left = this.x(start[item]), right = this.x(start[item] + length[item]);
      const module = Math.min(MODULE_COLOURS, data.op_module[row.kind === "op" ? item : data.send_maker[item]]);
      const strong = this.weight(row, item);
      if (right - left < 1.5) {
        this.gather(pen, row, pixel, left, right, module, strong);
        continue;
      }
      this.flush(pen, row, pixel);
      pen.globalAlpha = strong * (row.kind === "op" ? 1 : 0.8);
      pen.fillStyle = this.colours[module];
      const gap = right - left > 5 ? 0.6 : 0;
      pen.fillRect(left, row.top, right - left - gap, row.height);
      if (row.kind === "op" && right - left > 46 && row.height > 18) {
        pen.fillStyle = this.inks[module];
        this.drawName(pen, row, item, left, right);
      }
    }
    this.flush(pen, row, pixel);
    pen.globalAlpha = 1;
  }

  // Things too narrow to see add up: a column of pixels takes the colour of what fills most of it, as dense as it is full.
  gather(pen, row, pixel, left, right, module, strong) {
    const x = Math.floor(left);
    if (x !== pixel.x) this.flush(pen, row, pixel);
    pixel.x = x;
    const size = Math.max(right - left, 0.06);
    pixel.total += size;
    pixel.strong = Math.max(pixel.strong, strong);
    pixel.by[module] += size * strong;
  }

  flush(pen, row, pixel) {
    if (pixel.x < 0) return;
    let most = 0;
    for (let at = 1; at < pixel.by.length; at++) if (pixel.by[at] > pixel.by[most]) most = at;
    pen.globalAlpha = (0.25 + 0.75 * Math.min(1, pixel.total)) * pixel.strong;
    pen.fillStyle = this.colours[most];
    pen.fillRect(pixel.x, row.top, 1, row.height);
    pixel.x = -1;
    pixel.total = pixel.strong = 0;
    pixel.by.fill(0);
  }

  drawName(pen, row, op, left, right) {
    const from = Math.max(left, GUTTER) + 5;
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    const text = this.shortened(pen, this.data.op_name[op], Math.min(right, this.width) - from - 4);
    if (text.length > 2) pen.fillText(text, from, row.top + row.height / 2);
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
    return kind === "op" ? this.rows[this.data.op_device[index]] : this.rows[this.data.devices.length + this.data.send_wire[index]];
  }

  // The critical path: a line along the foot of its ops and transfers; when asked for, joined from row to row.
  drawPath(pen) {
    const { data } = this;
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, this.width - GUTTER, this.bottom);
    pen.clip();
    pen.strokeStyle = this.palette.path;
    pen.lineWidth = this.onlyCritical ? 1.6 : 2;
    pen.beginPath();
    let before = null, drawn = -1;
    for (let at = 0; at < data.path_index.length; at++) {
      const kind = data.path_kind[at] ? "send" : "op", item = data.path_index[at], row = this.rowOf(kind, item);
      const [start, length] = this.columns(row);
      if (start[item] > this.to) break;
      const left = this.x(start[item]), right = this.x(start[item] + length[item]), foot = row.top + row.height + 0.5;
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
    pen.strokeStyle = this.palette.text;
    pen.lineWidth = 2;
    pen.strokeRect(Math.max(GUTTER, left) - 1, row.top - 1, Math.max(3, Math.min(right, this.width) - Math.max(GUTTER, left)) + 1, row.height + 2);
  }

  drawMemory() {
    const pen = this.memory.getContext("2d"), { data } = this;
    pen.clearRect(0, 0, this.width, this.memory.height);
    data.devices.forEach((name, device) => {
      const top = 4 + device * (this.strip + 8), limit = data.memory_bytes[device], peak = data.peak_bytes[device];
      const full = this.most;
      pen.fillStyle = this.palette.quiet;
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      pen.font = "11px system-ui, sans-serif";
      pen.fillText(this.shortened(pen, name, GUTTER - 14), 0, top + this.strip / 2 - (this.strip > 30 ? 7 : 0));
      if (this.strip > 30) pen.fillText(sizeText(peak) + " peak", 0, top + this.strip / 2 + 7);
      this.drawCurve(pen, device, top, full);
      if (limit <= full) {
        const y = top + this.strip * (1 - limit / full);
        pen.fillStyle = peak > limit ? this.palette.warn : this.palette.quiet;
        for (let x = GUTTER; x < this.width; x += 7) pen.fillRect(x, y, 4, 1);
      }
      this.drawPeak(pen, device, top, full);
    });
  }

  drawCurve(pen, device, top, full) {
    const { data } = this, low = data.curve_start[device], high = data.curve_start[device + 1];
    const base = top + this.strip, y = (bytes) => base - (bytes / full) * this.strip;
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
    pen.fillStyle = this.palette.soft;
    pen.fill();
    pen.strokeStyle = this.palette.accent;
    pen.lineWidth = 1;
    pen.stroke();
  }

  drawPeak(pen, device, top, full) {
    const { data } = this, x = this.x(data.peaks[device].at_ns);
    if (x < GUTTER - 1 || x > this.width + 1) return;
    const chosen = this.chosen && this.chosen.kind === "peak" && this.chosen.index === device;
    pen.beginPath();
    pen.arc(Math.min(x, this.width - 5), top + this.strip * (1 - data.peak_bytes[device] / full), chosen ? 5 : 3.5, 0, 7);
    pen.fillStyle = chosen ? this.palette.path : this.palette.accent;
    pen.fill();
    pen.strokeStyle = this.palette.ground;
    pen.lineWidth = 1.5;
    pen.stroke();
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

  // The first item of a row that ends at or after a time; nothing on a row overlaps.
  firstAt(row, ns) {
    const [start, length] = this.columns(row), items = row.items;
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (start[items[middle]] + length[items[middle]] < ns) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  at(x, y) {
    const row = this.rows.find((row) => y >= row.top - 1 && y <= row.top + row.height + 1);
    if (!row || x < GUTTER) return null;
    const slack = 3 * ((this.to - this.from) / (this.width - GUTTER)), ns = this.ns(x), [start, length] = this.columns(row);
    let best = null, near = Infinity;
    for (let at = this.firstAt(row, ns - slack); at < row.items.length; at++) {
      const item = row.items[at], away = Math.max(start[item] - ns, ns - start[item] - length[item], 0);
      if (start[item] > ns + slack) break;
      if (away < near) { near = away; best = { kind: row.kind, index: item }; }
    }
    return best;
  }

  step(by) {
    const { chosen } = this;
    const row = chosen && chosen.kind !== "peak" ? this.rowOf(chosen.kind, chosen.index) : this.rows.find((row) => row.items.length);
    if (!row) return;
    const here = chosen && chosen.kind !== "peak" ? row.items.indexOf(chosen.index) + by : 0;
    const item = row.items[Math.min(row.items.length - 1, Math.max(0, here))];
    this.reveal(row.kind, item);
  }

  deviceAt(y) {
    const device = Math.floor((y - 2) / (this.strip + 8));
    return device >= 0 && device < this.data.devices.length ? device : -1;
  }

  listen() {
    const { lanes, memory } = this;
    let grip = null;
    for (const canvas of [lanes, memory]) {
      canvas.addEventListener("pointerdown", (event) => {
        grip = { x: event.offsetX, from: this.from, to: this.to, moved: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (!grip) return;
        const by = ((grip.x - event.offsetX) / (this.width - GUTTER)) * (grip.to - grip.from);
        if (Math.abs(grip.x - event.offsetX) > 3) grip.moved = true;
        if (grip.moved) this.show(grip.from + by, grip.to + by);
      });
      canvas.addEventListener("pointerup", (event) => {
        const click = grip && !grip.moved;
        grip = null;
        if (!click) return;
        if (canvas === memory) this.selectPeak(this.deviceAt(event.offsetY));
        else this.selectAt(event.offsetX, event.offsetY);
      });
      canvas.addEventListener("pointercancel", () => { grip = null; });
      canvas.addEventListener("dblclick", (event) => this.zoom(3, this.ns(event.offsetX)));
      canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    }
    lanes.addEventListener("keydown", (event) => this.key(event));
  }

  selectAt(x, y) {
    const hit = this.at(x, y);
    if (hit) this.select(hit);
  }

  selectPeak(device) {
    if (device >= 0) this.select({ kind: "peak", index: device });
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
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }
}
