'use strict';
// Curves of metrics.jsonl: one chart per quantity, drawn as SVG. The second run is dashed.

const BOX = { width: 460, height: 220, left: 52, right: 14, top: 8, bottom: 22 };
const isCount = (name) => /^rewards?\/(.*\/)?num_/.test(name);
// A chart's title, and whether a metric belongs to it. Every other metric gets a separate chart, folded away.
const CHARTS = [
  ['reward and its components', (name) => name === 'reward/mean' || /^rewards\/.*\/mean$/.test(name)],
  ['completions without reward or answer', isCount],
  ['share of groups without signal', (name) => name === 'reward/frac_zero_std'],
  ['held-out', (name) => name.startsWith('eval/')],
  ['completion length, tokens', (name) => name === 'completions/mean_length'],
  ['share of truncated completions', (name) => name === 'completions/frac_truncated'],
  ['entropy, nats per token', (name) => name === 'entropy'],
  ['KL to the reference', (name) => name === 'kl'],
  ['clip fraction', (name) => name === 'loss/clip_fraction'],
  ['log-prob lost without the picture, nats per token', (name) => name.startsWith('vision/')],
  ['log-prob gap, engine to trainer', (name) => name === 'rollout/logprob_diff_mean'],
  ['seconds per step', (name) => name.startsWith('time/')],
  ['tokens per step', (name) => name.startsWith('tokens/')],
];

function chartsOf(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => name !== 'step' && !isConstant(name, runs));
  const charts = CHARTS.map(([title, belongs]) => ({ title, names: names.filter(belongs) }));
  const claimed = new Set(charts.flatMap((chart) => chart.names));
  const others = names.filter((name) => !claimed.has(name)).map((name) => ({ title: name, names: [name] }));
  return { charts: charts.filter((chart) => chart.names.length), others };
}

