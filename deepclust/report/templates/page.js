// The page's own script; page.py puts it and edit.js into one function.
// Names are only ever set as text, never as markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const n = data.names.length, per = data.columns * data.columns;
const step = 120; // thumbnails added to a list at a time
const shown = data.names.map((name) =>
  name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0")));
const sought = shown.map((name, i) => [
  name, data.groups[data.group[i]].title, data.classes[data.label[i]] || "",
].join("\n").toLowerCase());
const members = data.groups.map(() => []);
for (let i = 0; i < n; i++) members[data.group[i]].push(i);
for (const list of members) list.sort((a, b) => data.sure[b] - data.sure[a] || a - b);

function place(element, i) {
  const cell = data.cell[i];
  element.className = "t s" + Math.floor(cell / per);
  element.style.setProperty("--i", cell % data.columns);
  element.style.setProperty("--j", Math.floor((cell % per) / data.columns));
  element.style.setProperty("--w", data.w[i]);
  element.style.setProperty("--h", data.h[i]);
  return element;
}

function picture(i) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "pic";
  button.dataset.i = i;
  button.title = shown[i];
  button.setAttribute("aria-label", `${shown[i]}, confidence ${data.sure[i]} %`);
  button.append(place(document.createElement("i"), i));
  return button;
}

// Fill a grid as it is scrolled, so that thousands of pictures cost nothing at first.
const grids = new WeakMap();
function fill(grid, list) {
  grids.get(grid)?.disconnect();
  grid.replaceChildren();
  grid.hidden = list.length === 0;
  grid.scrollTop = 0;
  let at = 0;
  const end = document.createElement("span");
  const more = () => {
    end.remove();
    grid.append(...list.slice(at, at + step).map(picture));
    at += step;
    if (at < list.length) grid.append(end);
  };
  more();
  const watch = new IntersectionObserver((seen) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    more();
    watch.unobserve(end);
    if (at < list.length) watch.observe(end);
  }, { root: grid, rootMargin: "600px" });
  if (at < list.length) watch.observe(end);
  grids.set(grid, watch);
}

// The viewer: a list of pictures, and one of them in full.
const viewer = $("viewer"), list = $("list"), detail = $("detail");
function open(title, pictures, chosen) {
  $("heading").textContent = title;
  fill(list, pictures);
  detail.hidden = true;
  if (!viewer.open) viewer.showModal();
  if (chosen !== undefined) tell(chosen);
  (list.querySelector(`[data-i="${chosen}"]`) || list.firstElementChild)?.focus();
}
function openGroup(g, chosen) {
  const group = data.groups[g], some = members[g].length;
  const part = some < group.size ? `${some.toLocaleString("en")} of ` : "";
  open(`${group.title} · ${part}${group.size.toLocaleString("en")} pictures, the surest first`, members[g], chosen);
}
function tell(i) {
  detail.hidden = false;
  place(detail.querySelector(".large .t"), i);
  detail.querySelector("h3").textContent = shown[i];
  const facts = [
    ["cluster", data.groups[data.group[i]].title],
    ["confidence", (data.sure[i] / 100).toFixed(2)],
  ];
  if (data.second[i] >= 0) facts.push(["next best", data.groups[data.second[i]].title]);
  if (data.label[i] >= 0) facts.push(["label", data.classes[data.label[i]]]);
  const rows = facts.flatMap(([name, value]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    return [dt, dd];
  });
  detail.querySelector("dl").replaceChildren(...rows);
  $("near").replaceChildren(...(data.near[i] || []).map(picture));
  for (const old of list.querySelectorAll("[aria-current]")) old.removeAttribute("aria-current");
  list.querySelector(`[data-i="${i}"]`)?.setAttribute("aria-current", "true");
}
$("close").addEventListener("click", () => viewer.close());
viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });

