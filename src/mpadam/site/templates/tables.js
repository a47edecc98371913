// Tables of class "data": headings that sort, filters, and the rows behind a number marked when it is followed. Filters
// stay in the address, as in #runs?regime=bf16-bf16&contains=seed, so that a view can be linked.
// The page says the same without this script, so all controls are made here.
"use strict";
(() => {
  const FILTER_FROM = 6; // rows
  const MOST_CHOICES = 40;
  const tables = [...document.querySelectorAll("table.data")].map(prepare);
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    // The same link again fires no hashchange.
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) follow();
  });
  follow();

  function prepare(table, number) {
    const heads = [...table.tHead.rows[0].cells];
    const rows = [...table.querySelectorAll("tbody tr")].map((row, index) => ({
      row, index, home: row.parentNode, cell: row.parentNode.id,
      texts: [...row.cells].map((cell) => cell.textContent.trim()),
    }));
    const place = table.closest("section[id], details[id]").id;
    const state = { table, place, heads, rows, column: null, descending: false, filters: [], controls: new Map() };
    heads.forEach((head, column) => head.classList.contains("plain") || sortable(state, head, column));
    if (rows.length >= FILTER_FROM) filterable(state, number);
    return state;
  }

  // --- sorting: up, down, as it was -------------------------------------------------------------------------------

  function sortable(state, head, column) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      if (state.column !== column) [state.column, state.descending] = [column, false];
      else if (!state.descending) state.descending = true;
      else state.column = null;
      arrange(state);
    });
  }

  function arrange(state) {
    state.heads.forEach((head, column) => {
      if (column === state.column) head.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    if (state.column === null) {
      state.rows.forEach(({ row, home }) => home.append(row));
      return;
    }
    const key = keyOf(state, state.column);
    const sorted = state.rows.map((entry) => [key(entry.texts[state.column]), entry]).sort(([a, x], [b, y]) => {
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || x.index - y.index;
      return (state.descending ? b - a : a - b) || x.index - y.index;
    });
    state.table.tBodies[0].append(...sorted.map(([, entry]) => entry.row));
  }

  // Numbers by value, what is none (div., –, missing) last both ways; names in the order in which the page has them.
  function keyOf(state, column) {
    if (state.heads[column].classList.contains("number")) return numberIn;
    const order = [...new Set(state.rows.map((entry) => entry.texts[column]))];
    const rank = new Map(order.map((text, index) => [text, index]));
    return (text) => rank.get(text);
  }

  function numberIn(text) {
    const found = text.replace(/,/g, "").replace("−", "-").match(/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?/i);
    return found ? Number(found[0]) : NaN;
  }

  // --- filters ----------------------------------------------------------------------------------------------------

  function filterable(state, number) {
    const bar = document.createElement("div");
    bar.className = "filters";
    bar.setAttribute("role", "search");
    bar.setAttribute("aria-label", `Filter ${state.table.parentNode.getAttribute("aria-label")}`);
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "words";
    add(bar, "contains", input, `filter-${number}`);
    state.filters.push((entry) => {
      const text = entry.texts.join(" ").toLowerCase();
      return input.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
    });
    state.controls.set("contains", input);
    state.heads.forEach((head, column) => {
      const choices = [...new Set(state.rows.map((entry) => entry.texts[column]))];
      const plain = head.classList.contains("number") || head.classList.contains("plain");
      if (plain || choices.length < 2 || choices.length > MOST_CHOICES || choices.length === state.rows.length) return;
      const select = document.createElement("select");
      select.append(new Option("all", ""), ...choices.map((text) => new Option(text, text)));
      add(bar, head.textContent, select, `filter-${number}-${column}`);
      state.filters.push((entry) => select.selectedIndex === 0 || entry.texts[column] === select.value);
      state.controls.set(head.textContent, select);
    });
    const count = document.createElement("output");
    bar.append(count);
    state.filter = () => {
      let shown = 0;
      for (const entry of state.rows) {
        entry.row.hidden = !state.filters.every((keeps) => keeps(entry));
        shown += !entry.row.hidden;
      }
      count.textContent = `${shown} of ${state.rows.length} rows`;
    };
    state.set = (wanted) => {
      for (const [name, control] of state.controls) {
        control.value = wanted.get(name) || "";
        if (control.selectedIndex === -1) control.selectedIndex = 0; // no such choice
      }
      state.filter();
    };
    bar.addEventListener("input", () => {
      state.filter();
      const chosen = [...state.controls].map(([name, control]) => [name, control.value]).filter(([, value]) => value);
      history.replaceState(null, "", `#${state.place}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}`);
    });
    state.table.parentNode.before(bar);
    state.filter();
  }

  function add(bar, text, control, id) {
    const label = document.createElement("label");
    control.id = label.htmlFor = id;
    label.append(text);
    const pair = document.createElement("span");
    pair.append(label, control);
    bar.append(pair);
  }

  // --- from a number to its runs ----------------------------------------------------------------------------------

  function follow() {
    const [place, query] = location.hash.slice(1).split("?");
    const wanted = decodeURIComponent(place);
    document.querySelectorAll("tr.marked").forEach((row) => row.classList.remove("marked"));
    const target = document.getElementById(wanted);
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    if (query) {
      tables.filter((state) => state.place === wanted && state.set).forEach((state) => state.set(new URLSearchParams(query)));
      target.scrollIntoView();
    }
    for (const state of tables) {
      const found = state.rows.filter((entry) => entry.cell === wanted);
      if (!found.length) continue;
      if (state.set && found.some((entry) => entry.row.hidden)) state.set(new URLSearchParams());
      found.forEach((entry) => entry.row.classList.add("marked"));
      found[0].row.scrollIntoView({ block: "center" });
    }
  }
})();
