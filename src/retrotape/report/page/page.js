
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

// ------------------------------------------------------------------ light and dark

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// ------------------------------------------------------------------ the table of layers

(() => {
  const table = byId("flow-table");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const byNumber = new Map(rows.map((row) => [row.dataset.number, row]));
  const folded = new Set();
  const show = () => {
    for (const row of rows) {
      let outer = row.dataset.outer, hidden = false;
      while (byNumber.has(outer) && !hidden) { hidden = folded.has(outer); outer = byNumber.get(outer).dataset.outer; }
      row.hidden = hidden;
      const button = row.querySelector(".fold");
      if (button) button.setAttribute("aria-expanded", String(!folded.has(row.dataset.number)));
    }
  };
  for (const row of rows) {
    const button = row.querySelector(".fold");
    if (!button) continue;
    if (Number(row.dataset.depth) >= Number(table.dataset.open)) folded.add(row.dataset.number);
    button.addEventListener("click", () => {
      const number = row.dataset.number;
      if (!folded.delete(number)) folded.add(number);
      show();
    });
  }
  show();
})();

// ------------------------------------------------------------------ the graph

for (const input of document.querySelectorAll('input[name="depth"]')) {
  input.addEventListener("change", () => {
    for (const figure of document.querySelectorAll("[data-picture]")) figure.hidden = figure.dataset.picture !== input.value;
  });
}

// ------------------------------------------------------------------ the program: a tree of which only what is seen is in the page

const HEIGHT = 26, SHOWN = 26;
const tree = byId("tree"), pad = byId("pad"), search = byId("search"), hits = byId("hits");
const size = data.name.length;
const lineText = data.lines.map(([file, number, , code]) => [file.slice(file.lastIndexOf("/") + 1) + ":" + number, code]);

const human = (bytes) => {
  if (!bytes) return "";
  let unit = 0;
  while (bytes >= 1000 && unit < 3) { bytes /= 1000; unit += 1; }
  return (unit ? bytes.toFixed(1) : String(bytes)) + " " + ["B", "kB", "MB", "GB"][unit];
};

// A node is a number: an op, or `size` plus the number of a group.
class Grouping {
  constructor(groups, groupOf) {
    this.groups = groups; // {title, hint, outer, place}
    this.children = groups.map(() => []);
    this.roots = [];
    this.ops = new Int32Array(groups.length);
    this.kept = new Float64Array(groups.length);
    this.open = new Uint8Array(groups.length);
    const placed = new Uint8Array(groups.length);
    const place = (group) => {
      if (placed[group]) return;
      placed[group] = 1;
      const outer = groups[group].outer;
      if (outer >= 0) { place(outer); this.children[outer].push(size + group); } else this.roots.push(size + group);
    };
    for (let op = 0; op < size; op += 1) {
      const group = groupOf ? groupOf(op) : -1;
      if (group < 0) { this.roots.push(op); continue; }
      place(group);
      this.children[group].push(op);
      for (let one = group; one >= 0; one = groups[one].outer) { this.ops[one] += 1; this.kept[one] += data.kept[op]; }
    }
    this.openSome();
  }

  // Opens groups, the outer ones first, as long as everything fits on a screen.
  openSome() {
    let shown = this.roots.length;
    for (const waiting = [...this.roots]; waiting.length; ) {
      const node = waiting.shift();
      if (node < size || shown + this.children[node - size].length > SHOWN) continue;
      this.open[node - size] = 1;
      shown += this.children[node - size].length;
      waiting.push(...this.children[node - size]);
    }
  }
}

const makers = {
  layer: () => new Grouping(data.places.map(([title, name, outer, output, code]) => ({ title, hint: output, outer, text: name, code })), (op) => data.place[op]),
  line: () => {
    const groups = [], files = new Map(), known = new Map(), of = [];
    for (const [file, number, name, code] of data.lines) {
      if (!files.has(file)) { files.set(file, groups.length); groups.push({ title: file, hint: "", outer: -1, text: file }); }
      const key = file + "\n" + number;
      if (!known.has(key)) { known.set(key, groups.length); groups.push({ title: code || name, hint: "line " + number, outer: files.get(file), text: file + ":" + number }); }
      of.push(known.get(key));
    }
    return new Grouping(groups, (op) => of[data.line[op]]);
  },
  order: () => new Grouping([], null),
};
const made = {};
let kind = "layer", grouping = null, words = [], only = -1;
let view = [], levels = [], positions = [], counts = [], current = 0;