document.addEventListener("click", (event) => {
  const target = event.target.closest("button");
  if (!target) return;
  if (target.classList.contains("pic")) {
    const i = Number(target.dataset.i);
    if (viewer.contains(target)) tell(i);
    else openGroup(data.group[i], i);
  } else if (target.dataset.l !== undefined) {
    const g = Number(target.dataset.g), l = Number(target.dataset.l);
    const some = members[g].filter((i) => data.label[i] === l);
    open(`${data.groups[g].title} and ${data.classes[l] ?? "no label"} · ${some.length} pictures`, some);
  } else if (target.classList.contains("open")) {
    openGroup(Number(target.dataset.g));
  }
});

// Arrow keys walk through any grid; / goes to the search.
document.addEventListener("keydown", (event) => {
  const here = document.activeElement;
  if (event.key === "/" && !viewer.open && here.tagName !== "INPUT") {
    event.preventDefault();
    $("search").focus();
    return;
  }
  const grid = here.classList.contains("pic") && here.closest(".grid");
  if (!grid) return;
  const width = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width }[event.key];
  if (!move) return;
  event.preventDefault();
  const all = [...grid.querySelectorAll(".pic")];
  const next = all[all.indexOf(here) + move];
  if (!next) return;
  next.focus();
  if (grid === list) tell(Number(next.dataset.i));
});

// Search by name of a picture, cluster or label.
const search = $("search");
search.addEventListener("input", () => {
  const words = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? [...Array(n).keys()].filter((i) => words.every((word) => sought[i].includes(word))) : [];
  $("cards").hidden = words.length > 0;
  $("count").textContent = words.length ? `${found.length.toLocaleString("en")} of ${n.toLocaleString("en")} pictures` : "";
  fill($("hits"), found);
});
search.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  search.value = "";
  search.dispatchEvent(new Event("input"));
});

