"use strict";
/* Prints only the memo, in the light theme, on one sheet. */
(() => {
  const button = document.getElementById("print-memo");
  if (!button) return;
  const root = document.documentElement;
  button.addEventListener("click", () => {
    root.dataset.print = "memo";
    window.print();
  });
  window.addEventListener("afterprint", () => { delete root.dataset.print; });
})();
