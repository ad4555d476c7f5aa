"use strict";
/* The ranking: sorted by the measure that is chosen, with bars, and narrowed by the filters. */
(() => {
  const body = document.querySelector("#ranking tbody");
  if (!body) return;
  const rows = [...body.rows];
  const measure = document.getElementById("measure");
  const device = document.getElementById("device");
  const words = document.getElementById("words");
  const best = document.getElementById("best-only");
  const count = document.getElementById("shown");

  function show() {
    const value = (row) => Number(row.dataset[measure.value] || 0);
    const wanted = words.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = rows.filter((row) => (!device.value || row.dataset.device === device.value)
      && (!best.checked || row.dataset.best === "yes")
      && wanted.every((word) => row.dataset.words.includes(word)));
    const most = Math.max(0, ...chosen.map(value));
    rows.forEach((row) => { row.hidden = !chosen.includes(row); });
    [...chosen].sort((a, b) => value(b) - value(a)).forEach((row, place) => {
      body.append(row);
      row.cells[0].textContent = value(row) ? String(place + 1) : "–";
      row.querySelector(".bar i").style.width = `${most ? (100 * value(row)) / most : 0}%`;
      row.querySelector(".bar b").textContent = row.dataset[`${measure.value}Text`] || "–";
      row.classList.toggle("best", place === 0 && value(row) > 0);
    });
    count.textContent = `${chosen.length} of ${rows.length} plans`;
  }

  [measure, device, best].forEach((control) => control.addEventListener("change", show));
  words.addEventListener("input", show);
  show();
})();
