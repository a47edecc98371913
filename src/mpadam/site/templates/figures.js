// One figure in place of many: parts of a page with data-choice="Title: member" and one title get a choice of the
// member to show. And loss curves: toggles, and the run and value under the pointer or chosen with arrow keys.
// The page says the same without this script, so all controls are made here.
"use strict";
(() => {
  const families = new Map();
  document.querySelectorAll("[data-choice]").forEach((part) => {
    const [title, member] = part.dataset.choice.split(/: (.*)/s);
    if (!families.has(title)) families.set(title, []);
    families.get(title).push({ part, member });
  });
  let count = 0;
  for (const [title, members] of families) if (members.length > 1) choosable(title, members);
  document.querySelectorAll(".curves .card").forEach(explorable);

  // --- a choice ---------------------------------------------------------------------------------------------------

  function choosable(title, members) {
    const select = document.createElement("select");
    select.append(...members.map(({ member }, index) => new Option(member, index)));
    const bar = document.createElement("p");
    bar.className = "chooser";
    const label = document.createElement("label");
    select.id = label.htmlFor = `choice-${count += 1}`;
    label.append(`${title}: `);
    bar.append(label, select);
    members[0].part.before(bar);
    const show = () => {
      const open = members.some(({ part }) => part.open); // of parts that fold, the chosen one is as the last one was
      members.forEach(({ part }, index) => {
        part.hidden = index !== select.selectedIndex;
        if ("open" in part) part.open = open && !part.hidden;
      });
    };
    const follow = () => {
      const id = decodeURIComponent(location.hash.slice(1));
      const wanted = members.findIndex(({ part }) => id && (part.id === id || part.querySelector(`#${CSS.escape(id)}`)));
      if (wanted < 0) return;
      select.selectedIndex = wanted;
      if ("open" in members[wanted].part) members[wanted].part.open = true;
      show();
      (members[wanted].part.id === id ? bar : document.getElementById(id)).scrollIntoView();
    };
    select.addEventListener("change", show);
    window.addEventListener("hashchange", follow);
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[href^='#']");
      if (link && link.hash === location.hash) follow(); // the same link again fires no hashchange
    });
    show();
    follow();
  }

  // --- loss curves ------------------------------------------------------------------------------------------------

  function explorable(card) {
    const plot = card.querySelector(".plot");
    const surface = plot.parentNode; // takes the focus
    const output = document.createElement("output");
    card.prepend(output);
    const hint = "Point at a curve, or use the arrow keys.";
    output.textContent = hint;
    const curves = [...plot.querySelectorAll("a")].map((link) => ({
      link, group: link.parentNode, name: link.querySelector("title").textContent, points: pointsOf(link),
    }));
    curves.forEach(({ link }) => { link.tabIndex = -1; });
    surface.setAttribute("tabindex", "0");
    surface.setAttribute("aria-description", "Left and right change the update, up and down the run, Enter opens it.");
    let [at, tapped] = [null, null];

    card.querySelectorAll("[data-key]:is(li)").forEach((entry) => {
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      const label = document.createElement("label");
      label.append(box, ...entry.childNodes);
      entry.append(label);
      const group = plot.querySelector(`[data-key="${entry.dataset.key}"]`);
      box.addEventListener("change", () => { group.style.display = box.checked ? "" : "none"; leave(); });
      entry.addEventListener("pointerenter", () => plot.classList.add("near") || group.classList.add("near"));
      entry.addEventListener("pointerleave", leave);
    });
    plot.addEventListener("pointermove", (event) => {
      const near = nearest(event);
      if (near) mark(...near); else leave();
    });
    plot.addEventListener("pointerleave", leave);
    surface.addEventListener("blur", leave);
    plot.addEventListener("click", (event) => {
      const near = nearest(event);
      if (!near) return;
      const first = event.pointerType === "touch" && tapped !== near[0]; // a finger cannot hover
      tapped = near[0];
      if (first) {
        event.preventDefault();
        mark(...near);
      } else if (!event.target.closest("a")) location.assign(near[0].link.getAttribute("href"));
    });
    surface.addEventListener("keydown", (event) => {
      const [across, along] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [0, 0];
      if (event.key === "Enter" && at) location.assign(at.curve.link.getAttribute("href"));
      if (!across && !along) return;
      event.preventDefault();
      const shown = visible();
      if (!shown.length) return;
      const now = at ? shown.indexOf(at.curve) : -1;
      const curve = now < 0 ? shown[0] : shown[(now + along + shown.length) % shown.length];
      const last = curve.points.length - 1;
      mark(curve, now < 0 ? last : Math.min(last, Math.max(0, at.point + across)));
    });

    function visible() {
      return curves.filter(({ group }) => group.style.display !== "none");
    }

    // The curve and its point that the pointer is nearest to, within a finger's breadth.
    function nearest(event) {
      const box = plot.querySelector("rect").getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      let [best, least] = [null, 24];
      for (const curve of visible()) {
        curve.points.forEach((point, index) => {
          const distance = Math.hypot((point.x - x) * box.width, (point.y - y) * box.height);
          if (distance < least) [best, least] = [[curve, index], distance];
        });
      }
      return best;
    }

    function mark(curve, point) {
      leave();
      at = { curve, point };
      plot.classList.add("near");
      curve.group.classList.add("near");
      curve.link.classList.add("near");
      const { x, y, kind } = curve.points[point];
      const { steps, low, high } = card.dataset;
      const loss = high - y * (high - low);
      output.textContent = `${curve.name.split(": ")[0]}: ${kind} loss ${loss.toFixed(3)} at update ${Math.round(x * steps).toLocaleString("en")}; ${curve.name.split(": ")[1]}`;
    }

    function leave() {
      at = null;
      [plot, ...plot.querySelectorAll(".near")].forEach((part) => part.classList.remove("near"));
      output.textContent = hint;
    }
  }

  // Points of a curve, in shares of the panel: its paths are all that the page knows of them.
  function pointsOf(link) {
    return [...link.querySelectorAll("path")].flatMap((path) => {
      const numbers = path.getAttribute("d").replaceAll("h0", "").match(/-?\d+/g).map(Number);
      const kind = path.classList.contains("mark") ? "validation" : "training";
      let [x, y] = [0, 0];
      return numbers.reduce((points, value, index) => {
        if (index % 2) points.push({ x: x / 1000, y: (y += value) / 4000, kind });
        else x += value;
        return points;
      }, []);
    });
  }
})();
