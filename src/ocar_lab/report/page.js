"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const WIDTH = 2;
  const config = { responsive: true, displayModeBar: false, displaylogo: false, doubleClick: "reset" };
  const narrow = matchMedia("(max-width: 40rem)");
  const touch = matchMedia("(pointer: coarse)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text) => (text.length > 34 ? text.slice(0, 33) + "…" : text);

  function style(section, place) {
    const own = section.styles[place];
    return {
      colour: dark.matches ? own.dark : own.light,
      dashes: own.dashes.map((length) => WIDTH * length),
      symbol: own.marker,
    };
  }

  function faint(colour) {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, 0.18)`;
  }

  function band(line, colour, figure) {
    const there = line.x.map((_, i) => i).filter((i) => line.std[i] !== null && line.mean[i] !== null);
    const back = there.slice().reverse();
    const inside = (y) => Math.min(Math.max(y, figure.low ?? -Infinity), figure.high ?? Infinity);
    return {
      x: there.concat(back).map((i) => line.x[i]),
      y: there.map((i) => line.mean[i] + line.std[i]).concat(back.map((i) => line.mean[i] - line.std[i])).map(inside),
      mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: faint(colour),
      hoverinfo: "skip", showlegend: false,
    };
  }

  function lineTrace(line, section, figure) {
    const look = style(section, line.method);
    const several = Math.max(...line.seeds) > 1;
    return {
      cliponaxis: figure.top !== null,  // a line along the edge, as at 100 %, has its whole width
      x: line.x, y: line.mean, name: escaped(short(section.methods[line.method])), mode: "lines+markers",
      line: { color: look.colour, dash: look.dashes.map((n) => n + "px").join() || "solid", width: WIDTH },
      marker: { color: look.colour, symbol: look.symbol, size: 8, maxdisplayed: 12 },
      customdata: line.x.map((_, i) => [
        line.std[i] === null ? "" : " ± " + Number(line.std[i].toPrecision(3)), line.seeds[i],
      ]),
      hovertemplate: "%{y:.4~g}%{customdata[0]}" + (several ? " (%{customdata[1]} seeds)" : ""),
    };
  }

  function wholeStep(values) {
    const span = Math.max(...values) - Math.min(...values);
    let step = 1;
    while (step < span / (narrow.matches ? 5 : 10)) step *= /^2/.test(step) ? 2.5 : 2;
    return step;
  }

  function vertical(figure) {
    const ends = {};
    if (figure.low !== null) ends.minallowed = figure.low;
    if (figure.high !== null) ends.maxallowed = figure.high;
    return figure.top !== null ? { minallowed: figure.low, range: [figure.low, figure.top] } : ends;
  }

  function layout(x, y, tasks) {
    const axis = {
      gridcolor: css("--grid"), linecolor: css("--rule"), zerolinecolor: css("--rule"),
      automargin: true, fixedrange: touch.matches,
    };
    const shapes = [];
    for (let task = 1; task < tasks; task++) {
      shapes.push({
        type: "line", x0: task, x1: task, y0: 0, y1: 1, yref: "paper", layer: "below",
        line: { color: css("--rule"), width: 1 },
      });
    }
    const range = tasks ? { range: [0, tasks], dtick: tasks > 12 ? Math.ceil(tasks / 10) : 1 } : {};
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--ink"), size: narrow.matches ? 11 : 13, family: "system-ui, sans-serif" },
      margin: narrow.matches ? { l: 40, r: 6, t: 8, b: 40 } : { l: 56, r: 12, t: 8, b: 48 },
      showlegend: false, hovermode: "x unified", dragmode: touch.matches ? false : "zoom",
      hoverlabel: { bgcolor: css("--box"), bordercolor: css("--rule"), font: { color: css("--ink") } },
      xaxis: Object.assign({ title: { text: x, standoff: 6 } }, axis, range),
      yaxis: Object.assign({ title: { text: y, standoff: 6 } }, axis),
      shapes: shapes,
    };
  }

  function swatch(look) {
    const shapes = {
      circle: '<circle cx="18" cy="7" r="4"/>', square: '<rect x="14" y="3" width="8" height="8"/>',
      diamond: '<path d="M18 2l5 5-5 5-5-5z"/>', "triangle-up": '<path d="M18 2l5 9H13z"/>',
      "triangle-down": '<path d="M18 12l5-9H13z"/>',
      cross: '<path d="M16 2h4v3h3v4h-3v3h-4V9h-3V5h3z"/>',
      x: '<path d="M14 4l2-2 2 3 2-3 2 2-2 3 2 3-2 2-2-3-2 3-2-2 2-3z"/>',
      star: '<path d="M18 1l2 4h4l-3 3 1 5-4-3-4 3 1-5-3-3h4z"/>', hexagon: '<path d="M15 2h6l3 5-3 5h-6l-3-5z"/>',
    };
    return `<path d="M0 7h36" fill="none" stroke="${look.colour}" stroke-width="${WIDTH}" stroke-dasharray="${look.dashes.join(" ")}"/>` +
      `<g fill="${look.colour}">${shapes[look.symbol]}</g>`;
  }

  const painters = [];

  function lines(node, section, figure, chosen) {
    const plot = node.querySelector(".plot");
    const choice = node.querySelector("select");
    return function () {
      const shown = figure.choices[choice ? Number(choice.value) : 0].lines.filter((l) => chosen().has(l.method));
      const traces = shown.map((l) => band(l, style(section, l.method).colour, figure)).concat(
        shown.map((l) => lineTrace(l, section, figure)));
      const look = layout(figure.x, figure.y, figure.tasks);
      Object.assign(look.yaxis, vertical(figure));
      if (!figure.tasks && shown.length) {
        Object.assign(look.xaxis, { tick0: 0, dtick: wholeStep(shown.flatMap((l) => l.x)) });
      }
      return Plotly.react(plot, traces, look, config);
    };
  }

  function heat(node, section) {
    const plot = node.querySelector(".plot");
    const choice = node.querySelector("select");
    return function () {
      const map = section.heats[choice ? Number(choice.value) : 0];
      const look = layout("time in tasks", "task", map.rows.length);
      look.hovermode = "closest";
      look.shapes = [];
      look.yaxis.autorange = "reversed";
      look.yaxis.dtick = map.rows.length > 12 ? 2 : 1;
      look.xaxis.showgrid = look.yaxis.showgrid = false;
      return Plotly.react(plot, [{
        type: "heatmap", x: map.x, y: map.rows.map((_, task) => task + 1), z: map.rows,
        zmin: 0, zmax: 100, colorscale: "Cividis", hoverongaps: false,
        colorbar: { thickness: 12, title: { text: "%" } },
        hovertemplate: "task %{y}, time %{x:.2f}<br>%{z:.1f} %<extra></extra>",
      }], look, config);
    };
  }

  function connect(section, place) {
    const root = document.getElementById("section-" + place);
    const boxes = Array.from(root.querySelectorAll(".pick input"));
    const chosen = () => new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value)));
    const own = [];
    root.querySelectorAll("figure[data-figure]").forEach(function (node) {
      const figure = section.figures[Number(node.dataset.figure)];
      const paint = lines(node, section, figure, chosen);
      own.push(paint);
      finish(node, paint);
    });
    root.querySelectorAll("figure[data-heat]").forEach(function (node) {
      const paint = heat(node, section);
      painters.push(paint);
      finish(node, paint);
    });
    painters.push(...own);
    const repaint = () => own.forEach((paint) => paint());
    boxes.forEach((box) => box.addEventListener("change", repaint));
    root.querySelectorAll(".pick button").forEach((button) => button.addEventListener("click", function () {
      boxes.forEach((box) => { box.checked = button.dataset.all === "1"; });
      repaint();
    }));
  }

  function finish(node, paint) {
    const choice = node.querySelector("select");
    if (choice) choice.addEventListener("change", paint);
    node.querySelector("button").addEventListener("click", () => Plotly.downloadImage(
      node.querySelector(".plot"), { format: "png", scale: 2, filename: "ocar-" + node.id }));
  }

  function swatches() {
    data.sections.forEach(function (section, place) {
      document.querySelectorAll(`#section-${place} .pick svg`).forEach(function (svg) {
        svg.innerHTML = swatch(style(section, Number(svg.dataset.place)));
      });
    });
  }

  function paintAll() {
    swatches();
    return Promise.all(painters.map((paint) => paint()));
  }

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  async function begin() {
    swatches();
    const script = document.createElement("script");
    script.textContent = await inflate(document.getElementById("plotly").textContent.trim());
    document.head.append(script);
    data.sections.forEach(connect);
    await paintAll();
    dark.addEventListener("change", paintAll);
    narrow.addEventListener("change", paintAll);
    document.documentElement.dataset.drawn = "yes";
  }

  begin().catch(function (error) {
    const note = document.createElement("p");
    note.className = "note";
    note.setAttribute("role", "alert");
    note.textContent = "The figures cannot be drawn in this browser: " + error;
    document.querySelector("main").prepend(note);
    console.error(error);
  });
})();
