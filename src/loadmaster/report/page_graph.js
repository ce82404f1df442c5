"use strict";
// The graph folded by module: boxes in the order of the data, an unfolded module a box around its own.

const SVG = "http://www.w3.org/2000/svg";
const MOST_BESIDE = 24; // ops of one module beyond this are put into runs
const SMALL = 0.002, FEW_SMALL = 4; // ops that take less of the step than this are shown as one box, where there are more than these
const SPACE = 16, HEAD = 24, STACK = 8, MOST_LINES = 500, FIRST_SHOWN = 8;

class Branch {
  constructor(name, parent, ops = [], op = -1) {
    this.name = name;
    this.parent = parent;
    this.op = op; // of a single one, else -1
    this.ops = ops; // that are in this and in no module below
    this.below = new Map(); // name -> module
    this.kids = null; // made when it is unfolded
    this.open = false;
  }
}

class Folded {
  constructor(data, place, reveal) {
    this.data = data;
    this.place = place;
    this.reveal = reveal; // called with an op that was clicked
    this.found = null;
    this.all = [];
    this.root = new Branch("", null);
    this.grow();
    this.foldAll();
  }

  // The tree of modules; boxes for ops come when a module is unfolded

  grow() {
    const { data } = this;
    this.branches = data.paths.map((path) => {
      let here = this.root;
      for (const part of path) {
        if (!here.below.has(part)) here.below.set(part, new Branch(part, here));
        here = here.below.get(part);
      }
      return here;
    });
    for (let op = 0; op < data.op_path.length; op++) this.branches[data.op_path[op]].ops.push(op);
    this.finish(this.root);
  }

  finish(branch) {
    for (const kid of branch.below.values()) this.finish(kid);
    this.sum(branch);
    for (const kid of branch.below.values()) {
      const [only] = kid.below.values();
      if (kid.below.size !== 1 || kid.ops.length) continue;
      Object.assign(only, { name: `${kid.name}.${only.name}`, parent: branch }); // one module in another and nothing else
      branch.below.set(kid.name, only);
    }
  }

  unfold(branch) {
    if (!branch.kids) branch.kids = branch.op >= 0 ? [] : [...this.boxes(branch), ...branch.below.values()].sort((a, b) => a.first - b.first);
    return branch.kids;
  }

  // The ops of a module that are worth a box of their own, or runs of them where there are many; small ones share a box.
  boxes(branch) {
    const { data } = this, small = branch.small ? [] : branch.ops.filter((op) => data.op_length[op] < SMALL * data.step_ns);
    const apart = small.length > FEW_SMALL && (small.length < branch.ops.length || branch.below.size > 0), hidden = new Set(apart ? small : []);
    const ops = branch.ops.filter((op) => !hidden.has(op)), made = [];
    const size = ops.length <= MOST_BESIDE ? 1 : Math.max(MOST_BESIDE, Math.ceil(ops.length / MOST_BESIDE));
    for (let at = 0; at < ops.length; at += size) {
      const some = ops.slice(at, at + size), last = some[some.length - 1];
      made.push(size === 1 ? new Branch(data.op_name[last], branch, some, last) : new Branch(`${data.op_name[some[0]]} … ${data.op_name[last]}`, branch, some));
    }
    if (apart) made.push(Object.assign(new Branch(countText(small.length, "small op"), branch, small), { small: true }));
    for (const one of made) this.sum(one);
    return made;
  }

