"use strict";
// Draws one run: lanes of slots over time, the queue under them, and how much of each limit was used.
// All panels share one view [from, to] in the run's own time (microseconds, or iterations). What is under the pointer, and
// moving about, is in trace_pointer.js.

const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HUES = [212, 28, 145, 265, 50, 185, 310, 95, 235, 165]; // no reds: they are for what went wrong
const GUTTER = 64; // pixels for labels at the left
const MOST_PIXELS = 12000; // of a panel's height: browsers draw nothing at all on a canvas that is much higher
const dark = matchMedia("(prefers-color-scheme: dark)");
const view = { from: 0, to: data.ends };
const state = { colour: "request", found: null };
const panels = [];

// --- colours -----------------------------------------------------------------------------------------------------------

function hueOf(sequence) {
  const info = data.sequences[sequence];
  const key = state.colour === "class" ? data.classes.indexOf(info.class) : sequence;
  return HUES[((key % HUES.length) + HUES.length) % HUES.length];
}

function fillOf(sequence, part) {
  const hue = hueOf(sequence);
  const faded = state.found !== null && !state.found.has(sequence) ? 0.15 : 1;
  if (part === "prefill") return `hsl(${hue} 75% ${dark.matches ? 58 : 42}% / ${faded})`;
  if (part === "decode") return `hsl(${hue} ${dark.matches ? "45% 38%" : "65% 74%"} / ${faded})`;
  return `hsl(${hue} 25% ${dark.matches ? 45 : 68}% / ${faded})`; // waits
}

// --- time --------------------------------------------------------------------------------------------------------------

const iterations = data.unit === "iterations";
const xOf = (panel, at) => GUTTER + ((at - view.from) / (view.to - view.from)) * (panel.width - GUTTER);
const atOf = (panel, x) => view.from + ((x - GUTTER) / (panel.width - GUTTER)) * (view.to - view.from);

function timeText(at) {
  if (iterations) return `iteration ${Math.floor(at)}`;
  return at >= 1e6 ? `${(at / 1e6).toFixed(3)} s` : `${(at / 1e3).toFixed(1)} ms`;
}

function ticks() {
  const span = view.to - view.from;
  let step = Math.pow(10, Math.floor(Math.log10(span / 6)));
  for (const factor of [1, 2, 5, 10]) if (span / (step * factor) <= 10) { step *= factor; break; }
  if (iterations) step = Math.max(1, Math.round(step));
  const found = [];
  const last = iterations ? view.to - 0.5 : view.to; // an iteration whose middle is out of sight has no number
  for (let at = Math.ceil(view.from / step) * step; at <= last; at += step) found.push(at);
  return { step, found };
}

// As many digits as tell two ticks apart, and no more.
function tickText(at, step) {
  if (iterations) return String(at);
  const [unit, name] = step >= 1e5 || view.to >= 1e7 ? [1e6, "s"] : [1e3, "ms"];
  return `${(at / unit).toFixed(Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)))} ${name}`;
}

// --- panels ------------------------------------------------------------------------------------------------------------

// `draw` is called twice: clipped to the time axis, then with `labels` for what stands left of it. `hit` says what is
// under a point. `colours` are explained beside the title.
function addPanel(title, height, draw, hit, { scrolls = false, numbersLanes = false, colours = [] } = {}) {
  const section = document.createElement("section");
  const heading = document.createElement("h2");
  heading.textContent = title;
  const legend = document.createElement("span");
  legend.className = "legend";
  for (const [name, text] of colours) legend.append(legendItem(`var(${name})`, text));
  heading.append(legend);
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("aria-label", title);
  const holder = document.createElement("div");
  if (scrolls) holder.className = "lanes";
  holder.append(canvas);
  section.append(heading, holder);
  document.getElementById("main").append(section);
  const panel = { canvas, height, draw, hit, numbersLanes, width: 0, context: canvas.getContext("2d") };
  panels.push(panel);
  listen(panel);
  return panel;
}

function drawAll() {
  for (const panel of panels) {
    const ratio = window.devicePixelRatio || 1;
    panel.width = panel.canvas.clientWidth;
    panel.canvas.style.height = `${panel.height}px`;
    panel.canvas.width = panel.width * ratio;
    panel.canvas.height = panel.height * ratio;
    const context = panel.context;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, panel.width, panel.height);
    drawTicks(panel);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, panel.width - GUTTER, panel.height);
    context.clip();
    panel.draw(panel, false);
    context.restore();
    panel.draw(panel, true);
  }
}

