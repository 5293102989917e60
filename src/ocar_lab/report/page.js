"use strict";
(function () {
  let data = JSON.parse(document.getElementById("data").textContent);
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
      uirevision: "kept",  // a zoom stays when new numbers come
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

  const rows = () => Array.from(document.querySelectorAll("#runs tbody tr[data-run]"));
  const runOf = (row) => data.sections[row.dataset.section].runs[row.dataset.run];
  const boxOf = (row) => row.querySelector("input");
  const choiceOf = (node) => Number(node.querySelector("select")?.value ?? 0);
  const rootOf = (node) => node.closest("section[data-section], section[data-study]");

  function chosen(root) {
    const boxes = Array.from(root.querySelectorAll(".pick label:not([hidden]) input"));
    return new Set(boxes.filter((box) => box.checked).map((box) => Number(box.value)));
  }

  function lines(shown, section, figure) {
    const traces = shown.map((l) => band(l, style(section, l.method).colour, figure)).concat(
      shown.map((l) => lineTrace(l, section, figure)));
    const look = layout(figure.x, figure.y, figure.tasks);
    Object.assign(look.yaxis, vertical(figure));
    if (!figure.tasks && shown.length) {
      Object.assign(look.xaxis, { tick0: 0, dtick: wholeStep(shown.flatMap((l) => l.x)) });
    }
    return [traces, look];
  }

  const hex = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

  function mixed(share) {
    const [from, to] = [hex(css("--grid")), hex(css("--link"))];
    return `rgb(${from.map((part, i) => Math.round(part + (0.25 + 0.75 * share) * (to[i] - part))).join()})`;
  }

  /* What each kind of figure draws: traces and layout. */
  const kinds = {
    figure(node) {
      const root = rootOf(node), section = data.sections[root.dataset.section];
      const figure = section.figures[node.dataset.number], own = chosen(root);
      return lines(figure.choices[choiceOf(node)].lines.filter((l) => own.has(l.method)), section, figure);
    },

    heat(node) {
      const map = data.sections[rootOf(node).dataset.section].heats[choiceOf(node)];
      const look = layout("time in tasks", "task", map.rows.length);
      look.hovermode = "closest";
      look.shapes = [];
      look.yaxis.autorange = "reversed";
      look.yaxis.dtick = map.rows.length > 12 ? 2 : 1;
      look.xaxis.showgrid = look.yaxis.showgrid = false;
      return [[{
        type: "heatmap", x: map.x, y: map.rows.map((_, task) => task + 1), z: map.rows,
        zmin: 0, zmax: 100, colorscale: "Cividis", hoverongaps: false,
        colorbar: { thickness: 12, title: { text: "%" } },
        hovertemplate: "task %{y}, time %{x:.2f}<br>%{z:.1f} %<extra></extra>",
      }], look];
    },

    parallel(node) {
      const study = data.studies[rootOf(node).dataset.study], BINS = 8;
      const bins = Array.from({ length: BINS + 1 }, () => []);  // the last is the best trial's own
      study.goodness.forEach((good, trial) => bins[trial ? Math.min(BINS - 1, Math.floor(BINS * good)) : BINS].push(trial));
      const traces = bins.map((trials, bin) => ({
        x: trials.flatMap(() => [...study.axes.keys(), null]),
        y: trials.flatMap((trial) => [...study.axes.map((axis) => axis.places[trial]), null]),
        text: trials.flatMap((trial) => Array(study.axes.length + 1).fill(escaped(study.texts[trial]).replaceAll(", ", "<br>"))),
        mode: "lines+markers", hoverinfo: "text", marker: { size: bin === BINS ? 8 : 4 },
        line: { color: mixed(bin / BINS), width: bin === BINS ? 4 : 1.5 },
      }));
      const look = layout("", "", 0);
      look.hovermode = "closest";
      look.dragmode = false;
      const width = study.axes.length - 1 + (narrow.matches ? 0.8 : 0.4);
      Object.assign(look.xaxis, {
        tickvals: [...study.axes.keys()], ticktext: study.axes.map((axis) => escaped(short(axis.name))),
        range: [-0.1, width], showgrid: false, zeroline: false, fixedrange: true, tickangle: narrow.matches ? -60 : 0,
      });
      Object.assign(look.yaxis, { range: [-0.06, 1.06], visible: false, fixedrange: true });
      look.shapes = study.axes.map((_, at) => ({
        type: "line", x0: at, x1: at, y0: 0, y1: 1, layer: "below", line: { color: css("--quiet"), width: 1 },
      }));
      look.annotations = study.axes.flatMap((axis, at) => axis.ticks.map(([y, text]) => ({
        x: at, y: y, text: escaped(text), showarrow: false, xanchor: "left", xshift: 4, bgcolor: css("--paper"), opacity: 0.85,
        font: { size: narrow.matches ? 9 : 11, color: css("--ink") },
      })));
      return [traces, look];
    },

    importance(node) {
      const shares = data.studies[rootOf(node).dataset.study].importance;
      const look = layout("share (%)", "", 0);
      look.hovermode = "closest";
      Object.assign(look.xaxis, { range: [0, 100], fixedrange: true });
      Object.assign(look.yaxis, { autorange: "reversed", fixedrange: true, type: "category" });
      return [[{
        type: "bar", orientation: "h", x: shares.map((s) => s[1]), y: shares.map((s) => escaped(s[0])),
        marker: { color: css("--link") }, hovertemplate: "%{x:.1f} %<extra></extra>",
      }], look];
    },

    pair() {
      const found = pair();
      const own = found.map((run, place) => ({ ...run.line, method: place }));
      const looks = ["#0072b2 #56b4e9 circle", "#d55e00 #ff8c42 square"].map((text, place) => {
        const [light, night, marker] = text.split(" ");
        return { light: light, dark: night, dashes: place ? [5, 2] : [], marker: marker };
      });
      const drawn = lines(own, { methods: found.map((run) => run.name), styles: looks }, found[0].section.figures[0]);
      Object.assign(drawn[1], { showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" } });
      return drawn;
    },
  };

  function paint(node) {
    const plot = node.querySelector(".plot");
    if (node.closest("[hidden]")) return null;
    const drawn = kinds[node.dataset.kind](node), text = JSON.stringify(drawn);
    if (plot.drawn === text) return null;  // as it is drawn
    plot.drawn = text;
    return Plotly.react(plot, ...drawn, config);
  }

  function paintAll() {
    swatches();
    return Promise.all(Array.from(document.querySelectorAll("figure[data-kind]"), paint));
  }

  function swatches() {
    document.querySelectorAll(".pick svg").forEach(function (svg) {
      svg.innerHTML = swatch(style(data.sections[rootOf(svg).dataset.section], Number(svg.dataset.place)));
    });
  }

  /* A word of the filter: name=value of a setting, with < and > for numbers, or a part of the row's text. */
  function fits(word, row, settings) {
    const [, name, sign, wanted] = /^([^=<>]+)(=|<|>)(.+)$/.exec(word) ?? [];
    if (!sign) return row.textContent.toLowerCase().includes(word);
    return Object.entries(settings).some(function ([own, text]) {
      if (own.toLowerCase() !== name && !own.toLowerCase().endsWith("." + name)) return false;
      const [one, other] = [Number(text), Number(wanted)];
      if (sign !== "=") return sign === "<" ? one < other : one > other;
      return text.toLowerCase() === wanted || (wanted !== "" && one === other);
    });
  }

  function filter() {
    const form = document.getElementById("filters");
    if (!form) return;
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = data.sections.map(() => new Set());
    let count = 0;
    rows().forEach(function (row) {
      const place = row.dataset.section, section = data.sections[place], run = runOf(row);
      const settings = { ...section.settings[run.method], seed: String(run.seed), state: run.facts.State };
      const shown = (!wanted.Benchmark || section.benchmark === wanted.Benchmark) &&
        (!wanted.Method || section.labels[run.method] === wanted.Method) &&
        (!wanted.State || run.facts.State === wanted.State) && words.every((word) => fits(word, row, settings));
      row.hidden = !shown;
      if (shown) { kept[place].add(run.method); count++; }
    });
    form.querySelector("output").textContent = count < rows().length ? `${count} of ${rows().length} runs` : "";
    document.querySelectorAll("section[data-section]").forEach(function (root) {
      root.hidden = !kept[root.dataset.section].size;
      root.querySelectorAll(".pick label").forEach(function (label) {
        label.hidden = !kept[root.dataset.section].has(Number(label.querySelector("input").value));
      });
    });
  }

  function sort(table) {
    const header = table.querySelector("th[aria-sort]");
    if (!header) return;
    const column = header.cellIndex, sign = header.ariaSort === "descending" ? -1 : 1;
    const value = (row) => row.cells[column].dataset.sort || row.cells[column].textContent.trim();
    const order = Array.from(table.tBodies[0].rows).map((row) => [value(row), row]);
    order.sort(function ([one], [other]) {
      if (!one || !other) return (one ? 0 : 1) - (other ? 0 : 1);  // empty cells last
      return sign * (isNaN(one) || isNaN(other) ? one.localeCompare(other, "en") : one - other);
    });
    order.forEach(function ([, row], place) {
      const there = table.tBodies[0].rows[place];
      if (there !== row) table.tBodies[0].insertBefore(row, there);
    });
  }

  function pair() {
    return rows().filter((row) => boxOf(row).checked).map(
      (row) => ({ ...runOf(row), section: data.sections[row.dataset.section] }));
  }

  function sideBySide() {
    const root = document.getElementById("pair");
    if (!root) return;
    const found = pair();
    root.hidden = found.length !== 2;
    if (root.hidden) return;
    const settings = found.map((run) => run.section.settings[run.method]);
    const facts = found.map((run) => run.facts);
    const table = [];
    for (const [group, all] of [[facts, true], [settings, false]]) {
      for (const name of new Set(group.flatMap(Object.keys))) {
        const [one, other] = group.map((own) => own[name] ?? "");
        if ((all && (one || other)) || one !== other) table.push([name, one, other, difference(one, other)]);
      }
    }
    root.querySelector("thead").replaceChildren(line(["", ...found.map((run) => run.name), "difference"], "th"));
    root.querySelector("tbody").replaceChildren(...table.map((texts) => line(texts, "td")));
    root.querySelector("figure").hidden = !(
      found.every((run) => run.line) && found[0].section === found[1].section && found[0].section.figures.length);
  }

  const difference = (one, other) => (one && other && isFinite(one) && isFinite(other)
    ? Number((other - one).toPrecision(4)).toString().replace(/^(?=[1-9]|0\.)/, "+") : "");

  function line(texts, kind) {
    const row = document.createElement("tr");
    texts.forEach(function (text, place) {
      const cell = row.appendChild(document.createElement(place ? kind : "th"));
      cell.scope = kind === "th" ? "col" : "row";
      cell.textContent = text;
    });
    return row;
  }

  function refresh() {
    document.querySelectorAll("table.sortable").forEach(sort);
    filter();
    sideBySide();
    return paintAll();
  }

  document.addEventListener("change", function (event) {
    const row = event.target.closest("#runs tbody tr");
    if (row && event.target.checked) {  // at most two: the one that was ticked first goes
      row.dataset.ticked = Date.now();
      rows().filter((other) => boxOf(other).checked).sort((a, b) => b.dataset.ticked - a.dataset.ticked)
        .slice(2).forEach((other) => { boxOf(other).checked = false; });
    }
    refresh();
  });
  document.addEventListener("input", (event) => { if (event.target.type === "search") refresh(); });
  document.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", function (event) {
    const button = event.target.closest("button");
    if (!button) return;
    const figure = button.closest("figure"), header = button.closest("th");
    if (figure) {
      Plotly.downloadImage(figure.querySelector(".plot"), { format: "png", scale: 2, filename: "ocar-" + figure.id });
    } else if (header) {
      const next = header.ariaSort === "ascending" ? "descending" : "ascending";
      header.parentNode.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", next);
      refresh();
    } else if (button.dataset.all) {
      button.closest(".pick").querySelectorAll("input").forEach((box) => { box.checked = button.dataset.all === "1"; });
      refresh();
    }
  });

  const OWN = new Set(["open", "hidden", "aria-sort", "data-ticked"]);  // attributes that this script and the reader change
  const keyOf = (node) => node.dataset?.key;

  /* Make an element like a fresh one; what the reader has chosen, and the figures, stay. */
  function morph(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.matches(".plot, [data-own]")) return;
    for (const name of new Set([...old.getAttributeNames(), ...fresh.getAttributeNames()])) {
      const value = fresh.getAttribute(name);
      if (OWN.has(name) || value === old.getAttribute(name)) continue;
      if (value === null) old.removeAttribute(name);
      else old.setAttribute(name, value);
    }
    const keyed = new Map(Array.from(old.children).filter(keyOf).map((child) => [keyOf(child), child]));
    let place = old.firstChild;
    for (const child of Array.from(fresh.childNodes)) {
      const alike = place && !keyOf(place) && place.nodeName === child.nodeName ? place : null;
      const match = keyOf(child) ? keyed.get(keyOf(child)) : alike;
      if (!match || match.nodeName !== child.nodeName) old.insertBefore(child, place);
      else {
        if (match === place) place = place.nextSibling;
        else old.insertBefore(match, place);
        morph(match, child);
      }
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  async function show(answer) {
    data = answer.data;
    document.title = answer.title;
    const focused = document.activeElement;
    const fresh = new DOMParser().parseFromString(answer.content, "text/html");
    morph(document.getElementById("content"), fresh.getElementById("content"));
    await refresh();
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  async function follow(tag) {
    const said = document.getElementById("live"), begun = performance.now();
    let next = tag;
    const answer = await fetch("data", { headers: { "If-None-Match": tag }, cache: "no-store" }).catch(() => null);
    try {
      said.className = answer ? "quiet" : "note";
      if (!answer) {
        said.textContent = "The server does not answer; this is its last answer. ocar watch starts it again.";
      } else if (answer.status === 200) {
        next = answer.headers.get("ETag");
        await show(await answer.json());
        said.textContent = "Last change at " + new Date().toLocaleTimeString() + ".";
      }
    } finally {
      setTimeout(follow, Math.max(1000, 3 * (performance.now() - begun)), next);
    }
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
    await refresh();
    dark.addEventListener("change", paintAll);
    narrow.addEventListener("change", paintAll);
    document.documentElement.dataset.drawn = "yes";
    if (document.documentElement.dataset.tag) follow(document.documentElement.dataset.tag);
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