  sum(branch) {
    const { data } = this;
    branch.id = this.all.length;
    this.all.push(branch);
    branch.by = new Float64Array(data.devices.length);
    branch.of = new Float64Array(data.modules.length + 1);
    Object.assign(branch, { time: 0, bytes: 0, critical: 0, count: 0, onPath: false, first: Infinity });
    for (const op of branch.ops) {
      const length = data.op_length[op];
      branch.by[data.op_device[op]] += length;
      branch.of[data.op_module[op]] += length;
      branch.time += length;
      branch.bytes += data.op_bytes[op];
      branch.count += data.op_ops[op];
      branch.critical += data.op_critical[op] ? length : 0;
      branch.onPath = branch.onPath || data.op_critical[op] > 0;
      branch.first = Math.min(branch.first, op);
    }
    for (const kid of branch.below.values()) {
      kid.by.forEach((time, device) => { branch.by[device] += time; });
      kid.of.forEach((time, module) => { branch.of[module] += time; });
      for (const name of ["time", "bytes", "critical", "count"]) branch[name] += kid[name];
      branch.onPath = branch.onPath || kid.onPath;
      branch.first = Math.min(branch.first, kid.first);
    }
  }

  // Calls with every op of a box until one is answered with true.
  some(branch, test) {
    return branch.ops.some(test) || [...branch.below.values()].some((kid) => this.some(kid, test));
  }

  // A first picture: the heaviest modules unfolded until there is something to see.
  foldAll() {
    for (const branch of this.all) branch.open = false;
    this.root.open = true;
    let shown = this.unfold(this.root).slice();
    while (shown.length < FIRST_SHOWN) {
      const modules = shown.filter((branch) => this.unfold(branch).length > 0 && branch.kids.length + shown.length <= 3 * FIRST_SHOWN);
      if (!modules.length) break;
      const heaviest = modules.reduce((a, b) => (b.time > a.time ? b : a));
      heaviest.open = true;
      shown = shown.filter((branch) => branch !== heaviest).concat(heaviest.kids);
    }
    this.draw();
  }

  toggle(branch) {
    if (branch.op >= 0) {
      this.reveal(branch.op);
      return;
    }
    branch.open = !branch.open;
    this.draw(branch.id);
  }

  // Unfolds what is needed to see an op.
  show(op) {
    for (let here = this.root; here && here.op < 0; ) {
      here.open = true;
      here = this.unfold(here).find((kid) => this.some(kid, (other) => other === op));
    }
    this.draw();
    const leaf = this.visible.find((branch) => branch.op === op), box = leaf && this.place.querySelector(`g[data-id="${leaf.id}"]`);
    if (!box) return;
    box.scrollIntoView({ block: "center", inline: "center" });
    box.focus({ preventScroll: true });
  }

  // Where things are

  leaves() {
    const leafOf = new Int32Array(this.data.op_start.length), visible = [];
    const visit = (branch) => {
      if (branch.open && this.unfold(branch).length) { branch.kids.forEach(visit); return; }
      visible.push(branch);
      this.some(branch, (op) => { leafOf[op] = branch.id; return false; });
    };
    visit(this.root);
    return [visible, leafOf];
  }

  // Who reads from whom among the visible boxes: [earlier, later, reads], most reads first.
  lines(leafOf) {
    const { data } = this, count = new Map(), size = this.all.length;
    for (let reader = 0; reader < data.op_start.length; reader++) for (let at = data.read_start[reader]; at < data.read_start[reader + 1]; at++) {
      let from = leafOf[data.read_maker[at]], to = leafOf[reader];
      if (from === to) continue;
      if (this.all[from].first > this.all[to].first) [from, to] = [to, from];
      count.set(from * size + to, (count.get(from * size + to) || 0) + 1);
    }
    const lines = [...count].map(([key, reads]) => [this.all[Math.floor(key / size)], this.all[key % size], reads]);
    return lines.sort((a, b) => b[2] - a[2]);
  }

  // For each open module, which of its own boxes come after which.
  orders(lines) {
    const after = new Map();
    for (const [from, to] of lines) {
      const above = new Set();
      for (let here = from; here; here = here.parent) above.add(here);
      let low = to;
      while (!above.has(low.parent)) low = low.parent;
      let high = from;
      while (high.parent !== low.parent) high = high.parent;
      if (high.first > low.first) [high, low] = [low, high];
      if (!after.has(low)) after.set(low, new Set());
      after.get(low).add(high);
    }
    return after;
  }