// The map.
const plot = $("plot"), tip = $("tip"), pen = plot.getContext("2d");
const view = { scale: 1, x: 0.5, y: 0.5 }, room = { width: 1, height: 1 };
let by = "group", lasso = [], inside = null, near = -1, drag = null;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const edge = () => Math.min(room.width, room.height) * 0.92 * view.scale;
// A wide map uses its width: the longer side of the window stretches the longer axis a little.
const wide = () => Math.min(1.6, room.width / room.height);
const sx = (i) => room.width / 2 + (data.x[i] - view.x) * edge() * Math.max(1, wide());
const sy = (i) => room.height / 2 - (data.y[i] - view.y) * edge();
function tint(i) {
  if (by === "group") return data.groups[data.group[i]].colour;
  return data.label[i] < 0 ? style("--line") : data.colours[data.label[i]];
}
function draw() {
  const ratio = window.devicePixelRatio || 1;
  const { width, height } = room;
  plot.width = width * ratio;
  plot.height = height * ratio;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const size = (n > 2000 ? 2.4 : n > 500 ? 3.2 : 4.4) * Math.min(2, Math.sqrt(view.scale));
  for (let i = 0; i < n; i++) {
    const x = sx(i), y = sy(i);
    if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
    pen.globalAlpha = inside && !inside.has(i) ? 0.14 : 0.8;
    pen.fillStyle = tint(i);
    pen.beginPath();
    pen.arc(x, y, size, 0, 7);
    pen.fill();
  }
  pen.globalAlpha = 1;
  if (near >= 0) {
    pen.strokeStyle = style("--ink");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(sx(near), sy(near), size + 3, 0, 7);
    pen.stroke();
  }
  names(width, height);
  if (lasso.length > 1) {
    pen.strokeStyle = style("--ink");
    pen.setLineDash([5, 4]);
    pen.lineWidth = 1.5;
    pen.beginPath();
    lasso.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.stroke();
    pen.setLineDash([]);
  }
}
// Names in the middle of their pictures, so that the map reads without colour.
function names(width, height) {
  const sets = by === "group" ? members : data.classes.map((_, l) => labelled[l]);
  const titles = by === "group" ? data.groups.map((g) => (g.id < 0 ? "" : g.title.replace(/^Cluster /, ""))) : data.classes;
  if (sets.length > 60) return;
  pen.font = "600 12.5px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  sets.forEach((set, k) => {
    if (!set.length || !titles[k]) return;
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    const x = middle(set.map(sx)), y = middle(set.map(sy));
    if (x < 0 || y < 0 || x > width || y > height) return;
    const text = titles[k].length > 22 ? titles[k].slice(0, 21) + "…" : titles[k];
    pen.strokeStyle = style("--card");
    pen.strokeText(text, x, y);
    pen.fillStyle = style("--ink");
    pen.fillText(text, x, y);
  });
}
const labelled = data.classes.map(() => []);
data.label.forEach((l, i) => { if (l >= 0) labelled[l].push(i); });
const at = (event) => {
  const box = plot.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
function hover(x, y) {
  let best = -1, least = 14 * 14;
  for (let i = 0; i < n; i++) {
    const d = (sx(i) - x) ** 2 + (sy(i) - y) ** 2;
    if (d < least) [best, least] = [i, d];
  }
  if (best === near) return;
  near = best;
  tip.hidden = near < 0;
  if (near >= 0) {
    place(tip.querySelector(".t"), near);
    tip.querySelector("span").textContent = `${shown[near]} · ${data.groups[data.group[near]].title}`;
    const left = sx(near), top = sy(near);
    tip.style.left = `${left + 14 + tip.offsetWidth > plot.clientWidth ? Math.max(0, left - 14 - tip.offsetWidth) : left + 14}px`;
    tip.style.top = `${Math.max(4, Math.min(top - 20, plot.clientHeight - tip.offsetHeight - 4))}px`;
  }
  draw();
}
function within(x, y) {
  let odd = false;
  for (let k = 0, last = lasso.length - 1; k < lasso.length; last = k++) {
    const [ax, ay] = lasso[k], [bx, by_] = lasso[last];
    if (ay > y !== by_ > y && x < ((bx - ax) * (y - ay)) / (by_ - ay) + ax) odd = !odd;
  }
  return odd;
}
function pick(pictures) {
  inside = pictures && new Set(pictures);
  fill($("picked"), pictures || []);
  $("lassoed").textContent = pictures ? `${pictures.length.toLocaleString("en")} pictures inside; click an empty place to let go` : "";
}
plot.addEventListener("pointerdown", (event) => {
  plot.setPointerCapture(event.pointerId);
  const [x, y] = at(event);
  drag = { x, y, pan: event.shiftKey || event.button === 1 };
  lasso = [[x, y]];
});
plot.addEventListener("pointermove", (event) => {
  const [x, y] = at(event);
  if (!drag) return hover(x, y);
  if (drag.pan) {
    view.x -= (x - drag.x) / (edge() * Math.max(1, wide()));
    view.y += (y - drag.y) / edge();
    drag.x = x;
    drag.y = y;
  } else {
    lasso.push([x, y]);
  }
  draw();
});
plot.addEventListener("pointerup", () => {
  if (drag && !drag.pan) {
    const points = lasso.length > 4 && [...Array(n).keys()].filter((i) => within(sx(i), sy(i)));
    if (points && points.length) pick(points);
    else if (near >= 0) openGroup(data.group[near], near);
    else pick(null);
  }
  drag = null;
  lasso = [];
  draw();
});
plot.addEventListener("pointercancel", () => { drag = null; lasso = []; draw(); });
plot.addEventListener("pointerleave", () => { if (!drag) hover(-99, -99); });
const zoom = (factor) => { view.scale = Math.max(1, Math.min(40, view.scale * factor)); draw(); };
$("in").addEventListener("click", () => zoom(1.5));
$("out").addEventListener("click", () => zoom(1 / 1.5));
$("whole").addEventListener("click", () => { Object.assign(view, { scale: 1, x: 0.5, y: 0.5 }); draw(); });
plot.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
}, { passive: false });
$("colour")?.addEventListener("change", (event) => { by = event.target.value; draw(); });
// The size is asked for when it changes, not for every dot, and nothing is drawn out of sight.
new ResizeObserver(() => {
  Object.assign(room, { width: plot.clientWidth || 1, height: plot.clientHeight || 1 });
  draw();
}).observe(plot);
new IntersectionObserver((seen) => { if (seen.pop().isIntersecting) draw(); }).observe(plot);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.documentElement.dataset.ready = "yes";
performance.mark("ready");
