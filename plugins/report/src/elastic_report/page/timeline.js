// The timeline: draws the nodes that are visible, from the data in the page. elastic_report/page/lanes.py describes them.
// `elasticReport.update(data)` shows new data of the same form, and keeps the view, the open nodes and the choice.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const lanes = $("lanes"), canvas = $("canvas"), axis = $("axis"), overview = $("overview"), tip = $("tip");
  const ROW = 20, WORKER = 15, AXIS = 58, OVERVIEW = 46, GAP = 255;
  const first = JSON.parse($("data").textContent), SIGNS = first.signs;
  const LOUD = { failure: 3, worker_failed: 3, lost: 3, hang: 3, incident: 3, decision: 2, drain: 2, store_lost: 2 };
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

  let D, view, tick, rows, tops, height, width, label, colours, patterns, byNode, marksAll;
  let open = new Set(), incident = 0, chosen = { node: -1, event: -1 }, order = "";
  const strips = new Map();
  let stripsOf = "", still = false;
  let found = [], foundAt = -1, drawn = false, writing = 0, moving = 0;

  // --- the data ---

  const DIGITS = new Uint8Array(128);
  [..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"].forEach((c, i) => (DIGITS[c.charCodeAt(0)] = i));

  class Reader {
    constructor(text) { this.text = text; this.at = 0; }
    get more() { return this.at < this.text.length; }
    digit() { return DIGITS[this.text.charCodeAt(this.at++)]; }
    number() {
      let value = 0, scale = 1, digit;
      do {
        digit = this.digit();
        value += (digit & 31) * scale;
        scale *= 32;
      } while (digit & 32);
      return value;
    }
    signed() {
      const value = this.number();
      return value % 2 ? -(value + 1) / 2 : value / 2;
    }
  }

  function spansOf(part) {
    if (part.decoded) return part.decoded;
    const text = part.spans, state = [], begin = [], round = [], reason = [], read = new Reader(text);
    let at = part.begin, now = -1, why = 0;
    while (read.more) {
      const sign = text.charCodeAt(read.at++);
      if (sign === 33) now += read.signed(); // !
      else if (sign === 126) why = read.number(); // ~
      else {
        state.push(sign === 46 ? GAP : sign - 97); // .
        begin.push(at);
        round.push(now);
        reason.push(why);
        at += read.number();
        why = 0;
      }
    }
    begin.push(at);
    return (part.decoded = { state: Uint8Array.from(state), begin: Float64Array.from(begin), round: Int32Array.from(round), reason: Uint32Array.from(reason) });
  }

  function workersOf(node) {
    if (node.workers) return node.workers;
    const bars = [];
    for (const part of node.parts) {
      const read = new Reader(part.workers);
      let last = { round: -1, local: -1, rank: -1, begin: 0, length: 0, ending: 0, first: 0, final: 0 };
      let lead = last, leads = false; // the ranks before the first bar of the round
      while (read.more) {
        const sign = part.workers[read.at];
        if (sign === "!") {
          read.at++;
          last = { ...last, round: last.round + read.signed(), local: lead.local, rank: lead.rank };
          leads = true;
        } else if (sign === "*") {
          read.at++;
          for (let n = read.number(); n > 0; n--) {
            last = { ...last, local: last.local + 1, rank: last.rank + 1 };
            bars.push(last);
          }
        } else {
          const flags = read.digit(), bar = { ...last };
          bar.begin += read.signed();
          bar.length += read.signed();
          bar.local += flags & 1 ? read.signed() : 1;
          bar.rank += flags & 2 ? read.signed() : 1;
          if (flags & 4) bar.ending = read.number();
          bar.steps = Boolean(flags & 8);
          if (bar.steps) {
            bar.first += read.signed();
            bar.final += read.signed();
          }
          bar.marks = [];
          if (flags & 16) {
            let at = bar.begin;
            for (let n = read.number(); n > 0; n--) {
              const kind = read.number(), begin = at + read.signed(), length = read.number();
              bar.marks.push({ kind: kind ? "restoring" : "saving", begin, end: begin + length });
              at = begin + length;
            }
          }
          if (leads) lead = { local: bar.local - 1, rank: bar.rank - 1 };
          leads = false;
          last = bar;
          bars.push(bar);
        }
      }
    }
    const lists = [];
    for (const bar of bars) (lists[bar.local] ??= []).push(bar);
    for (const list of lists) list?.sort((a, b) => a.begin - b.begin);
    node.workers = Array.from(lists, (list) => list ?? []);
    return node.workers;
  }

  // How a worker ended: its exit code (null: not known), and whether the agent stopped it.
  function ended(bar) {
    const stopped = bar.ending % 2 === 1, value = (bar.ending - bar.ending % 2) / 2;
    if (!value) return { code: null, stopped };
    return { code: (value - 1) % 2 ? -value / 2 : (value - 1) / 2, stopped };
  }

  function update(data) {
    const before = D && { whole: view.from <= 0 && view.to >= D.end, tick: D.tick, ids: new Set([...open].map((n) => D.nodes[n].id)), chosen: D.nodes[chosen.node]?.id };
    D = data;
    tick = D.tick;
    strips.clear();
    byNode = new Map();
    marksAll = [];
    D.events.forEach((event, number) => {
      if (!byNode.has(event[3])) byNode.set(event[3], []);
      byNode.get(event[3]).push(number);
      if (D.names[event[1]] !== "round" && D.names[event[1]] !== "save") marksAll.push(number);
    });
    chosen = { node: -1, event: -1 };
    if (!before || before.whole) view = { from: 0, to: D.end };
    else view = { from: (view.from * before.tick) / tick, to: (view.to * before.tick) / tick };
    if (before) {
      open = new Set(D.nodes.map((node, n) => (before.ids.has(node.id) ? n : -1)).filter((n) => n >= 0));
      chosen.node = before.chosen === undefined ? -1 : D.nodes.findIndex((node) => node.id === before.chosen);
    }
    arrange();
  }

  // --- texts ---

  function duration(ticks) {
    const seconds = ticks * tick, whole = Math.round(seconds);
    for (const [size, name, below, part] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole >= size) {
        const rest = Math.floor((whole % size) / below);
        return `${Math.floor(whole / size)} ${name}` + (rest ? ` ${rest} ${part}` : "");
      }
    }
    return `${Number(seconds.toPrecision(3))} s`;
  }
  const two = (n) => String(n).padStart(2, "0");
  function clock(ticks, withSeconds = true) {
    const at = new Date(D.began + ticks * tick * 1000);
    return `${two(at.getHours())}:${two(at.getMinutes())}` + (withSeconds ? `:${two(at.getSeconds())}` : "");
  }
  const eventName = (event) => D.names[event[1]].replaceAll("_", " ");
  const place = (event) => [event[3] >= 0 ? D.nodes[event[3]].id : "", event[4] >= 0 ? `rank ${event[4]}` : ""].filter(Boolean).join(", ");
  function eventText(number) {
    const event = D.events[number], where = place(event);
    return `${clock(event[0])}, ${duration(event[0])} after the start: ${eventName(event)}${where ? ` (${where})` : ""}\n${D.texts[event[2]]}`;
  }

  // --- layout ---

  function arrange() {
    const nodes = D.nodes.map((_, n) => n);
    if (order === "lost") nodes.sort((a, b) => D.nodes[b].lost - D.nodes[a].lost || a - b);
    if (order === "name") nodes.sort((a, b) => D.nodes[a].id.localeCompare(D.nodes[b].id, undefined, { numeric: true }));
    rows = [];
    tops = [];
    height = 2;
    for (const n of nodes) {
      rows.push({ node: n, worker: -1 });
      tops.push(height);
      height += ROW;
      if (!open.has(n)) continue;
      workersOf(D.nodes[n]).forEach((_, worker) => {
        rows.push({ node: n, worker });
        tops.push(height);
        height += WORKER;
      });
      height += 4;
    }
    $("space").style.height = `${height + 2}px`;
    resize();
  }

  function resize() {
    lanes.style.height = `${height + 2}px`; // its greatest height is the style sheet's
    width = lanes.clientWidth;
    label = width < 560 ? 84 : 148;
    for (const [each, tall] of [[canvas, lanes.clientHeight], [axis, AXIS], [overview, OVERVIEW]]) {
      const ratio = window.devicePixelRatio || 1;
      each.width = Math.round(width * ratio);
      each.height = Math.round(tall * ratio);
      each.style.width = `${width}px`;
      each.style.height = `${tall}px`;
    }
    draw();
  }

  function readColours() {
    strips.clear();
    const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue(name).trim();
    colours = { page: get("--page"), panel: get("--panel"), text: get("--text"), quiet: get("--quiet"), line: get("--line"), strong: get("--strong-line"), accent: get("--accent"), soft: get("--accent-soft"), bad: get("--bad"), row: get("--row"), bar: get("--bar"), stopped: get("--bar-stopped"), font: getComputedStyle(document.body).fontFamily };
    patterns = D.states.map((state, s) => {
      const name = state.replaceAll(" ", "-"), tile = document.createElement("canvas"), scale = window.devicePixelRatio || 1;
      tile.width = tile.height = 8 * scale;
      const pen = tile.getContext("2d");
      pen.scale(scale, scale);
      pen.fillStyle = get(`--s-${name}`);
      pen.fillRect(0, 0, 8, 8);
      pen.strokeStyle = get(`--i-${name}`);
      pen.lineWidth = 1.2;
      if (D.patterns[s]) pen.stroke(new Path2D(D.patterns[s]));
      const fill = pen.createPattern(tile, "repeat");
      fill.setTransform(new DOMMatrix().scale(1 / scale));
      return { fill, plain: get(`--s-${name}`), text: get(`--t-${name}`) };
    });
  }

  const plot = () => Math.max(10, width - label - 12);
  const x = (ticks) => label + ((ticks - view.from) / (view.to - view.from)) * plot();
  const at = (px) => view.from + ((px - label) / plot()) * (view.to - view.from);
  const least = () => Math.max(2, Math.min(D.end, 0.02 / tick));

  // --- drawing: at most once a frame ---

  function draw() {
    if (drawn) return;
    drawn = true;
    requestAnimationFrame(() => {
      drawn = false;
      drawOverview();
      drawAxis();
      drawLanes();
    });
  }

  function pen(each) {
    const ratio = window.devicePixelRatio || 1, context = each.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, each.width, each.height);
    context.font = `11px ${colours.font}`;
    context.textBaseline = "middle";
    return context;
  }

  function drawOverview() {
    const p = pen(overview), top = 4, tall = OVERVIEW - 8, step = plot() / 240;
    const base = new Float64Array(240);
    const stack = [D.states.length - 1, ...D.states.keys()].slice(0, D.states.length);
    for (const s of stack) {
      const shares = D.overview[s];
      if (!shares || !shares.length) continue;
      p.fillStyle = patterns[s].plain;
      for (let n = 0; n < 240; n++) {
        const part = (shares[n] / 1000) * tall;
        const left = Math.round(label + n * step);
        if (part > 0) p.fillRect(left, top + tall - base[n] - part, Math.round(label + (n + 1) * step) - left, part);
        base[n] += part;
      }
    }
    p.fillStyle = colours.quiet;
    p.fillText("all nodes", 8, OVERVIEW / 2);
    const left = label + (view.from / D.end) * plot(), right = label + (view.to / D.end) * plot();
    if (view.from > 0 || view.to < D.end) {
      p.globalAlpha = 0.65;
      p.fillStyle = colours.page;
      p.fillRect(label, 0, left - label, OVERVIEW);
      p.fillRect(right, 0, label + plot() - right, OVERVIEW);
      p.globalAlpha = 1;
      p.strokeStyle = colours.accent;
      p.lineWidth = 2;
      p.strokeRect(left, 1, Math.max(3, right - left), OVERVIEW - 2);
    }
  }

  function steps() {
    const sizes = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
    const span = (view.to - view.from) * tick, most = Math.max(2, plot() / 92);
    return sizes.find((size) => span / size <= most) ?? span / most;
  }

  function drawAxis() {
    const p = pen(axis), size = steps(), relative = D.end * tick < 600 || size < 1;
    // Lines at whole minutes and hours of the reader's zone.
    const zone = relative ? 0 : (D.began / 1000 - new Date(D.began).getTimezoneOffset() * 60) % Math.max(size, 86400);
    p.strokeStyle = colours.line;
    p.fillStyle = colours.quiet;
    p.lineWidth = 1;
    p.textAlign = "center";
    for (let n = Math.ceil((view.from * tick + zone) / size); (n * size - zone) / tick <= view.to; n++) {
      const when = (n * size - zone) / tick, px = Math.round(x(when)) + 0.5;
      p.beginPath();
      p.moveTo(px, 16);
      p.lineTo(px, AXIS);
      p.stroke();
      const text = relative ? (size < 1 ? `${Number((when * tick).toFixed(3))} s` : duration(when)) : clock(when, size < 60);
      p.fillText(text, Math.min(Math.max(px, label + 16), width - 24), 8);
    }
    p.textAlign = "left";
    p.fillText("rounds", 8, 26);
    p.fillText("events", 8, 47);
    drawIncident(p, AXIS, 16);
    p.save();
    p.beginPath();
    p.rect(label, 0, width, AXIS);
    p.clip();
    for (const [n, round] of D.rounds.entries()) {
      const end = round[3] < 0 ? D.end : round[3], left = Math.max(x(round[2]), label), right = Math.min(x(end), width);
      if (right < label || left > width) continue;
      p.fillStyle = n % 2 ? colours.line : colours.soft;
      p.fillRect(left, 18, Math.max(right - left, 0.5), 16);
      const text = right - left > 62 ? `round ${round[1]}` : right - left > 8 * String(round[1]).length + 4 ? String(round[1]) : "";
      p.fillStyle = colours.text;
      if (text) p.fillText(text, left + 4, 26);
    }
    drawMarks(p, marksAll, 47, 8);
    p.restore();
  }

  // Signs of events, the important ones on top; signs that would cover each other are drawn once.
  function drawMarks(p, numbers, y, apart) {
    const places = new Map();
    for (const number of numbers) {
      const event = D.events[number];
      if (event[0] < view.from || event[0] > view.to) continue;
      const px = x(event[0]), cell = Math.floor(px / apart), loud = LOUD[D.names[event[1]]] ?? (D.names[event[1]] === "save" ? 0 : 1);
      const other = places.get(cell);
      if (!other || loud > other.loud || number === chosen.event) places.set(cell, { loud: number === chosen.event ? 9 : loud, px, number });
    }
    p.textAlign = "center";
    p.lineWidth = 3;
    p.lineJoin = "round";
    for (const { px, number, loud } of [...places.values()].sort((a, b) => a.loud - b.loud)) {
      const name = D.names[D.events[number][1]], sign = SIGNS[name] ?? "\u2022";
      p.font = `${loud >= 2 ? "bold 13" : "11"}px ${colours.font}`;
      p.strokeStyle = colours.page;
      p.fillStyle = LOUD[name] === 3 ? colours.bad : colours.text;
      p.strokeText(sign, px, y);
      p.fillText(sign, px, y);
      if (number === chosen.event) {
        p.strokeStyle = colours.accent;
        p.lineWidth = 2;
        p.strokeRect(px - 8, y - 9, 16, 18);
        p.lineWidth = 3;
      }
    }
    p.font = `11px ${colours.font}`;
    p.textAlign = "left";
  }

  function drawIncident(p, tall, top) {
    const row = D.incidents.find((each) => each[0] === incident);
    if (!row) return;
    const left = Math.max(label, x(row[1])), right = Math.min(width, Math.max(x(row[3]), x(row[1]) + 2));
    if (right < label || left > width) return;
    p.fillStyle = colours.bad;
    p.globalAlpha = 0.1;
    p.fillRect(left, top, right - left, tall - top);
    p.globalAlpha = 1;
    p.fillRect(left - 1, top, 2, tall - top);
  }

  function firstRow(y) {
    let low = 0, high = tops.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle] <= y) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }

  function fitted(p, text, room) {
    if (p.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (p.measureText(text.slice(0, middle) + "\u2026").width <= room) low = middle;
      else high = middle - 1;
    }
    return text.slice(0, low) + "\u2026";
  }

  function drawLanes() {
    const p = pen(canvas), scroll = lanes.scrollTop, tall = lanes.clientHeight;
    const key = `${view.from} ${view.to} ${width} ${window.devicePixelRatio}`;
    still = key === stripsOf; // while the view changes, no picture can be used again
    if (!still) strips.clear();
    stripsOf = key;
    for (let r = firstRow(scroll); r < rows.length && tops[r] - scroll < tall; r++) {
      const { node: n, worker } = rows[r], node = D.nodes[n], y = tops[r] - scroll;
      if (worker >= 0) drawWorker(p, node, worker, y);
      else drawNode(p, node, n, y);
    }
    drawIncident(p, Math.min(tall, height), 0);
  }

  function drawNode(p, node, n, y) {
    if (n === chosen.node) {
      p.fillStyle = colours.soft;
      p.fillRect(0, y, width, ROW);
    }
    p.save();
    p.beginPath();
    p.rect(label, y, width, ROW);
    p.clip();
    if (still) p.drawImage(strip(node, n), label, y + 2, plot(), ROW - 5);
    else {
      p.save();
      p.beginPath();
      p.rect(label, y, plot(), ROW);
      p.clip();
      for (const part of node.parts) drawSpans(p, spansOf(part), y + 2, ROW - 5);
      p.restore();
    }
    for (const part of node.parts) {
      const end = x(part.end);
      if (part.inferred) {
        p.strokeStyle = colours.quiet;
        p.setLineDash([4, 3]);
        p.strokeRect(x(part.begin), y + 2.5, Math.min(end, label + plot()) - x(part.begin), ROW - 6);
        p.setLineDash([]);
      }
    }
    drawMarks(p, byNode.get(n) ?? [], y + ROW / 2, 9);
    p.restore();
    p.fillStyle = colours.quiet;
    p.beginPath(); // the arrow that opens and closes
    if (open.has(n)) { p.moveTo(5, y + 7); p.lineTo(13, y + 7); p.lineTo(9, y + 13); }
    else { p.moveTo(6, y + 6); p.lineTo(12, y + 10); p.lineTo(6, y + 14); }
    p.fill();
    const bad = node.parts.some((part) => part.outcome === "lost") || D.incidents.some((row) => row[5] === node.id);
    p.fillStyle = bad ? colours.bad : colours.text;
    p.font = `${n === chosen.node ? "bold " : ""}12px ${colours.font}`;
    p.fillText(fitted(p, node.id, label - 24), 18, y + ROW / 2);
    p.font = `11px ${colours.font}`;
  }

  // The spans of a node in the current view, drawn once: scrolling copies the picture.
  function strip(node, n) {
    const ratio = window.devicePixelRatio || 1;
    let each = strips.get(n);
    if (each) return each;
    if (strips.size > 300) strips.delete(strips.keys().next().value);
    each = document.createElement("canvas");
    each.width = Math.max(1, Math.round(plot() * ratio));
    each.height = Math.round((ROW - 5) * ratio);
    const p = each.getContext("2d");
    p.setTransform(ratio, 0, 0, ratio, -label * ratio, 0);
    p.font = `11px ${colours.font}`;
    p.textBaseline = "middle";
    for (const part of node.parts) drawSpans(p, spansOf(part), 0, ROW - 5);
    strips.set(n, each);
    return each;
  }

  function drawSpans(p, spans, y, tall) {
    const begin = spans.begin, count = spans.state.length;
    let low = 0, high = count;
    while (low < high) { // the first span that ends within the view
      const middle = (low + high) >> 1;
      if (begin[middle + 1] <= view.from) low = middle + 1;
      else high = middle;
    }
    const scale = plot() / (view.to - view.from);
    // Of the spans of one pixel, the longest is drawn. Neighbours of one state are one rectangle.
    let column = -1, best = 0, state = GAP, runFrom = -1, runTo = -1, runState = GAP;
    const paint = () => {
      if (runFrom >= 0 && runState !== GAP) {
        p.fillStyle = patterns[runState].plain;
        p.fillRect(runFrom, y, runTo - runFrom, tall);
      }
      runFrom = -1;
    };
    const flush = (last) => {
      if (column >= 0) {
        if (runFrom >= 0 && (runState !== state || runTo !== column)) paint();
        if (runFrom < 0) {
          runFrom = column;
          runState = state;
        }
        runTo = column + 1;
      }
      column = -1;
      best = 0;
      if (last) paint();
    };
    for (let s = low; s < count && begin[s] < view.to; s++) {
      const from = Math.max(begin[s], view.from), to = Math.min(begin[s + 1], view.to), wide = (to - from) * scale, left = label + (from - view.from) * scale;
      if (wide < 1) {
        const pixel = Math.floor(left);
        if (pixel !== column) {
          flush(false);
          column = pixel;
        }
        if (wide > best) {
          best = wide;
          state = spans.state[s];
        }
        continue;
      }
      flush(true);
      if (spans.state[s] === GAP) continue;
      const look = patterns[spans.state[s]];
      p.fillStyle = wide > 5 ? look.fill : look.plain;
      p.fillRect(left, y, wide, tall);
      if (wide > 60) {
        const name = D.states[spans.state[s]];
        if (p.measureText(name).width < wide - 8) {
          p.lineWidth = 3;
          p.lineJoin = "round";
          p.strokeStyle = look.plain;
          p.strokeText(name, left + 5, y + tall / 2 + 0.5);
          p.fillStyle = look.text;
          p.fillText(name, left + 5, y + tall / 2 + 0.5);
        }
      }
    }
    flush(true);
  }

  function drawWorker(p, node, worker, y) {
    p.fillStyle = colours.row;
    p.fillRect(0, y, width, WORKER);
    p.save();
    p.beginPath();
    p.rect(label, y, plot(), WORKER);
    p.clip();
    let rank = "";
    for (const bar of workersOf(node)[worker]) {
      const end = bar.begin + bar.length, left = x(bar.begin), wide = Math.max(1, x(end) - left);
      rank = bar.rank;
      if (end < view.from || bar.begin > view.to) continue;
      const { code, stopped } = ended(bar);
      p.fillStyle = stopped ? colours.stopped : colours.bar;
      p.fillRect(left, y + 3, wide, WORKER - 6);
      for (const mark of bar.marks) {
        p.fillStyle = patterns[D.states.indexOf(mark.kind)].fill;
        p.fillRect(x(mark.begin), y + 2, Math.max(1, x(mark.end) - x(mark.begin)), WORKER - 4);
      }
      const from = Math.max(left, label);
      const text = stopped ? "stopped" : code ? `${code < 0 ? `signal ${-code}` : `exit code ${code}`}` : "";
      if (text && left + wide - from > p.measureText(text).width + 22) {
        p.fillStyle = colours.text;
        p.textAlign = "right";
        p.fillText(text, left + wide - 11, y + WORKER / 2 + 0.5);
        p.textAlign = "left";
      }
      if (code && !stopped) {
        p.fillStyle = colours.bad;
        p.font = `bold 12px ${colours.font}`;
        p.fillText(SIGNS.failure, left + wide - 8, y + WORKER / 2);
        p.font = `11px ${colours.font}`;
      }
    }
    p.restore();
    p.fillStyle = colours.quiet;
    p.fillText(fitted(p, `rank ${rank}`, label - 34), 30, y + WORKER / 2);
  }

  // --- moving ---

  function show(from, to) {
    const span = Math.min(Math.max(to - from, least()), D.end);
    const begin = Math.min(Math.max((from + to - span) / 2, 0), D.end - span);
    view = { from: begin, to: begin + span };
    draw();
    write();
  }

  // Moves to a place in a few frames, so that the eye can follow; at once if the reader prefers reduced motion.
  function glide(from, to) {
    cancelAnimationFrame(moving);
    if (calm.matches) return show(from, to);
    const start = performance.now(), a = view.from, b = view.to;
    const frame = (now) => {
      const part = Math.min(1, Math.max(0, (now - start) / 160)), eased = part * (2 - part);
      show(a + (from - a) * eased, b + (to - b) * eased);
      if (part < 1) moving = requestAnimationFrame(frame);
    };
    moving = requestAnimationFrame(frame);
    return undefined;
  }

  function zoom(factor, around = (view.from + view.to) / 2, glides = false) {
    const span = Math.min(Math.max((view.to - view.from) * factor, least()), D.end);
    const part = (around - view.from) / (view.to - view.from), from = Math.min(Math.max(around - part * span, 0), D.end - span);
    (glides ? glide : show)(from, from + span);
  }

  const pan = (part, glides = false) => {
    const by = Math.min(Math.max(part * (view.to - view.from), -view.from), D.end - view.to);
    (glides ? glide : show)(view.from + by, view.to + by);
  };

  function reveal(n, worker = -1) {
    const r = rows.findIndex((row) => row.node === n && row.worker === worker);
    if (r < 0) return;
    const top = tops[r], tall = lanes.clientHeight;
    if (top < lanes.scrollTop) lanes.scrollTop = top - 4;
    else if (top + ROW > lanes.scrollTop + tall) lanes.scrollTop = Math.min(top - 4, top - tall / 3);
  }

  function toggle(n, whether = !open.has(n)) {
    if (n < 0 || whether === open.has(n)) return;
    if (whether) open.add(n);
    else open.delete(n);
    const scroll = lanes.scrollTop;
    arrange();
    lanes.scrollTop = scroll;
    write();
  }

  function choose(n, event = -1, text = "") {
    chosen = { node: n, event };
    const box = $("chosen");
    box.textContent = text || (event >= 0 ? eventText(event) : n >= 0 ? nodeText(n) : "Nothing is chosen.");
    if (event >= 0 && D.events[event][5]) box.append("\n", link(`#incident-${D.events[event][5]}`, `incident ${D.events[event][5]}`));
    if (n >= 0) {
      const logs = D.nodes[n].parts.flatMap((part) => D.logs[part.logs].map((log) => [D.suffixes[log], logPath(part, D.suffixes[log])]));
      if (logs.length) box.append("\n");
      for (const [text, path] of logs.slice(0, 8)) box.append(path.startsWith("/") ? link("file://" + path.split("/").map(encodeURIComponent).join("/"), text, path) : path, " ");
      if (logs.length > 8) box.append(`and ${logs.length - 8} more log files`);
    }
    draw();
  }

  const logPath = (part, suffix) => (suffix.startsWith("/") || !part.dir ? suffix : `${part.dir.replace(/\/$/, "")}/${suffix}`);

  function link(target, text, title = "") {
    const each = document.createElement("a");
    each.href = target;
    each.textContent = text;
    each.title = title;
    return each;
  }

  function nodeText(n) {
    const node = D.nodes[n], last = node.parts.at(-1), begin = node.parts[0].begin;
    const facts = [
      node.host && node.host !== node.id ? `host ${node.host}` : "",
      `present ${clock(begin)} to ${clock(last.end)}`,
      node.parts.length > 1 ? `${node.parts.length} agents` : "",
      last.outcome && `result: ${last.outcome}`,
      `lost ${duration(node.lost / tick)}`,
      node.parts.some((part) => part.inferred) ? "inferred from the records of other nodes" : "",
    ];
    return `${node.id}: ${facts.filter(Boolean).join(", ")}`;
  }

  // The text at a place of the lanes, with what is there.
  function under(px, py) {
    const y = py + lanes.scrollTop, r = firstRow(y), row = rows[r];
    if (!row || y < tops[r] || y > tops[r] + (row.worker < 0 ? ROW : WORKER)) return null;
    const node = D.nodes[row.node], when = at(px);
    if (px < label) return { row, text: nodeText(row.node), name: true };
    if (row.worker >= 0) {
      const bar = workersOf(node)[row.worker].findLast((each) => when >= each.begin && x(each.begin + each.length) + 3 >= px);
      if (!bar) return { row, text: "" };
      const { code, stopped } = ended(bar), mark = bar.marks.find((each) => when >= each.begin && when <= each.end);
      const ending = stopped ? "stopped by the agent" : code === null ? "" : code < 0 ? `killed by signal ${-code}` : `exit code ${code}`;
      const lines = [
        `rank ${bar.rank} (local rank ${row.worker} of ${node.id}), round ${bar.round}`,
        `${clock(bar.begin)} to ${clock(bar.begin + bar.length)}, ${duration(bar.length)}${ending ? `, ${ending}` : ""}`,
        bar.steps ? `steps ${bar.first} to ${bar.final}` : "",
        mark ? `${mark.kind}: ${duration(mark.end - mark.begin)}` : "",
      ];
      return { row, text: lines.filter(Boolean).join("\n") };
    }
    const near = (byNode.get(row.node) ?? []).filter((number) => Math.abs(x(D.events[number][0]) - px) < 7);
    if (near.length) {
      const best = near.reduce((a, b) => ((LOUD[D.names[D.events[b][1]]] ?? 1) > (LOUD[D.names[D.events[a][1]]] ?? 1) ? b : a));
      return { row, event: best, text: near.slice(0, 4).map(eventText).join("\n") };
    }
    for (const part of node.parts) {
      const spans = spansOf(part), s = spans.begin.findLastIndex((begin) => begin <= when);
      if (s < 0 || s >= spans.state.length || spans.state[s] === GAP) continue;
      const lines = [
        `${node.id}: ${D.states[spans.state[s]]}, ${duration(spans.begin[s + 1] - spans.begin[s])}`,
        `${clock(spans.begin[s])} to ${clock(spans.begin[s + 1])}${spans.round[s] >= 0 ? `, round ${spans.round[s]}` : ""}${node.parts.length > 1 ? `, attempt ${part.attempt + 1}` : ""}`,
        D.reasons[spans.reason[s]],
      ];
      return { row, text: lines.filter(Boolean).join("\n") };
    }
    return { row, text: "" };
  }

  function showTip(event, text) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
  }

  function gotoEvent(number) {
    const event = D.events[number], span = Math.min(view.to - view.from, Math.max(D.end / 40, Math.min(D.end, 60 / tick)));
    if (event[3] >= 0) {
      choose(event[3], number);
      reveal(event[3]);
    } else choose(-1, number);
    const from = Math.min(Math.max(event[0] - span / 2, 0), D.end - span);
    glide(from, from + span);
  }

  function gotoIncident(number) {
    const row = D.incidents.find((each) => each[0] === number);
    if (!row) return;
    incident = number;
    const n = D.nodes.findIndex((node) => node.id === row[5]), pad = Math.max((row[3] - row[1]) * 0.6, D.end / 100);
    if (n >= 0) {
      toggle(n, true);
      choose(n, -1, `Incident ${number}: ${row[4]}`);
      reveal(n);
    }
    show(row[1] - pad, row[3] + pad);
  }

  function nextEvent(by) {
    const list = (chosen.node >= 0 && byNode.get(chosen.node)) || marksAll;
    if (!list.length) return;
    const now = list.indexOf(chosen.event);
    let next = now + by;
    if (now < 0) next = by > 0 ? list.findIndex((number) => D.events[number][0] >= view.from) : list.findLastIndex((number) => D.events[number][0] <= view.to);
    if (next >= 0 && next < list.length) {
      const n = chosen.node;
      gotoEvent(list[next]);
      if (n >= 0 && chosen.node < 0) chosen.node = n;
    }
  }

  function nextNode(by) {
    const nodes = rows.filter((row) => row.worker < 0).map((row) => row.node), now = nodes.indexOf(chosen.node);
    const n = nodes[Math.min(Math.max(now + by, 0), nodes.length - 1)];
    if (n === undefined) return;
    choose(n);
    reveal(n);
  }

  // --- the fragment of the address: view=FROM~TO (seconds) & node=ID (each open one) & incident=N & order=lost ---

  function write() {
    clearTimeout(writing);
    writing = setTimeout(() => {
      const parts = [];
      const whole = view.from <= 0 && view.to >= D.end;
      if (!whole) parts.push(`view=${+(view.from * tick).toFixed(3)}~${+(view.to * tick).toFixed(3)}`);
      for (const n of [...open].slice(0, 12)) parts.push(`node=${encodeURIComponent(D.nodes[n].id)}`);
      if (D.nodes.length === 1 && !open.size) parts.push("node="); // a single node is open unless it is closed
      if (incident) parts.push(`incident=${incident}`);
      if (order) parts.push(`order=${order}`);
      const fragment = parts.length ? `#${parts.join("&")}` : "";
      if (fragment === location.hash) return;
      try {
        history.replaceState(null, "", fragment || location.pathname + location.search);
      } catch {
        // A document without an address of its own has no link.
      }
    }, 120);
  }

  function read() {
    const fragment = location.hash.slice(1), anchor = /^incident-(\d+)$/.exec(fragment);
    if (anchor) {
      incident = Number(anchor[1]);
      draw();
      return;
    }
    if (!/^(view|node|incident|order)=/.test(fragment)) return;
    let range = null, ids = [];
    incident = 0;
    order = "";
    for (const pair of fragment.split("&")) {
      const split = pair.indexOf("="), name = pair.slice(0, split);
      let value = pair.slice(split + 1);
      try {
        value = decodeURIComponent(value);
      } catch {
        // A damaged link: the text as it is.
      }
      if (name === "view") range = value.split("~").map(Number);
      if (name === "node") ids.push(value);
      if (name === "incident" && D.incidents.some((row) => row[0] === Number(value))) incident = Number(value);
      if (name === "order" && ["lost", "name"].includes(value)) order = value;
    }
    $("order").value = order;
    open = new Set(D.nodes.map((node, n) => (ids.includes(node.id) ? n : -1)).filter((n) => n >= 0));
    arrange();
    $("timeline").scrollIntoView();
    if (range && range.length === 2 && range.every(Number.isFinite) && range[1] > range[0]) show(range[0] / tick, range[1] / tick);
    else if (incident) gotoIncident(incident);
    else show(0, D.end);
    const first = open.values().next().value;
    if (range && first !== undefined) {
      const row = D.incidents.find((each) => each[0] === incident);
      choose(first, -1, row ? `Incident ${incident}: ${row[4]}` : "");
      reveal(first);
    }
  }

  // --- search ---

  function search(text) {
    const wanted = text.trim().toLowerCase();
    found = [];
    foundAt = -1;
    if (wanted) {
      const rank = /^(?:rank\s*)?(\d+)$/.exec(wanted);
      D.nodes.forEach((node, n) => {
        if (node.id.toLowerCase().includes(wanted) || node.host.toLowerCase().includes(wanted)) found.push({ kind: "node", n, text: node.id });
      });
      if (rank) {
        const number = Number(rank[1]);
        D.nodes.forEach((node, n) => {
          const worker = workersOf(node).findIndex((bars) => bars.some((bar) => bar.rank === number));
          if (worker >= 0) found.push({ kind: `rank ${number}`, n, worker, text: node.id });
        });
      }
      D.events.forEach((event, number) => {
        const rankFits = rank && event[4] === Number(rank[1]);
        if (rankFits || D.texts[event[2]].toLowerCase().includes(wanted) || eventName(event).includes(wanted)) found.push({ kind: eventName(event), event: number, text: `${clock(event[0])} ${D.texts[event[2]]}` });
      });
      found.sort((a, b) => (a.text.toLowerCase() === wanted ? -1 : 0) - (b.text.toLowerCase() === wanted ? -1 : 0));
    }
    const list = $("found");
    list.replaceChildren(
      ...found.slice(0, 60).map((each, number) => {
        const item = document.createElement("li"), button = document.createElement("button"), small = document.createElement("small");
        button.type = "button";
        small.textContent = `${each.kind} `;
        button.append(small, each.text.slice(0, 160));
        button.addEventListener("click", () => gotoFound(number));
        item.append(button);
        return item;
      }),
    );
    list.hidden = !found.length;
    $("found-count").textContent = wanted ? `${found.length} found` : "";
  }

  function gotoFound(number) {
    foundAt = number;
    const each = found[number];
    if (each.event !== undefined) gotoEvent(each.event);
    else {
      toggle(each.n, true);
      choose(each.n);
      reveal(each.n);
      if (each.worker !== undefined) reveal(each.n, each.worker);
    }
    $("found-count").textContent = `${number + 1} of ${found.length}`;
    $("found").hidden = true;
  }

  // --- input ---

  const KEYS = {
    ArrowLeft: () => pan(-0.15, true),
    ArrowRight: () => pan(0.15, true),
    "+": () => zoom(0.6, undefined, true),
    "=": () => zoom(0.6, undefined, true),
    "-": () => zoom(1 / 0.6, undefined, true),
    0: () => glide(0, D.end),
    Home: () => pan(-1e9),
    End: () => pan(1e9),
    ArrowUp: () => nextNode(-1),
    ArrowDown: () => nextNode(1),
    PageUp: () => nextNode(-20),
    PageDown: () => nextNode(20),
    Enter: () => toggle(chosen.node),
    " ": () => toggle(chosen.node),
    n: () => nextEvent(1),
    p: () => nextEvent(-1),
    "/": () => $("search").focus(),
    Escape: () => {
      incident = 0;
      choose(-1);
      write();
    },
  };
  lanes.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  for (const each of [lanes, axis, overview]) {
    each.addEventListener("wheel", (event) => {
      const px = event.clientX - each.getBoundingClientRect().left;
      if (event.ctrlKey || event.metaKey || event.altKey) {
        event.preventDefault();
        zoom(Math.exp(Math.min(Math.max(event.deltaY, -120), 120) / 240), at(Math.max(px, label)));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        pan((event.deltaX || event.deltaY) / plot());
      }
    }, { passive: false });
  }

  // One pointer moves, two zoom. A press that does not move is a click.
  const fingers = new Map();
  let pressed = null;
  function down(event) {
    if (event.button) return;
    cancelAnimationFrame(moving);
    fingers.set(event.pointerId, event.clientX);
    pressed = fingers.size === 1 ? { x: event.clientX, y: event.clientY, from: view.from, to: view.to, far: false } : null;
    tip.hidden = true;
  }
  function move(event) {
    const box = lanes.getBoundingClientRect(), px = event.clientX - box.left;
    if (!fingers.has(event.pointerId)) {
      if (event.pointerType !== "touch" && event.currentTarget === lanes) showTip(event, under(px, event.clientY - box.top)?.text);
      return;
    }
    const before = fingers.get(event.pointerId);
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const was = Math.abs(before - other), now = Math.abs(event.clientX - other);
      if (was > 8 && now > 8) zoom(was / now, at((event.clientX + other) / 2 - box.left));
    } else if (pressed) {
      if (!pressed.far && Math.abs(event.clientX - pressed.x) > 4) {
        pressed.far = true;
        lanes.classList.add("moving");
        event.currentTarget.setPointerCapture(event.pointerId);
      }
      if (pressed.far) {
        const span = pressed.to - pressed.from, from = Math.min(Math.max(pressed.from - ((event.clientX - pressed.x) / plot()) * span, 0), D.end - span);
        show(from, from + span);
      }
    }
    fingers.set(event.pointerId, event.clientX);
  }
  function up(event) {
    const still = pressed && !pressed.far && fingers.size === 1 && event.type === "pointerup";
    fingers.delete(event.pointerId);
    lanes.classList.remove("moving");
    if (still && event.currentTarget === lanes) {
      const box = lanes.getBoundingClientRect(), hit = under(event.clientX - box.left, event.clientY - box.top);
      if (hit) {
        if (hit.row.worker < 0 && hit.event === undefined) toggle(hit.row.node);
        choose(hit.row.node, hit.event ?? -1, hit.text || nodeText(hit.row.node));
      }
    }
    pressed = null;
  }
  for (const each of [lanes, axis]) {
    each.addEventListener("pointerdown", down);
    each.addEventListener("pointermove", move);
    each.addEventListener("pointerup", up);
    each.addEventListener("pointercancel", up);
    each.addEventListener("pointerleave", () => (tip.hidden = true));
  }
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    centre(event);
  });
  overview.addEventListener("pointermove", (event) => {
    if (event.buttons) centre(event);
  });
  function centre(event) {
    const part = (event.clientX - overview.getBoundingClientRect().left - label) / plot(), span = view.to - view.from;
    const from = Math.min(Math.max(part * D.end - span / 2, 0), D.end - span);
    show(from, from + span);
  }

  lanes.addEventListener("scroll", draw, { passive: true });
  $("zoom-in").addEventListener("click", () => zoom(0.5, undefined, true));
  $("zoom-out").addEventListener("click", () => zoom(2, undefined, true));
  $("zoom-all").addEventListener("click", () => glide(0, D.end));
  $("earlier").addEventListener("click", () => pan(-0.5, true));
  $("later").addEventListener("click", () => pan(0.5, true));
  $("order").addEventListener("change", (event) => {
    order = event.target.value;
    arrange();
    write();
  });
  let typing = 0;
  $("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => search(event.target.value), 100);
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      clearTimeout(typing);
      if (foundAt < 0) search(event.target.value);
      if (found.length) gotoFound((foundAt + (event.shiftKey ? found.length - 1 : 1) + (foundAt < 0 && event.shiftKey ? 1 : 0)) % found.length);
    } else if (event.key === "Escape") {
      event.target.value = "";
      search("");
      lanes.focus();
    } else if (event.key === "ArrowDown" && !$("found").hidden) {
      event.preventDefault();
      $("found").querySelector("button").focus();
    }
  });
  $("found").addEventListener("keydown", (event) => {
    const item = event.target.closest("li");
    const next = event.key === "ArrowDown" ? item.nextElementSibling : event.key === "ArrowUp" ? item.previousElementSibling : null;
    if (event.key === "Escape") $("search").focus();
    if (!next && event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    (next ? next.querySelector("button") : $("search")).focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest(".find")) $("found").hidden = true;
  });

  window.addEventListener("hashchange", read);
  new ResizeObserver(() => {
    if (lanes.clientWidth !== width) resize();
  }).observe($("live-timeline"));
  for (const query of ["(prefers-color-scheme: dark)", `(resolution: ${window.devicePixelRatio}dppx)`]) {
    window.matchMedia(query).addEventListener("change", () => {
      readColours();
      resize();
    });
  }

  D = first;
  view = { from: 0, to: D.end };
  readColours();
  update(first);
  if (D.nodes.length === 1) {
    open.add(0);
    arrange();
  }
  read();
  window.elasticReport = { update };
})();
