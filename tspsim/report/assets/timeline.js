"use strict";
/* The Gantt chart. Rows are unpacked from typed arrays. Only instructions in the window are drawn, and those narrower
   than about a pixel are merged, so that a step of a million instructions stays fast. */
(() => {
  const data = report.data;
  if (!data.timelines) return;
  const MOST_BARS = 8000;
  const plot = document.getElementById("gantt-plot");
  const planSelect = document.getElementById("gantt-plan");
  const rankSelect = document.getElementById("gantt-ranks");
  const note = document.getElementById("gantt-note");
  const unpacked = new Map();
  const state = { plan: 0, ranks: 1, from: 0, to: 1 };

  function bytes(text) {
    const raw = atob(text);
    const array = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i += 1) array[i] = raw.charCodeAt(i);
    return array.buffer;
  }

  function unpack(index) {
    if (unpacked.has(index)) return unpacked.get(index);
    const packed = data.timelines[index];
    const gap = new Float32Array(bytes(packed.gap));
    const duration = new Float32Array(bytes(packed.duration));
    const label = packed.wide ? new Uint32Array(bytes(packed.label)) : new Uint16Array(bytes(packed.label));
    const layer = new Int16Array(bytes(packed.layer));
    const start = new Float64Array(packed.rows);
    const end = new Float64Array(packed.rows);
    const reach = new Float64Array(packed.rows);
    for (const track of packed.tracks) {
      let clock = 0;
      let furthest = 0;
      for (let i = track.first; i < track.first + track.count; i += 1) {
        start[i] = clock + gap[i];
        clock = end[i] = start[i] + duration[i];
        furthest = reach[i] = Math.max(furthest, clock);
      }
    }
    const timeline = Object.assign({}, packed, { label, layer, start, end, reach, texts: packed.labels.texts });
    unpacked.set(index, timeline);
    return timeline;
  }

  const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
  function scaled(value, unit) {
    for (const [factor, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= factor) return `${digits(value / factor)} ${prefix}${unit}`;
    }
    return `${digits(value)} ${unit}`;
  }
  function time(seconds) {
    if (seconds >= 1) return `${digits(seconds)} s`;
    return seconds >= 1e-3 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds * 1e6)} µs`;
  }
  const clockTime = (seconds) => `${(seconds * 1e3).toLocaleString("en", { maximumFractionDigits: 3 })} ms`;
  const words = (text) => report.escape(text.replace(/_/g, " "));

  function hover(timeline, track, i) {
    const table = timeline.labels;
    const l = timeline.label[i];
    const kind = timeline.texts[table.kind[l]];
    const length = timeline.end[i] - timeline.start[i];
    const rank = timeline.ranks[track.rank];
    const where = [`rank ${rank.rank}${rank.role ? ` (${report.escape(rank.role)})` : ""}`, report.escape(timeline.streams[track.stream])];
    if (timeline.layer[i] >= 0) where.push(`layer ${timeline.layer[i]}`);
    if (timeline.texts[table.part[l]]) where.push(report.escape(timeline.texts[table.part[l]]));
    const alone = table.alone[l] > 0 && length > table.alone[l] * 1.005 ? `, ${time(table.alone[l])} when alone` : "";
    const name = timeline.texts[table.name[l]];
    const lines = [`<b>${report.escape(name)}</b>${name === kind ? "" : ` (${words(kind)})`}`, where.join(" · "),
      `at ${clockTime(timeline.start[i])}, takes ${time(length)}${alone}`];
    if (timeline.texts[table.shape[l]]) lines.push(report.escape(timeline.texts[table.shape[l]]));
    const size = table.bytes[l];
    const flops = table.flops[l];
    const moves = table.computes[l] ? "to and from HBM" : "received";
    if (size > 0) lines.push(`${scaled(size, "B")} ${moves}${flops > 0 ? `, ${scaled(flops, "FLOP")}` : ""}`);
    if (length > 0 && flops > 0) {
      const peak = table.peak[l] > 0 ? `, ${((100 * flops) / length / table.peak[l]).toFixed(1)} % of peak` : "";
      lines.push(`${scaled(flops / length, "FLOP/s")}${peak}`);
    } else if (length > 0 && size > 0) {
      const full = table.computes[l] && table.hbm > 0 ? `, ${((100 * size) / length / table.hbm).toFixed(1)} % of HBM peak` : "";
      lines.push(`${scaled(size / length, "B/s")}${full}`);
    }
    return lines.join("<br>");
  }

  function firstVisible(timeline, track, from) {
    let low = track.first;
    let high = track.first + track.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (timeline.reach[middle] < from) low = middle + 1; else high = middle;
    }
    return low;
  }

  /* The bars of one row in the window: one for each instruction of at least `thin` seconds; shorter neighbours are merged. */
  function bars(timeline, track, thin, add) {
    let pending = null;
    const flush = () => {
      if (!pending) return;
      if (pending.count === 1) {
        add(pending.kind, pending.from, pending.to, pending.busy, hover(timeline, track, pending.row), "");
      } else {
        const parts = Object.entries(pending.kinds).sort((a, b) => b[1] - a[1]);
        const list = parts.slice(0, 4).map(([kind, length]) => `${words(timeline.texts[kind])} ${time(length)}`);
        add(Number(parts[0][0]), pending.from, pending.to, pending.busy,
          `<b>${pending.count} short instructions</b><br>${list.join("<br>")}<br>zoom in to see each`, "");
      }
      pending = null;
    };
    const last = track.first + track.count;
    for (let i = firstVisible(timeline, track, state.from); i < last && timeline.start[i] <= state.to; i += 1) {
      const from = timeline.start[i];
      const to = timeline.end[i];
      const kind = timeline.labels.kind[timeline.label[i]];
      if (to - from >= thin) {
        flush();
        add(kind, from, to, to - from, hover(timeline, track, i),
          timeline.texts[timeline.labels.name[timeline.label[i]]]);
        continue;
      }
      if (pending && (from - pending.to > thin || to - pending.from > 3 * thin)) flush();
      if (!pending) pending = { from, to, busy: 0, count: 0, kinds: {}, kind, row: i };
      pending.to = Math.max(pending.to, to);
      pending.busy += to - from;
      pending.count += 1;
      pending.kinds[kind] = (pending.kinds[kind] || 0) + (to - from);
    }
    flush();
  }

  function draw() {
    const timeline = unpack(state.plan);
    const width = plot.clientWidth;
    const narrow = width < 560;
    const tracks = timeline.tracks.filter((track) => track.rank < state.ranks);
    const thin = ((state.to - state.from) * Math.max(1.5, (tracks.length * width) / MOST_BARS)) / width;
    const least = (1.4 * (state.to - state.from)) / width;
    const traces = new Map();
    let count = 0;
    const rows = tracks.map((track, index) => index + 0.35 * track.rank);
    tracks.forEach((track, index) => {
      bars(timeline, track, thin, (kind, from, to, busy, text, name) => {
        if (!traces.has(kind)) traces.set(kind, { base: [], x: [], y: [], hovertext: [], text: [], edge: [], opacity: [] });
        const trace = traces.get(kind);
        trace.base.push(from * 1e3);
        const drawn = Math.max(to - from, least);
        trace.x.push(drawn * 1e3);
        trace.opacity.push(Math.max(0.4, Math.min(1, busy / drawn)));
        trace.edge.push(to - from > 3 * least ? 0.6 : 0);
        trace.y.push(rows[index]);
        trace.hovertext.push(text);
        trace.text.push(report.escape(name));
        count += 1;
      });
    });
    const used = new Set(Array.from(timeline.labels.kind));
    const kinds = data.kinds.map((kind) => [kind, timeline.texts.indexOf(kind)]).filter(([, index]) => used.has(index));
    /* A kind without instructions in the window has a bar of length 0, so that it stays in the legend. */
    const absent = { base: [state.from * 1e3], x: [0], y: [rows[0]], hovertext: [""], text: [""], edge: [0], opacity: [1] };
    const figure = kinds.map(([kind, index]) => {
      const { edge, opacity, ...trace } = traces.get(index) || absent;
      const marker = { color: data.colours[kind], opacity, line: { width: edge, color: report.token("--ground") } };
      return Object.assign(trace, { type: "bar", orientation: "h", name: words(kind), width: 0.86, marker, hoverinfo: "text",
        textangle: 0, textposition: count < 700 ? "inside" : "none", insidetextanchor: "middle" });
    });
    const layout = report.themed(frame(timeline, tracks, rows, kinds.map(([kind]) => kind), narrow, width), width);
    plot.style.minHeight = `${layout.height}px`;
    return Plotly.react(plot, figure, layout, Object.assign({ doubleClick: false }, report.config));
  }

  function frame(timeline, tracks, rows, kinds, narrow, width) {
    const ticks = tracks.map((track, index) => {
      const rank = timeline.ranks[track.rank];
      const first = index === 0 || tracks[index - 1].rank !== track.rank;
      const many = rank.stands_for > 1 && !narrow ? ` ×${rank.stands_for}` : "";
      const rankName = first ? `<b>${narrow ? "" : "rank "}${rank.rank}</b>${many} ` : "";
      const stream = timeline.streams[track.stream];
      return rankName + report.escape(narrow && stream.length > 8 ? `${stream.slice(0, 7)}…` : stream);
    });
    const legendRows = report.legendRows(kinds, width);
    const marks = layerMarks(timeline, width);
    return {
      height: 100 + 21 * legendRows + 30 * tracks.length + 8 * state.ranks,
      barmode: "overlay",
      hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      uniformtext: { mode: "hide", minsize: 9 },
      uirevision: `${state.plan} ${state.from} ${state.to}`,
      shapes: marks.shapes,
      annotations: marks.annotations,
      margin: { t: 24 + 21 * legendRows },
      showlegend: true,
      legend: { orientation: "h", x: 0, y: 1, yref: "container", yanchor: "top", traceorder: "normal", uirevision: "kept" },
      xaxis: { title: { text: `time since the step began (ms), ${words(timeline.name)}`, standoff: 8 },
        range: [state.from * 1e3, state.to * 1e3], zeroline: false, automargin: true, hoverformat: ",.3f",
        tickformat: state.to - state.from > 0.02 ? ",.3~f" : "" },
      yaxis: { title: { text: "rank and stream", standoff: 8 }, tickvals: rows, ticktext: ticks, range: [rows[rows.length - 1] + 0.6, -0.6], fixedrange: true,
        showgrid: false, zeroline: false, automargin: true },
    };
  }

  function layerMarks(timeline, width) {
    const visits = timeline.layers.filter(([, from, to]) => to > state.from && from < state.to);
    const stride = Math.max(1, Math.ceil((visits.length * 62) / width));
    const shapes = [];
    const annotations = [];
    visits.forEach(([layer, from, to], index) => {
      if (visits.length > 200 && index % stride) return;
      if (from > state.from) {
        shapes.push({ type: "line", xref: "x", yref: "paper", x0: from * 1e3, x1: from * 1e3, y0: 0, y1: 1,
          line: { color: report.token("--soft"), width: 1, dash: "dot" } });
      }
      const room = (Math.min(to, state.to) - Math.max(from, state.from)) / (state.to - state.from);
      if (index % stride || (stride === 1 && room * width < 56)) return;
      annotations.push({ xref: "x", yref: "paper", x: Math.max(from, state.from) * 1e3, y: 1, xanchor: "left", yanchor: "bottom",
        text: `layer ${layer}`, showarrow: false, font: { size: 11, color: report.token("--soft") } });
    });
    return { shapes, annotations };
  }

  /* Shows a window of time, clamped to the step and to a least length. */
  function show(from, to) {
    const timeline = unpack(state.plan);
    const whole = timeline.until;
    const length = Math.min(Math.max(to - from, whole * 1e-7), whole * 1.02);
    state.from = Math.min(Math.max(from, 0), Math.max(0, whole * 1.02 - length));
    state.to = state.from + length;
    return draw();
  }

  const views = {
    step: (t) => [0, t.until * 1.01],
    two: (t) => (t.layers.length ? [0, t.layers[Math.min(1, t.layers.length - 1)][2]] : [0, t.until * 1.01]),
    layer: (t) => {
      const left = state.from + 0.01 * (state.to - state.from);
      const visit = t.layers.find(([, , to]) => to > left) || t.layers[0];
      return visit ? [visit[1], visit[2]] : [0, t.until];
    },
    previous: () => [2 * state.from - state.to, state.from],
    next: () => [state.to, 2 * state.to - state.from],
    in: () => zoomed(0.5),
    out: () => zoomed(2),
  };

  function zoomed(factor) {
    const middle = (state.from + state.to) / 2;
    const half = ((state.to - state.from) / 2) * factor;
    return [middle - half, middle + half];
  }

  const go = (view) => show(...views[view](unpack(state.plan)));

  function choosePlan(index) {
    state.plan = index;
    const timeline = unpack(index);
    const most = timeline.ranks.length;
    const options = [1, 2, 4, 8, 16, 32].filter((n) => n < most).concat(most);
    const rowsOf = (n) => timeline.tracks.filter((track) => track.rank < n).length;
    rankSelect.replaceChildren(...options.map((n) => new Option(n === 1 ? `first (${timeline.ranks[0].rank})` : n === most ? `all ${n} shown` : `first ${n}`, n)));
    state.ranks = options.filter((n) => n === 1 || rowsOf(n) <= 12).pop();
    rankSelect.value = String(state.ranks);
    describe(timeline);
    return go("two");
  }

  function describe(timeline) {
    const shown = timeline.ranks.length;
    const represented = timeline.ranks.reduce((sum, rank) => sum + rank.stands_for, 0);
    const sentences = [];
    if (shown < timeline.simulated) sentences.push(`${shown} of ${timeline.simulated.toLocaleString("en")} simulated ranks ${shown === 1 ? "is" : "are"} in this file in full${shown === 1 ? "" : ": one of every role, the others at equal steps"}.`);
    else if (represented > shown) sentences.push(`Each rank shown represents others with the same timeline: ${shown} ${shown === 1 ? "represents" : "represent"} ${represented.toLocaleString("en")}.`);
    if (timeline.cut) sentences.push(`Only the first ${time(timeline.until)} of ${time(timeline.step)} are in this file.`);
    note.textContent = sentences.join(" ");
  }

  function start() {
    planSelect.replaceChildren(...data.timelines.map((timeline, index) => new Option(timeline.name, index)));
    planSelect.addEventListener("change", () => choosePlan(Number(planSelect.value)));
    rankSelect.addEventListener("change", () => { state.ranks = Number(rankSelect.value); draw(); });
    document.querySelectorAll("#gantt [data-view]").forEach((button) => {
      button.addEventListener("click", () => go(button.dataset.view));
    });
    plot.addEventListener("keydown", (event) => {
      const view = { ArrowLeft: "previous", ArrowRight: "next", "+": "in", "=": "in", "-": "out", Home: "step" }[event.key];
      if (!view) return;
      event.preventDefault();
      go(view);
    });
    choosePlan(0);
    plot.on("plotly_relayout", (change) => {
      const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) show(Math.min(from, to) / 1e3, Math.max(from, to) / 1e3);
    });
    plot.on("plotly_doubleclick", () => { go("step"); return false; });
    report.onRedraw(draw);
  }

  document.addEventListener("DOMContentLoaded", start);
})();