function drawTicks(panel) {
  const context = panel.context;
  context.strokeStyle = css("--line");
  context.fillStyle = css("--dim");
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "center";
  const { step, found } = ticks();
  for (const at of found) {
    const x = Math.round(xOf(panel, at)) + 0.5;
    if (x < GUTTER) continue;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, panel.height - 14);
    context.stroke();
    const half = iterations ? xOf(panel, 0.5) - xOf(panel, 0) : 0; // the number of an iteration stands under its middle
    context.fillText(tickText(at, step), Math.min(x + half, panel.width - 24), panel.height - 3);
  }
}

function label(panel, text, y) {
  panel.context.fillStyle = css("--dim");
  panel.context.font = "11px system-ui, sans-serif";
  panel.context.textAlign = "right";
  panel.context.fillText(text, GUTTER - 8, y);
}

function bar(panel, x1, x2, y, height, sequence, part) {
  const context = panel.context;
  const left = Math.max(x1, GUTTER - 2), right = Math.min(x2, panel.width + 2);
  if (right <= left) return;
  const gap = right - left > 4 && height > 5 ? 1 : 0;
  context.fillStyle = fillOf(sequence, part);
  context.fillRect(left, y, Math.max(right - left - gap, 0.5), height - gap);
  const name = data.sequences[sequence].name;
  if (height >= 12 && right - left > 7.8 * Math.min(name.length, 8) + 8) {
    context.fillStyle = part === "prefill" ? (dark.matches ? "#101214" : "#ffffff") : css("--ink");
    context.font = `${Math.min(12, height - 3)}px system-ui, sans-serif`;
    context.textAlign = "left";
    const room = Math.floor((right - left - 8) / 7.8);
    context.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, left + 4, y + height / 2 + 4);
  }
}

// The bars of one lane are in the order of time: find the first that ends after `at`.
function firstEndingAfter(bars, at) {
  let low = 0, high = bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle].ends > at) high = middle; else low = middle + 1;
  }
  return low;
}

function drawLanes(panel, lanes, laneHeight, labels) {
  lanes.forEach((bars, lane) => {
    const y = 2 + lane * laneHeight;
    if (labels) {
      const every = Math.max(1, Math.ceil(13 / laneHeight));
      if (lane % every === 0 && panel.numbersLanes) label(panel, String(lane), Math.max(10, y + Math.min(laneHeight, 13) - 2));
      return;
    }
    let drawnTo = -1;
    for (let index = firstEndingAfter(bars, view.from); index < bars.length && bars[index].begins < view.to; index++) {
      const each = bars[index];
      const x1 = xOf(panel, each.begins), x2 = xOf(panel, each.ends);
      if (x2 - drawnTo < 0.4) continue; // a whole pixel is drawn already
      bar(panel, x1, x2, y, laneHeight, each.sequence, each.part);
      drawnTo = x2;
    }
  });
}

function hitLanes(lanes, laneHeight) {
  return (panel, x, y) => {
    const bars = lanes[Math.floor((y - 2) / laneHeight)];
    if (!bars) return null;
    const at = atOf(panel, x);
    const near = bars[firstEndingAfter(bars, at)];
    return near && near.begins <= at ? near : null;
  };
}

function addDriver(driver) {
  const lanes = Array.from({ length: Math.max(driver.slots, 1) }, () => []);
  for (const [slot, begins, ends, sequence, part, tokens, first, last] of driver.bars) {
    while (lanes.length <= slot) lanes.push([]);
    lanes[slot].push({ begins, ends, sequence, part, tokens, first, last });
  }
  const laneHeight = lanes.length <= 12 ? 24 : lanes.length <= 40 ? 13 : lanes.length <= 100 ? 7 : Math.min(4, MOST_PIXELS / lanes.length);
  const title = `Slots of ${driver.name} (${driver.model}, ${driver.preset})`;
  addPanel(title, lanes.length * laneHeight + 20, (panel, labels) => {
    drawLanes(panel, lanes, laneHeight, labels);
    if (!labels) drawPreemptions(panel, driver, laneHeight);
  }, hitLanes(lanes, laneHeight), { scrolls: true, numbersLanes: true });
  addLevels(driver);
}

function drawPreemptions(panel, driver, laneHeight) {
  panel.context.strokeStyle = css("--alarm");
  panel.context.lineWidth = laneHeight > 8 ? 2.5 : 1.5;
  for (const [at, slot] of driver.preemptions) {
    if (slot === null || at < view.from || at > view.to) continue;
    const x = xOf(panel, at);
    panel.context.beginPath();
    panel.context.moveTo(x, 2 + slot * laneHeight);
    panel.context.lineTo(x, 1 + (slot + 1) * laneHeight);
    panel.context.stroke();
  }
  panel.context.lineWidth = 1;
}

