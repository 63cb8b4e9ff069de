"use strict";
(() => {
  const root = document.documentElement;
  const chinese = () => root.lang !== "en";

  document.getElementById("language").addEventListener("click", () => {
    root.lang = chinese() ? "en" : "zh-CN";
    hide();
  });

  for (const box of document.querySelectorAll("#arms input")) {
    box.addEventListener("change", () => {
      for (const one of document.querySelectorAll("[data-arm]")) {
        if (one.dataset.arm === box.value) one.classList.toggle("off", !box.checked);
      }
    });
    box.checked = true; // some browsers remember the last visit
  }

  // Sorting: numbers by their value, words by themselves; what has no number stays at the end.
  const key = (row, column) => {
    const cell = row.cells[column];
    if ("sort" in cell.dataset) return Number(cell.dataset.sort);
    return cell.classList.contains("number") ? null : cell.innerText.trim();
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  for (const head of document.querySelectorAll("th button")) {
    head.addEventListener("click", () => {
      const title = head.parentElement;
      const column = title.cellIndex;
      const down = title.getAttribute("aria-sort") === "ascending";
      for (const other of title.parentElement.cells) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = title.closest("table").tBodies[0];
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return down ? compare(b, a) : compare(a, b);
      });
      body.append(...rows.map(([, row]) => row));
    });
  }

  // What a point is: by pointing, by tapping, and with the arrow keys.
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const told = (point) => (chinese() && point.dataset.tipZh) || point.dataset.tip;
  const show = (point) => {
    const box = point.getBoundingClientRect();
    const there = document.elementsFromPoint(box.left + box.width / 2, box.top + box.height / 2);
    const below = there.filter((one) => one !== point && one.dataset.tip); // points that lie on each other
    tip.textContent = [point, ...below.slice(0, 7)].map(told).join("\n");
    tip.hidden = false;
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${Math.max(4, Math.min(left, root.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
  };
  const pointed = (event) => {
    const point = event.target.closest && event.target.closest("[data-tip]");
    if (point) show(point);
    else hide();
  };
  document.addEventListener("pointerover", pointed);
  document.addEventListener("pointerdown", pointed);
  document.addEventListener("focusin", pointed);
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  for (const drawing of document.querySelectorAll(".drawing")) {
    let at = -1;
    drawing.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      const points = [...drawing.querySelectorAll("[data-tip]")].filter((point) => point.getClientRects().length && !point.closest(".off"));
      if (!points.length) return;
      event.preventDefault();
      at = (at + step + points.length) % points.length;
      points[at].setAttribute("tabindex", "-1");
      points[at].focus({ preventScroll: true });
      show(points[at]);
    });
  }

  // A link to the cells opens what they are folded in.
  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  if (location.hash) open();
  addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("#results details")) one.open = true; });
})();