  arrange(branch, after, wide) {
    if (!(branch.open && this.unfold(branch).length)) {
      const text = Math.max(branch.name.length * 7, 6.1 * Math.max(this.note(branch).length, branch.op < 0 ? this.places(branch).length : 0)) + 22;
      branch.w = Math.min(190, Math.max(branch.op >= 0 ? 84 : 112, text));
      branch.h = branch.op >= 0 ? 36 : 50;
      return;
    }
    for (const kid of branch.kids) this.arrange(kid, after, wide - 2 * SPACE);
    const top = branch === this.root ? SPACE : HEAD + SPACE / 2;
    let x = SPACE, y = top, deep = 0, right = 0;
    for (const column of this.stacks(branch, after)) {
      const w = Math.max(...column.map((kid) => kid.w)), h = column.reduce((sum, kid) => sum + kid.h + 10, -10);
      if (x > SPACE && x + w + SPACE > wide) { x = SPACE; y += deep + SPACE + 6; deep = 0; }
      let at = y;
      for (const kid of column) { kid.x = x + (w - kid.w) / 2; kid.y = at; at += kid.h + 10; }
      x += w + 26;
      deep = Math.max(deep, h);
      right = Math.max(right, x - 26 + SPACE);
    }
    branch.w = Math.max(right, branch.name.length * 7 + 40);
    branch.h = y + deep + SPACE;
  }

  // Boxes in columns: each after all that it waits for; long columns are broken.
  stacks(branch, after) {
    const layer = new Map(), columns = [];
    for (const kid of branch.kids) {
      let at = 0;
      for (const before of after.get(kid) || []) at = Math.max(at, (layer.get(before) ?? -1) + 1);
      layer.set(kid, at);
      (columns[at] = columns[at] || []).push(kid);
    }
    const broken = [];
    for (const column of columns) for (let at = 0; column && at < column.length; at += STACK) broken.push(column.slice(at, at + STACK));
    return broken;
  }

  note(branch) {
    return branch.op >= 0 ? `${timeText(branch.time)} · ${this.places(branch)}` : `${countText(branch.count, "op")} · ${timeText(branch.time)}`;
  }

  // The device that does most of a module.
  places(branch) {
    const most = this.largest(branch.by), share = branch.time ? Math.round((100 * branch.by[most]) / branch.time) : 100;
    return this.data.devices[most] + (share < 100 ? ` ${share} %` : "");
  }

  largest(times) {
    return times.indexOf(Math.max(...times));
  }

  // Drawing

  draw(focus = -1) {
    const [visible, leafOf] = this.leaves(), lines = this.lines(leafOf);
    const wide = Math.max(480, (this.place.clientWidth || 1200) - 4);
    this.arrange(this.root, this.orders(lines), wide);
    const width = Math.max(wide - 2, this.root.w), height = this.root.h;
    const picture = this.shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Modules" });
    // Lines lie over the frames of open modules and under the boxes.
    const frames = this.shape("g", {}), wires = this.shape("g", {}), boxes = this.shape("g", {});
    picture.append(frames, wires, boxes);
    this.root.X = this.root.Y = 0;
    const aside = this.root.open ? 0 : SPACE;
    for (const kid of this.root.open ? this.root.kids : [this.root]) this.drawBox(frames, boxes, kid, aside, aside);
    for (const line of lines.slice(0, MOST_LINES)) this.drawLine(wires, line);
    this.place.replaceChildren(picture);
    this.visible = visible;
    const kept = focus >= 0 && picture.querySelector(`g[data-id="${focus}"]`);
    if (kept) kept.focus({ preventScroll: true });
  }