// The mean of `window` values around each; a trailing mean would lag behind what the run does.
function smoothed(values, window) {
  const half = Math.floor(window / 2);
  return values.map((value, index) => {
    if (value == null) return null;
    const near = values.slice(Math.max(0, index - half), index + half + 1).filter((other) => other != null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}

// A metric that never changes needs no chart.
function isConstant(name, runs) {
  const values = runs.flatMap((run) => run.metrics[name] || []).filter((value) => value != null);
  return values.every((value) => value === values[0]);
}

function niceTicks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

// Reduces points to the minimum and maximum of each pixel column.
function thinned(points, pixels) {
  if (points.length <= 2 * pixels) return points;
  const size = points.length / pixels, reduced = [];
  for (let pixel = 0; pixel < pixels; pixel += 1) {
    const slice = points.slice(Math.floor(pixel * size), Math.floor((pixel + 1) * size));
    const low = slice.reduce((a, b) => (b[1] < a[1] ? b : a)), high = slice.reduce((a, b) => (b[1] > a[1] ? b : a));
    reduced.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return reduced;
}

function linePath(points, x, y) {
  let path = '', open = false;
  for (const [step, value] of points) {
    if (value == null) { open = false; continue; }
    path += `${open ? 'L' : 'M'}${x(step).toFixed(1)},${y(value).toFixed(1)}`;
    open = true;
  }
  return path;
}

function curves(section, state) {
  const longest = () => Math.max(1, ...state.summary.runs.map((run) => run.metrics.step?.length || 0));
  const shared = { window: Math.max(1, Math.round(longest() / 40)), range: null, hidden: new Set(), colours: state.summary.colours };
  const grid = h('div', { class: 'charts' }), more = h('div', { class: 'charts' }), constant = h('p', { class: 'hint' });
  const count = h('summary');
  const label = h('output', {}, String(shared.window));
  const slider = h('input', {
    type: 'range', min: 1, max: 100, value: shared.window, 'aria-label': 'smoothing',
    oninput: () => { shared.window = +slider.value; label.textContent = slider.value; draw(); },
  });
  section.append(
    h('p', { class: 'tools' }, h('label', {}, 'mean of ', label, ' steps ', slider),
      h('button', { onclick: () => { shared.range = null; draw(); } }, 'all steps'),
      h('span', { class: 'hint' }, dashes(state.summary.runs), 'drag over a chart to zoom; click a name to hide it')),
    grid, h('details', {}, count, more), constant,
  );

  function draw() {
    const { charts, others } = chartsOf(state.summary.runs), drawn = (chart) => drawChart(chart, state.summary.runs, shared, draw);
    grid.replaceChildren(...charts.map(drawn));
    more.replaceChildren(...others.map(drawn));
    count.replaceChildren(`${others.length} more metrics`);
    count.parentElement.hidden = !others.length;
    constant.replaceChildren(...constants(state.summary.runs));
  }
  draw();
  return draw;
}

function constants(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => name !== 'step' && isConstant(name, runs));
  const value = (name) => runs.flatMap((run) => run.metrics[name] || []).find((v) => v != null);
  return names.length ? ['never changed: ', ...names.flatMap((name, i) => [i ? ', ' : '', h('code', {}, name), ` ${short(value(name) ?? null)}`])] : [];
}

function dashes(runs) {
  return runs.length > 1 ? `solid: ${runs[0].name}, dashed: ${runs[1].name}; ` : '';
}

function seriesOf(chart, runs, shared) {
  return runs.flatMap((run, number) => chart.names.filter((name) => run.metrics[name]).map((name) => {
    const steps = run.metrics.step, raw = run.metrics[name];
    const inside = (step) => !shared.range || (step >= shared.range[0] && step <= shared.range[1]);
    const mean = smoothed(raw, shared.window);
    const rows = steps.map((step, i) => [step, raw[i], mean[i]]).filter(([step]) => inside(step));
    return { name, number, rows, colour: shared.colours[chart.names.indexOf(name) % shared.colours.length] };
  }));
}

function drawChart(chart, runs, shared, redraw) {
  const all = seriesOf(chart, runs, shared);
  const shown = all.filter((series) => !shared.hidden.has(series.name));
  const values = shown.flatMap((s) => s.rows.map((row) => row[1])).filter((value) => value != null);
  const steps = all.flatMap((s) => [s.rows[0]?.[0], s.rows.at(-1)?.[0]]).filter((step) => step != null);
  let low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!values.length) [low, high] = [0, 1];
  if (low === high) { low -= Math.abs(low) / 2 || 0.5; high += Math.abs(high) / 2 || 0.5; }
  let [first, last] = [Math.min(...steps), Math.max(...steps)];
  if (!steps.length) [first, last] = [0, 1];
  if (first === last) last = first + 1;

  const inner = { width: BOX.width - BOX.left - BOX.right, height: BOX.height - BOX.top - BOX.bottom };
  const x = (step) => BOX.left + ((step - first) / (last - first)) * inner.width;
  const y = (value) => BOX.top + (1 - (value - low) / (high - low)) * inner.height;
  const picture = svg('svg', { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: 'img', 'aria-label': chart.title });
  for (const tick of niceTicks(low, high)) {
    picture.append(svg('line', { class: 'grid', x1: BOX.left, x2: BOX.width - BOX.right, y1: y(tick), y2: y(tick) }),
      svg('text', { x: BOX.left - 5, y: y(tick) + 4, 'text-anchor': 'end' }, short(tick)));
  }
  for (const tick of niceTicks(first, last, 5)) {
    picture.append(svg('text', { x: x(tick), y: BOX.height - 6, 'text-anchor': 'middle' }, short(tick)));
  }
  for (const { rows, colour, number } of shown) {
    const dash = number ? '5 3' : null;
    const line = (column) => linePath(thinned(rows.map((row) => [row[0], row[column]]), inner.width), x, y);
    if (shared.window > 1) picture.append(svg('path', { class: 'raw', d: line(1), stroke: colour, 'stroke-dasharray': dash }));
    picture.append(svg('path', { class: 'mean', d: line(2), stroke: colour, 'stroke-dasharray': dash }));
    if (rows.length <= 40) {  // few values: each of them counts, a single one is not a line
      picture.append(...rows.filter((row) => row[1] != null).map((row) => svg('circle', { class: 'value', cx: x(row[0]), cy: y(row[1]), r: 2.2, fill: colour })));
    }
  }
  const readout = h('div', { class: 'readout' });
  pointing(picture, { x, first, last, shown, runs, readout, shared, redraw });
  return h('figure', {}, h('figcaption', {}, chart.title), picture, readout, legend(chart, all, shared, redraw));
}

function legend(chart, all, shared, redraw) {
  if (chart.names.length < 2) return null;
  const toggle = (name) => () => {
    if (!shared.hidden.delete(name)) shared.hidden.add(name);
    redraw();
  };
  return h('div', { class: 'legend' }, chart.names.map((name) => h('button', {
    class: shared.hidden.has(name) ? 'off' : null, onclick: toggle(name),
    style: `--colour: ${all.find((series) => series.name === name)?.colour}`,
  }, name)));
}

// Hovering shows the values of the nearest step; dragging selects a range of steps for all charts.
function pointing(picture, { x, first, last, shown, runs, readout, shared, redraw }) {
  const cursor = svg('line', { class: 'cursor', y1: BOX.top, y2: BOX.height - BOX.bottom, visibility: 'hidden' });
  const chosen = svg('rect', { class: 'chosen', y: BOX.top, height: BOX.height - BOX.top - BOX.bottom, visibility: 'hidden' });
  picture.append(chosen, cursor);
  let from = null;
  const stepAt = (event) => {
    const frame = picture.getBoundingClientRect();
    const at = ((event.clientX - frame.left) / frame.width) * BOX.width;
    const share = (at - BOX.left) / (BOX.width - BOX.left - BOX.right);
    return first + Math.min(1, Math.max(0, share)) * (last - first);
  };
  picture.addEventListener('pointermove', (event) => {
    const step = stepAt(event);
    const nearest = shown.map((s) => ({ ...s, row: s.rows.reduce((a, b) => (Math.abs(b[0] - step) < Math.abs(a[0] - step) ? b : a), s.rows[0]) })).filter((s) => s.row);
    if (!nearest.length) return;
    const at = nearest[0].row[0];
    fill(cursor, { x1: x(at), x2: x(at), visibility: 'visible' }, []);
    readout.replaceChildren(h('b', {}, `step ${at}`), ...nearest.map((s) => h('span', { style: `--colour: ${s.colour}` },
      `${s.name}${runs.length > 1 ? ` (${runs[s.number].name})` : ''} ${short(s.row[1])}`)));
    readout.classList.add('on');
    if (from != null) {
      const [a, b] = [Math.min(from, step), Math.max(from, step)];
      fill(chosen, { x: x(a), width: x(b) - x(a), visibility: 'visible' }, []);
    }
  });
  picture.addEventListener('pointerdown', (event) => { from = stepAt(event); picture.setPointerCapture(event.pointerId); });
  picture.addEventListener('pointerup', (event) => {
    const to = stepAt(event), start = from;
    from = null;
    if (Math.abs(to - start) > (last - first) / 50) {
      shared.range = [Math.min(start, to), Math.max(start, to)];
      redraw();
    }
  });
  picture.addEventListener('pointerleave', () => {
    cursor.setAttribute('visibility', 'hidden');
    readout.classList.remove('on');
  });
}
