"use strict";
/* The ranking: filtered rows with bars, sorted by the selected measure. */
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
    const searched = words.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const matching = rows.filter((row) => (!device.value || row.dataset.device === device.value)
      && (!best.checked || row.dataset.best === "yes")
      && searched.every((word) => row.dataset.words.includes(word)));
    const most = Math.max(0, ...matching.map(value));
    rows.forEach((row) => { row.hidden = !matching.includes(row); });
    [...matching].sort((a, b) => value(b) - value(a)).forEach((row, place) => {
      body.append(row);
      row.cells[0].textContent = value(row) ? String(place + 1) : "–";
      row.querySelector(".bar i").style.width = `${most ? (100 * value(row)) / most : 0}%`;
      row.querySelector(".bar b").textContent = row.dataset[`${measure.value}Text`] || "–";
      row.classList.toggle("best", place === 0 && value(row) > 0);
    });
    count.textContent = `${matching.length} of ${rows.length} plans`;
  }

  [measure, device, best].forEach((control) => control.addEventListener("change", show));
  words.addEventListener("input", show);
  show();
})();
