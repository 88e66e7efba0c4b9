// Edit mode: select pictures and clusters, say what is wrong, save it as edits.toml.
// Nothing changes on the page or on the disk; `deepclust cluster --edits edits.toml` does the work.
const bar = $("bar"), edits = [], chosen = { pictures: new Set(), groups: new Set() };
const editing = () => !bar.hidden;
const numbered = data.groups.filter((group) => group.id >= 0);

$("edit").addEventListener("click", () => {
  bar.hidden = !bar.hidden;
  $("edit").setAttribute("aria-pressed", String(editing()));
  clear();
});
for (const group of numbered) {
  const option = document.createElement("option");
  option.value = group.id;
  option.textContent = group.title;
  $("target").append(option);
}

// While editing, a click selects. It is caught before it would open anything.
document.addEventListener("click", (event) => {
  const target = event.target.closest("button");
  if (!editing() || !target) return;
  if (target.classList.contains("pic")) toggle(chosen.pictures, Number(target.dataset.i));
  else if (target.matches(".card h3 .open")) toggle(chosen.groups, Number(target.dataset.g));
  else return;
  event.stopPropagation();
}, true);
new MutationObserver(() => editing() && mark()).observe(document.body, { childList: true, subtree: true });
viewer.addEventListener("toggle", home);
viewer.addEventListener("close", home);
function home() {
  (viewer.open ? viewer : document.body).append(bar);
}

function toggle(set, item) {
  if (!set.delete(item)) set.add(item);
  mark();
}
function clear() {
  chosen.pictures.clear();
  chosen.groups.clear();
  mark();
}
function mark() {
  if (viewer.open && bar.parentNode !== viewer) home();
  for (const button of document.querySelectorAll(".pic")) {
    const on = editing() && chosen.pictures.has(Number(button.dataset.i));
    if (on !== button.classList.contains("on")) button.classList.toggle("on", on);
  }
  for (const card of document.querySelectorAll(".card")) {
    card.classList.toggle("on", editing() && chosen.groups.has(Number(card.dataset.g)));
  }
  const pictures = chosen.pictures.size, groups = ids().length;
  say("chosen", pictures || groups
    ? [pictures && many(pictures, "picture"), groups && many(groups, "cluster")].filter(Boolean).join(" and ")
    : "click pictures, or names of clusters");
  $("move").disabled = $("drop").disabled = !pictures;
  $("merge").disabled = groups < 2;
  $("rename").disabled = $("split").disabled = groups !== 1;
  $("save").disabled = $("undo").disabled = !edits.length;
  const last = edits.length ? `: ${edits[edits.length - 1].words}` : "";
  say("done", `${many(edits.length, "edit")}${last}`);
}
function many(count, what) {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}
// Text is only set where it differs, because every change of the page comes back here.
function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

// A TOML string is a JSON string, but for DEL, which JSON leaves as it is.
const quoted = (text) => JSON.stringify(text).replace(/\x7f/g, "\\u007f");
const list = (texts) => `[${texts.map(quoted).join(", ")}]`;
const title = (id) => numbered.find((group) => group.id === id).title;
const like = (id) => list(members[data.groups.findIndex((group) => group.id === id)].slice(0, 25).map((i) => data.names[i]));
const ids = () => [...chosen.groups].map((g) => data.groups[g].id).filter((id) => id >= 0);
const names = () => list([...chosen.pictures].map((i) => data.names[i]));
function add(words, ...lines) {
  edits.push({ words, text: ["[[edit]]", ...lines].join("\n") });
  clear();
}
$("move").addEventListener("click", () => {
  const name = $("name").value.trim(), value = $("target").value, count = chosen.pictures.size;
  if (value === "") {
    if (!name) return $("name").focus();
    add(`move ${count} to ${name}`, `move = ${names()}`, `to = ${quoted(name)}`);
    $("name").value = "";
  } else {
    add(`move ${count} to ${title(Number(value))}`, `move = ${names()}`, `to = ${value}`, `like = [${like(Number(value))}]`);
  }
});
$("drop").addEventListener("click", () => add(`drop ${chosen.pictures.size}`, `drop = ${names()}`));
$("merge").addEventListener("click", () =>
  add(`merge ${ids().map(title).join(", ")}`, `merge = [${ids().join(", ")}]`, `like = [${ids().map(like).join(", ")}]`));
$("rename").addEventListener("click", () => {
  const name = $("name").value.trim(), [id] = ids();
  if (!name) return $("name").focus();
  add(`rename ${title(id)} to ${name}`, `rename = ${id}`, `name = ${quoted(name)}`, `like = [${like(id)}]`);
  $("name").value = "";
});
$("split").addEventListener("click", () => {
  const [id] = ids();
  add(`split ${title(id)}`, `split = ${id}`, "into = 2", `like = [${like(id)}]`);
});
$("undo").addEventListener("click", () => { edits.pop(); mark(); });
$("save").addEventListener("click", () => {
  const text = [`clustering = ${quoted(data.clustering)}`, ...edits.map((edit) => edit.text)].join("\n\n") + "\n";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/toml" }));
  link.download = "edits.toml";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  say("done", `saved edits.toml; next: deepclust cluster --edits edits.toml`);
});
mark();
