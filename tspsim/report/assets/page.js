"use strict";
/* Draws the figures for the theme and the width of the window, from the data in #report-data. */
const report = (() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, responsive: false, typesetMath: false, modeBarButtons: [["toImage"]],
    displayModeBar: matchMedia("(pointer: coarse)").matches ? false : "hover" };
  const redraws = [];
  /* Width of A4 and Letter between their margins. */
  const PAPER = "690px";
  /* On paper, figures taller than TALL pixels are scaled by SHORTER, so that two, or one and a table, fit a sheet. */
  const TALL = 260;
  const SHORTER = 0.75;
  const onPaper = () => root.dataset.paper !== undefined;

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const token = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const clone = (value) => JSON.parse(JSON.stringify(value));
  const escape = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  /* Replaces "THEME", the text colour in the figures' data, by the theme's ink. */
  function withInk(value, ink) {
    if (value === "THEME") return ink;
    if (Array.isArray(value)) return value.map((item) => withInk(item, ink));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, withInk(item, ink)]));
    }
    return value;
  }

  function themed(layout, width) {
    const narrow = width < 560;
    const ink = token("--ink");
    const grid = token("--grid");
    const result = clone(layout);
    result.modebar = { bgcolor: "rgba(0,0,0,0)", color: token("--soft"), activecolor: token("--ink") };
    result.width = width;
    if (onPaper() && layout.height > TALL) result.height = Math.round(SHORTER * layout.height);
    result.paper_bgcolor = "rgba(0,0,0,0)";
    result.plot_bgcolor = "rgba(0,0,0,0)";
    result.font = { family: getComputedStyle(document.body).fontFamily, size: narrow ? 12 : 13, color: ink };
    result.margin = Object.assign({ l: 12, r: 20, t: 12, b: 12 }, layout.margin);
    result.hoverlabel = { bgcolor: token("--raised"), bordercolor: token("--soft"), font: { color: ink, size: 13 }, align: "left", namelength: -1 };
    result.dragmode = layout.dragmode === undefined || matchMedia("(pointer: coarse)").matches ? false : layout.dragmode;
    if (result.legend) result.legend = Object.assign({ font: { size: narrow ? 11 : 13 }, maxheight: 1 }, result.legend);
    for (const name of Object.keys(result).filter((key) => /^[xy]axis\d*$/.test(key))) {
      result[name] = Object.assign({ gridcolor: grid, linecolor: grid, tickcolor: grid, nticks: narrow ? 4 : 8 }, result[name]);
    }
    if (narrow) foldLabels(result);
    return result;
  }

  /* Words as lines of at most `most` characters. */
  function wrapWords(text, most) {
    return text.split(" ").reduce((lines, word) => {
      const last = lines[lines.length - 1];
      if (last !== undefined && last.length + 1 + word.length <= most) lines[lines.length - 1] = `${last} ${word}`;
      else lines.push(word);
      return lines;
    }, []);
  }

  /* Number of rows of the legend above a figure: one if its names fit, else rows of columns as wide as the longest name. */
  function legendRows(names, width) {
    const narrow = width < 560;
    const widths = names.map((name) => (narrow ? 46 + 6 * name.length : 50 + 7.2 * name.length));
    const room = width * (narrow ? 0.6 : 0.85);
    if (widths.reduce((sum, nameWidth) => sum + nameWidth, 0) <= room) return 1;
    return Math.ceil(names.length / Math.max(1, Math.floor(room / Math.max(...widths))));
  }

  /* On a phone, long titles of axes and names of rows are wrapped. */
  function foldLabels(layout) {
    for (const name of Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key) && layout[key].title)) {
      const lines = wrapWords(layout[name].title.text, 28);
      layout[name].title.text = lines.join("<br>");
      if (layout.height) layout.height += 17 * (lines.length - 1);
    }
    const rows = layout.yaxis && layout.yaxis.ticktext;
    if (rows && !rows.some((row) => row.includes("<"))) layout.yaxis.ticktext = rows.map((row) => wrapWords(row, 14).join("<br>"));
  }

  /* On a phone, a colour bar is placed below its figure; the figure grows by the rows of its legend. */
  function fitFigure(figure, width) {
    const narrow = width < 560;
    const traces = withInk(clone(figure.data), token("--ink"));
    const layout = themed(figure.layout, width);
    for (const trace of traces) {
      if (narrow && trace.mode === "markers+text") { /* no room for names beside marks; the hover text has them */
        trace.text = trace.text.map((text, at) => (trace.textposition[at] === "middle center" ? text : ""));
      }
      const bar = trace.colorbar || (trace.marker && trace.marker.colorbar);
      if (!bar) continue;
      bar.tickfont = { color: token("--ink") };
      if (narrow) {
        Object.assign(bar, { orientation: "h", y: -0.02, yanchor: "top", len: 0.9, x: 0.5, xanchor: "center" });
        bar.title.side = "top";
        const lines = layout.xaxis.title ? layout.xaxis.title.text.split("<br>").length : 1;
        if (layout.yaxis.visible !== false) { bar.y = -0.17 - 0.06 * lines; layout.height += 60; }
      }
    }
    if (layout.showlegend !== false && layout.legend && layout.height) {
      const names = traces.filter((trace) => trace.showlegend !== false).map((trace) => trace.name || "");
      layout.height += 21 * (legendRows(names, width) - 1);
    }
    return { data: traces, layout };
  }

  /* If the box of the plans' table is checked, rows are in the scenario's order; meta.rows has each row's new number. */
  const statedOrder = () => { const box = document.querySelector("input[data-order]"); return box !== null && box.checked; };
  function inStatedOrder(figure) {
    const rows = figure.layout.meta && figure.layout.meta.rows;
    if (!rows || !statedOrder()) return figure;
    const moved = clone(figure);
    for (const trace of moved.data) trace.y = trace.y.map((row) => (Number.isInteger(row) ? rows[row] : row));
    rows.forEach((to, from) => { moved.layout.yaxis.ticktext[to] = figure.layout.yaxis.ticktext[from]; });
    return moved;
  }

  function draw(element) {
    const entry = data.figures[element.dataset.figure];
    if (!entry || !element.clientWidth) return; /* in a closed section: drawn when it is opened */
    const select = document.querySelector(`select[data-figure="${element.dataset.figure}"]`);
    const figure = entry.choices ? entry.choices[select ? Number(select.value) : 0] : entry;
    const ready = fitFigure(inStatedOrder(figure), element.clientWidth);
    element.style.minHeight = `${ready.layout.height}px`;
    Plotly.react(element, ready.data, ready.layout, config);
  }

  function drawAll() {
    document.querySelectorAll(".plot[data-figure]").forEach(draw);
    redraws.forEach((redraw) => redraw());
  }

  function showTheme() {
    const button = document.getElementById("theme");
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
    button.setAttribute("aria-pressed", String(isDark()));
  }

  /* A number and its unit stay on one line. */
  function keepUnits(cell) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode;
      text.data = text.data.replace(/(\d) (?=(?:[kMGTP]|[mµun]?s|min|h|%|[KMGT]?i?B)(?![\w/]))/g, "$1\u00a0");
    }
  }

  function start() {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      showTheme();
      drawAll();
    });
    prefersDark.addEventListener("change", () => { showTheme(); drawAll(); });
    document.querySelectorAll("select[data-figure]").forEach((select) => {
      select.addEventListener("change", () => draw(document.getElementById(`figure-${select.dataset.figure}`)));
    });
    document.querySelectorAll("input[data-order]").forEach((box) => {
      const lists = [...document.querySelectorAll("[data-plans]")].map((list) => {
        const ranked = [...list.children];
        return { list, ranked, stated: [...ranked].sort((a, b) => a.dataset.place - b.dataset.place) };
      });
      box.addEventListener("change", () => {
        lists.forEach(({ list, ranked, stated }) => list.append(...(box.checked ? stated : ranked)));
        drawAll();
      });
    });
    document.querySelectorAll("details").forEach((details) => {
      details.addEventListener("toggle", () => { if (details.open) details.querySelectorAll(".plot[data-figure]").forEach(draw); });
    });
    const nav = document.querySelector(".top nav");
    const fade = () => {
      nav.classList.toggle("more-left", nav.scrollLeft > 4);
      nav.classList.toggle("more-right", nav.scrollLeft + nav.clientWidth < nav.scrollWidth - 4);
    };
    nav.addEventListener("scroll", fade, { passive: true });
    window.addEventListener("resize", fade);
    fade();
    let width = window.innerWidth;
    let waiting = 0;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(drawAll, 120);
    });
    /* Figures are drawn for light, narrow paper before printing, and for the window after it. */
    const main = document.querySelector("main");
    let theme;
    window.addEventListener("beforeprint", () => {
      theme = root.dataset.theme;
      root.dataset.theme = "light";
      root.dataset.paper = "";
      main.style.width = PAPER;
      main.style.padding = "0";
      document.querySelectorAll("table").forEach((table) => {
        table.classList.toggle("fits", table.offsetWidth <= parseInt(PAPER, 10));
      });
      drawAll();
    });
    window.addEventListener("afterprint", () => {
      if (theme === undefined) delete root.dataset.theme; else root.dataset.theme = theme;
      delete root.dataset.paper;
      main.style.width = "";
      main.style.padding = "";
      drawAll();
    });
    document.querySelectorAll("td").forEach(keepUnits);
    showTheme();
    drawAll();
    root.dataset.drawn = "true";
  }

  document.addEventListener("DOMContentLoaded", start);
  return { data, escape, token, themed, legendRows, config, onRedraw: (redraw) => redraws.push(redraw) };
})();
