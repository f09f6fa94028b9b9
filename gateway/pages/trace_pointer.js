// What is under the pointer, how the view moves, and the tools at the top.

// --- what is under the pointer -----------------------------------------------------------------------------------------

function showTip(hit, x, y) {
  const tip = document.getElementById("tip");
  if (!hit) { tip.style.display = "none"; return; }
  tip.replaceChildren();
  const title = document.createElement("b");
  let lines = hit.lines || [];
  if (hit.sequence !== undefined) {
    const info = data.sequences[hit.sequence];
    title.textContent = info.about;
    lines = info.lines;
    if (hit.part === "prefill" || hit.part === "decode") {
      const now = document.createElement("div");
      const span = hit.first === hit.last ? `iteration ${hit.first}` : `iterations ${hit.first} to ${hit.last}`;
      now.textContent = `Here: ${hit.part}, ${hit.tokens} ${hit.tokens === 1 ? "token" : "tokens"}, ${span}`;
      tip.append(title, now);
    } else tip.append(title);
  } else { title.textContent = hit.title; tip.append(title); }
  const list = document.createElement("ol");
  for (const [when, what] of lines) {
    const item = document.createElement("li"), left = document.createElement("span"), right = document.createElement("span");
    left.textContent = when;
    right.textContent = what;
    item.append(left, right);
    list.append(item);
  }
  if (lines.length) tip.append(list);
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16)}px`;
  tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - box.height - 8))}px`;
}

// --- moving about ------------------------------------------------------------------------------------------------------

function setView(from, to) {
  const least = iterations ? 2 : 200;
  const span = Math.min(Math.max(to - from, least), data.ends);
  view.from = Math.max(0, Math.min(from, data.ends - span));
  view.to = view.from + span;
  requestAnimationFrame(drawAll);
}

function zoom(factor, at) {
  setView(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function listen(panel) {
  const { canvas } = panel;
  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return; // lanes scroll
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, atOf(panel, event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, from: view.from }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("lostpointercapture", () => { drag = null; }); // let go, or taken over by a touch that scrolls
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const span = view.to - view.from;
      const moved = ((drag.x - event.offsetX) / (panel.width - GUTTER)) * span;
      setView(drag.from + moved, drag.from + moved + span);
      return;
    }
    showTip(event.offsetX < GUTTER ? null : panel.hit(panel, event.offsetX, event.offsetY), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => showTip(null));
  canvas.addEventListener("dblclick", (event) => zoom(0.4, atOf(panel, event.offsetX)));
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.target.closest("input, select")) return;
  const span = view.to - view.from, middle = (view.from + view.to) / 2;
  if (event.key === "+" || event.key === "=") zoom(0.7, middle);
  else if (event.key === "-") zoom(1.4, middle);
  else if (event.key === "0") setView(0, data.ends);
  else if (event.key === "ArrowLeft") setView(view.from - span / 5, view.to - span / 5);
  else if (event.key === "ArrowRight") setView(view.from + span / 5, view.to + span / 5);
});

document.getElementById("all").addEventListener("click", () => setView(0, data.ends));
document.getElementById("colour").addEventListener("change", (event) => { state.colour = event.target.value; drawLegend(); drawAll(); });
document.getElementById("find").addEventListener("input", (event) => {
  const text = event.target.value.trim();
  state.found = text ? new Set(data.sequences.flatMap((info, index) => (info.name.includes(text) || info.id.includes(text) ? [index] : []))) : null;
  drawAll();
});

function legendItem(colour, text) {
  const item = document.createElement("span"), box = document.createElement("i");
  box.style.background = colour;
  item.append(box, text);
  return item;
}

function drawLegend() {
  const legend = document.getElementById("legend");
  legend.replaceChildren();
  const add = (colour, text) => legend.append(legendItem(colour, text));
  const first = data.sequences.length ? 0 : null;
  if (state.colour === "class") {
    data.classes.forEach((name, index) => add(`hsl(${HUES[index % HUES.length]} 65% 55%)`, name));
  } else if (first !== null) {
    add(fillOf(first, "prefill"), "prefill");
    add(fillOf(first, "decode"), "decode");
    add(fillOf(first, "waits"), "waits");
  }
  add(css("--alarm"), "preempted, refused");
}

// --- begin -------------------------------------------------------------------------------------------------------------

document.getElementById("facts").textContent = data.facts;
if (!data.drivers.length && !data.waits.length) {
  const none = document.createElement("p");
  none.className = "none";
  none.textContent = "Nothing ran in these logs.";
  document.getElementById("main").append(none);
}
data.drivers.forEach(addDriver);
if (data.waits.length || data.rejections.length) addQueue();
drawLegend();
drawAll();
addEventListener("resize", drawAll);
dark.addEventListener("change", () => { drawLegend(); drawAll(); });