const matches = () => {
  // Each text is looked at once, however many ops have it.
  const found = new Uint8Array(size).fill(1);
  const inside = new Uint8Array(data.places.length);
  if (only >= 0) data.places.forEach((place, number) => {
    for (let one = number; one >= 0; one = data.places[one][2]) if (one === only) inside[number] = 1;
  });
  const tables = words.map((word) => ({
    name: data.names.map((text) => text.toLowerCase().includes(word)),
    type: data.types.map((text) => text.toLowerCase().includes(word)),
    place: data.places.map(([, name]) => name.toLowerCase().includes(word)),
    line: data.lines.map(([file, number, name, code]) => (file + ":" + number + " " + name + " " + code).toLowerCase().includes(word)),
  }));
  for (let op = 0; op < size; op += 1) {
    if (only >= 0 && !inside[data.place[op]]) { found[op] = 0; continue; }
    for (const table of tables) {
      if (!(table.name[data.name[op]] || table.type[data.type[op]] || table.place[data.place[op]] || table.line[data.line[op]])) { found[op] = 0; break; }
    }
  }
  return found;
};

const rebuild = () => {
  grouping = made[kind] || (made[kind] = makers[kind]());
  const searching = words.length > 0 || only >= 0;
  const found = searching ? matches() : null;
  const some = new Uint8Array(grouping.groups.length);
  let hit = 0;
  if (searching) {
    const mark = (nodes) => {
      let any = false;
      for (const node of nodes) {
        if (node < size) { if (found[node]) { any = true; hit += 1; } }
        else if (mark(grouping.children[node - size])) { some[node - size] = 1; any = true; }
      }
      return any;
    };
    mark(grouping.roots);
  }
  view = []; levels = []; positions = []; counts = [];
  const add = (nodes, level) => {
    const shown = searching ? nodes.filter((node) => (node < size ? found[node] : some[node - size])) : nodes;
    shown.forEach((node, position) => {
      view.push(node); levels.push(level); positions.push(position + 1); counts.push(shown.length);
      if (node >= size && (searching ? grouping.open[node - size] !== 2 : grouping.open[node - size] === 1)) add(grouping.children[node - size], level + 1);
    });
  };
  add(grouping.roots, 1);
  hits.textContent = searching ? hit.toLocaleString("en") + (hit === 1 ? " op" : " ops") + (only >= 0 ? " in " + data.places[only][1] : "") : size.toLocaleString("en") + " ops";
  pad.style.height = view.length * HEIGHT + "px";
  tree.style.height = Math.min(Math.max(view.length, 4), 22) * HEIGHT + 2 + "px";
  current = Math.max(0, Math.min(current, view.length - 1));
  draw();
};

const marked = (target, text) => {
  const lower = text.toLowerCase();
  const word = words.find((one) => lower.includes(one));
  if (!word) { target.textContent = text; return; }
  const at = lower.indexOf(word), mark = document.createElement("mark");
  mark.textContent = text.slice(at, at + word.length);
  target.append(text.slice(0, at), mark, text.slice(at + word.length));
};

const cell = (row, name, text) => {
  const span = document.createElement("span");
  span.className = name;
  marked(span, text);
  row.append(span);
  return span;
};

const rowOf = (index) => {
  const node = view[index], row = document.createElement("div"), level = levels[index];
  row.setAttribute("role", "treeitem");
  row.setAttribute("aria-level", level);
  row.setAttribute("aria-posinset", positions[index]);
  row.setAttribute("aria-setsize", counts[index]);
  row.setAttribute("aria-selected", String(index === current));
  row.id = "row-" + index;
  row.dataset.index = index;
  row.style.top = index * HEIGHT + "px";
  const title = document.createElement("span"), caret = document.createElement("span"), text = document.createElement("span");
  title.style.paddingLeft = (level - 1) * 18 + "px";
  title.append(caret, text);
  row.append(title);
  if (node >= size) {
    const group = node - size, { title: name, hint } = grouping.groups[group], open = isOpen(group);
    row.className = "row group";
    row.setAttribute("aria-expanded", String(open));
    caret.className = "c has"; text.className = "t";
    marked(text, name);
    cell(row, "y", hint);
    cell(row, "k", human(grouping.kept[group]));
    const code = grouping.groups[group].code;
    cell(row, "w", grouping.ops[group].toLocaleString("en") + (grouping.ops[group] === 1 ? " op" : " ops") + (code ? "  " + code : ""));
    title.title = grouping.groups[group].text;
  } else {
    const [where, code] = lineText[data.line[node]];
    row.className = "row op";
    caret.className = "c"; text.className = "t";
    marked(text, data.names[data.name[node]]);
    cell(row, "y", data.types[data.type[node]]);
    cell(row, "k", human(data.kept[node]));
    cell(row, "w", where + (code ? "  " + code : "")).title = data.lines[data.line[node]][0];
  }
  if (index === current) row.className += " current";
  return row;
};