  shape(tag, settings, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  label(text, settings) {
    const made = this.shape("text", settings);
    made.textContent = text;
    return made;
  }

  cut(text, width, size) {
    const most = Math.floor(width / size);
    return text.length <= most ? text : text.slice(0, Math.max(1, most - 1)) + "…";
  }

  drawBox(frames, boxes, branch, dx, dy) {
    branch.X = (branch.x || 0) + dx;
    branch.Y = (branch.y || 0) + dy;
    const open = branch.open && this.unfold(branch).length > 0;
    const words = this.words(branch), what = branch.op >= 0 ? "op" : open ? "unfolded module" : "folded module";
    const group = this.shape("g", { transform: `translate(${branch.X} ${branch.Y})`, tabindex: 0, role: "button", "data-id": branch.id,
      "aria-label": `${(open ? [this.title(branch)] : words).join(" ")}, ${branch.name || "whole graph"}, ${what}` });
    if (branch.op < 0) group.setAttribute("aria-expanded", open);
    const marks = (branch.onPath ? " critical" : "") + (this.found && this.some(branch, (op) => this.found[op] > 0) ? " match" : "");
    group.append(this.shape("rect", { width: branch.w, height: branch.h, rx: open ? 10 : 7, class: (open ? "open" : "box") + (open ? "" : marks) }));
    if (open) group.append(this.label(this.title(branch), { x: 12, y: 17 }));
    else this.fillBox(group, branch, words);
    group.append(this.tip(branch));
    group.addEventListener("click", () => this.toggle(branch));
    group.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.toggle(branch);
    });
    for (const kind of ["mouseenter", "focus"]) group.addEventListener(kind, () => this.mark(branch, true));
    for (const kind of ["mouseleave", "blur"]) group.addEventListener(kind, () => this.mark(branch, false));
    (open ? frames : boxes).append(group);
    if (open) for (const kid of branch.kids) this.drawBox(frames, boxes, kid, branch.X, branch.Y);
  }

  tip(branch) {
    const made = this.shape("title", {});
    const device = this.data.devices.filter((_, at) => branch.by[at] > 0).join(", ");
    made.textContent = `${branch.name}\n${countText(branch.count, "op")}, ${timeText(branch.time)} on ${device || "-"}\nmakes ${sizeText(branch.bytes)}`
      + (branch.onPath ? `\n${timeText(branch.critical)} on the critical path` : "");
    return made;
  }

  title(branch) {
    return "▾ " + this.cut(branch.name || "graph", branch.w - 24, 7);
  }

  // The lines in a box.
  words(branch) {
    const places = branch.op < 0 ? [this.cut(this.places(branch), branch.w - 18, 5.8)] : [];
    return [this.cut(branch.name, branch.w - 18, 7), this.note(branch), ...places];
  }

  fillBox(group, branch, words) {
    group.append(this.shape("rect", { width: branch.w, height: branch.h, rx: 7, "pointer-events": "none", style: `fill:${colourOf(this.largest(branch.of))};fill-opacity:.3` }));
    words.forEach((text, at) => group.append(this.label(text, { x: 10, y: 16 + (branch.op < 0 ? 14 : 13.5) * at, class: at ? "small" : "" }), " "));
  }

  drawLine(wires, [from, to, reads]) {
    const ahead = to.X >= from.X + from.w - 4;
    const a = ahead ? [from.X + from.w, from.Y + from.h / 2] : [from.X + from.w / 2, from.Y + from.h];
    const b = ahead ? [to.X, to.Y + to.h / 2] : [to.X + to.w / 2, to.Y];
    const bend = Math.max(14, Math.abs(ahead ? b[0] - a[0] : b[1] - a[1]) / 2);
    const middle = ahead ? `${a[0] + bend} ${a[1]} ${b[0] - bend} ${b[1]}` : `${a[0]} ${a[1] + bend} ${b[0]} ${b[1] - bend}`;
    const width = Math.min(4, 0.8 + Math.log10(reads));
    wires.append(this.shape("path", { d: `M${a[0]} ${a[1]}C${middle} ${b[0]} ${b[1]}`, "stroke-width": width.toFixed(2), "data-ends": `${from.id} ${to.id}` }));
  }

  mark(branch, near) {
    for (const line of this.place.querySelectorAll("path[data-ends]")) {
      if (line.getAttribute("data-ends").split(" ").includes(String(branch.id))) line.classList.toggle("near", near);
    }
  }
}
