"use strict";
/* The figure of nodes over time. Dragging or buttons select a window of time, of which the largest rectangles are drawn,
   as many as stay fast. */
(() => {
  const plot = document.getElementById("figure-nodes");
  const bar = document.getElementById("nodes-window");
  if (!plot || !bar) return;
  const spells = report.data.spells;
  const whole = Number(bar.dataset.whole);
  let ranges = null; /* of both axes; null until a window is selected */
  let listening = false;

  const ordered = (range) => (range[0] < range[1] ? range : [range[1], range[0]]);
  const digits = (value) => value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
  function time(seconds) {
    if (seconds >= 2 * 86400) return `${digits(seconds / 86400)} days`;
    if (seconds >= 3600) return `${digits(seconds / 3600)} h`;
    return seconds >= 60 ? `${digits(seconds / 60)} min` : `${digits(seconds)} s`;
  }

  /* Draws the largest rectangles of the window, by trace. */
  function fill() {
    if (!spells) return;
    const [from, to] = ordered(plot.layout.xaxis.range);
    const [top, bottom] = ordered(plot.layout.yaxis.range);
    const visible = [];
    for (let i = 0; i < spells.start.length; i += 1) {
      const long = Math.min(spells.start[i] + spells.span[i], to) - Math.max(spells.start[i], from);
      const high = Math.min(spells.top[i] + spells.high[i], bottom) - Math.max(spells.top[i], top);
      if (long > 0 && high > 0) visible.push([long * high, i]);
    }
    visible.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const traces = plot.data.map(() => ({ base: [], x: [], y: [], width: [], text: [] }));
    for (const [, i] of visible.slice(0, spells.most)) {
      const kind = spells.kind[i];
      const number = spells.number[i];
      const name = number < 0 ? spells.names[-1 - number] : `${spells.kinds[kind]}-${number}`;
      const trace = traces[kind];
      const high = spells.high[i];
      const nodes = spells.nodes[i];
      trace.base.push(spells.start[i]);
      trace.x.push(spells.span[i]);
      trace.y.push(spells.top[i] + high / 2);
      trace.width.push(high - spells.gap * Math.min(1, high));
      trace.text.push(`${report.escape(name)}: ${nodes} node${nodes === 1 ? "" : "s"}, `
        + `${time(spells.span[i] * spells.unit_s)}, ${spells.whys[spells.why[i]]}`);
    }
    const update = {};
    for (const key of ["base", "x", "y", "width", "text"]) update[key] = traces.map((trace) => trace[key]);
    plot.dataset.drawn = Math.min(visible.length, spells.most);
    plot.dataset.shown = visible.length;
    Plotly.restyle(plot, update, traces.map((_, at) => at));
  }

  function show(from, to) {
    const span = Math.min(to - from, whole);
    const begin = Math.max(0, Math.min(from, whole - span));
    Plotly.relayout(plot, { "xaxis.range": [begin, begin + span] });
  }

  bar.querySelectorAll("button").forEach((button) => {
    button.addEventListener("click", () => {
      const [from, to] = ordered(plot.layout.xaxis.range);
      if (button.dataset.step) {
        const by = (to - from) * Number(button.dataset.step);
        show(from + by, to + by);
      } else if (Number(button.dataset.span)) {
        const half = Number(button.dataset.span) / 2;
        show((from + to) / 2 - half, (from + to) / 2 + half);
      } else {
        ranges = null;
        Plotly.relayout(plot, { "xaxis.range": [0, whole], "yaxis.range": report.data.figures.nodes.layout.yaxis.range.slice() });
      }
    });
  });

  report.onRedraw(() => {
    if (!plot.layout) return; /* in a closed section */
    if (!listening) {
      listening = true;
      plot.on("plotly_relayout", () => {
        ranges = { "xaxis.range": plot.layout.xaxis.range.slice(), "yaxis.range": plot.layout.yaxis.range.slice() };
        fill();
      });
    }
    if (ranges) Plotly.relayout(plot, ranges);
    else fill();
  });
})();