const isOpen = (group) => (words.length || only >= 0 ? grouping.open[group] !== 2 : grouping.open[group] === 1);

const draw = () => {
  const first = Math.max(0, Math.floor(tree.scrollTop / HEIGHT) - 8);
  const last = Math.min(view.length, Math.ceil((tree.scrollTop + tree.clientHeight) / HEIGHT) + 8);
  const rows = document.createDocumentFragment();
  for (let index = first; index < last; index += 1) rows.append(rowOf(index));
  if (!view.length) {
    const none = document.createElement("div");
    none.className = "row"; none.setAttribute("role", "treeitem"); none.setAttribute("aria-selected", "false");
    none.textContent = size ? "No op matches." : "Nothing was recorded.";
    rows.append(none);
  }
  pad.replaceChildren(rows);
  if (view.length && current >= first && current < last) tree.setAttribute("aria-activedescendant", "row-" + current);
  else tree.removeAttribute("aria-activedescendant");
};

const toggle = (index, open) => {
  const node = view[index];
  if (node === undefined || node < size) return;
  const group = node - size, searching = words.length || only >= 0;
  const wanted = open === undefined ? !isOpen(group) : open;
  grouping.open[group] = wanted ? 1 : searching ? 2 : 0;
  rebuild();
};

const moveTo = (index) => {
  current = Math.max(0, Math.min(view.length - 1, index));
  const top = current * HEIGHT;
  if (top < tree.scrollTop) tree.scrollTop = top;
  else if (top + HEIGHT > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + HEIGHT - tree.clientHeight;
  draw();
};

let pending = 0;
tree.addEventListener("scroll", () => { if (!pending) pending = requestAnimationFrame(() => { pending = 0; draw(); }); });
tree.addEventListener("click", (event) => {
  const row = event.target.closest("[data-index]");
  if (!row) return;
  current = Number(row.dataset.index);
  if (view[current] >= size) toggle(current); else draw();
});
tree.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(tree.clientHeight / HEIGHT) - 1), node = view[current];
  const steps = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: view.length - 1 };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in steps) moveTo(steps[event.key]);
  else if (event.key === "ArrowRight") { if (node >= size && !isOpen(node - size)) toggle(current, true); else if (node >= size) moveTo(current + 1); }
  else if (event.key === "ArrowLeft") {
    if (node >= size && isOpen(node - size)) toggle(current, false);
    else { let outer = current; while (outer > 0 && levels[outer] >= levels[current]) outer -= 1; if (levels[outer] < levels[current]) moveTo(outer); }
  }
  else if (event.key === "Enter" || event.key === " ") toggle(current);
  else if (event.key === "Escape") { clear(); }
  else return;
  event.preventDefault();
});

const clear = () => { search.value = ""; words = []; only = -1; rebuild(); };
let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    only = -1; current = 0; tree.scrollTop = 0;
    for (const one of Object.values(made)) one.open.forEach((state, group) => { if (state === 2) one.open[group] = 0; });
    rebuild();
  }, 80);
});
search.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "Enter") { tree.focus(); event.preventDefault(); }
  else if (event.key === "Escape") { clear(); event.preventDefault(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /INPUT|TEXTAREA/.test(document.activeElement.tagName)) return;
  search.focus(); search.select(); event.preventDefault();
});
for (const input of document.querySelectorAll('input[name="group"]')) {
  input.addEventListener("change", () => { kind = input.value; current = 0; tree.scrollTop = 0; rebuild(); });
}
const setAll = (state) => { grouping.open.fill(state); current = 0; tree.scrollTop = 0; rebuild(); };
byId("expand").addEventListener("click", () => setAll(1));
byId("collapse").addEventListener("click", () => setAll(words.length || only >= 0 ? 2 : 0));
for (const box of document.querySelectorAll("a.box")) {
  box.addEventListener("click", (event) => {
    event.preventDefault(); // following the link would take the focus away
    search.value = ""; words = []; only = Number(box.dataset.place); current = 0; tree.scrollTop = 0;
    const layers = byId("by-layer");
    layers.checked = true; kind = "layer";
    rebuild();
    byId("program").scrollIntoView();
    tree.focus({ preventScroll: true });
  });
}
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
addEventListener("resize", () => draw());
rebuild();