function addLevels(driver) {
  const levels = driver.levels;
  const most = driver.budget || Math.max(1, ...levels.map((level) => level[3] + level[4]));
  const height = 78;
  addPanel(driver.budget ? `Tokens per iteration, of a budget of ${driver.budget}` : "Tokens per iteration", height + 18,
    (panel, labels) => {
      if (labels) { label(panel, String(most), 12); label(panel, "0", height); return; }
      for (const level of visible(levels)) {
        const x1 = xOf(panel, level[1]), width = Math.max(xOf(panel, level[2]) - x1 - (xOf(panel, level[2]) - x1 > 4 ? 1 : 0), 0.5);
        const decode = (level[3] / most) * (height - 4), prefill = (level[4] / most) * (height - 4);
        panel.context.fillStyle = css("--decode");
        panel.context.fillRect(x1, height - decode, width, decode);
        panel.context.fillStyle = css("--prefill");
        panel.context.fillRect(x1, height - decode - prefill, width, prefill);
      }
    }, levelHit(driver, levels), { colours: [["--decode", "decode"], ["--prefill", "prefill"]] });
  if (driver.kv === null) return;
  addPanel(`KV blocks in use, of ${driver.kv.toLocaleString()}`, 58, (panel, labels) => {
    if (labels) { label(panel, String(driver.kv), 12); label(panel, "0", 40); return; }
    panel.context.fillStyle = css("--used");
    for (const level of visible(levels)) {
      const x1 = xOf(panel, level[1]), used = (level[7] / driver.kv) * 36;
      panel.context.fillRect(x1, 40 - used, Math.max(xOf(panel, level[2]) - x1, 0.7), used);
    }
  }, levelHit(driver, levels));
}

function visible(levels) {
  let low = 0, high = levels.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (levels[middle][2] > view.from) high = middle; else low = middle + 1;
  }
  const found = [];
  for (; low < levels.length && levels[low][1] < view.to; low++) found.push(levels[low]);
  return found;
}

function levelHit(driver, levels) {
  return (panel, x) => {
    const at = atOf(panel, x);
    const level = visible(levels).find((each) => each[1] <= at && at < each[2]);
    if (!level) return null;
    const lines = [["tokens", `${level[3]} decode, ${level[4]} prefill`], ["slots in use", String(level[6])]];
    if (level[5] !== null) lines.push(["unused budget", `${level[5]} tokens`]);
    if (driver.kv !== null) lines.push(["KV blocks", `${level[7].toLocaleString()} of ${driver.kv.toLocaleString()}`]);
    if (!iterations) lines.push(["took", timeText(level[2] - level[1])]);
    return { title: `Iteration ${level[0]}`, lines };
  };
}

// What waited: each wait goes to the first row that is free, so a row is no rank in the queue.
function addQueue() {
  const rows = [], ends = [];
  for (const [sequence, begins, end] of data.waits) {
    let row = ends.findIndex((free) => free <= begins);
    if (row < 0) { row = rows.length; rows.push([]); ends.push(0); }
    rows[row].push({ begins, ends: end, sequence, part: "waits" });
    ends[row] = end;
  }
  const laneHeight = rows.length <= 10 ? 18 : rows.length <= 40 ? 9 : rows.length <= 120 ? 4 : Math.min(2, MOST_PIXELS / rows.length);
  const top = data.rejections.length ? 18 : 0;
  const bound = data.bound === null ? "" : `, at most ${data.bound.toLocaleString()}`;
  addPanel(`Waiting queue${bound}`, top + Math.max(rows.length, 1) * laneHeight + 20, (panel, labels) => {
    panel.context.save();
    panel.context.translate(0, top);
    drawLanes(panel, rows, laneHeight, labels);
    panel.context.restore();
    if (labels && top) label(panel, "refused", 12);
    if (!labels) drawRejections(panel);
  }, (panel, x, y) => (top && y < top ? hitRejection(panel, x) : hitLanes(rows, laneHeight)(panel, x, y - top)), { scrolls: true });
}

function drawRejections(panel) {
  panel.context.fillStyle = css("--alarm");
  let last = -9;
  for (const [at] of data.rejections) {
    const x = xOf(panel, at);
    if (x < GUTTER - 4 || x > panel.width + 4 || x - last < 1) continue;
    last = x;
    panel.context.beginPath();
    panel.context.moveTo(x, 15);
    panel.context.lineTo(x - 4, 5);
    panel.context.lineTo(x + 4, 5);
    panel.context.fill();
  }
}

function hitRejection(panel, x) {
  const near = data.rejections.filter(([at]) => Math.abs(xOf(panel, at) - x) < 6);
  if (!near.length) return null;
  if (near.length === 1 && near[0][3] !== null) return { sequence: near[0][3] };
  if (near.length === 1) return { title: near[0][1], lines: [[timeText(near[0][0]), near[0][2]]] };
  return { title: `${near.length} requests`, lines: near.slice(0, 8).map(([at, name, text]) => [timeText(at), `${name} ${text}`]) };
}
