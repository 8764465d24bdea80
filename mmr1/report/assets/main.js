'use strict';
// Builds the page: the top at once, the rollouts as they are read.

const POLL_MS = 3000;

function runTable(section, summary) {
  const modes = [...new Set(summary.runs.flatMap((run) => Object.keys(run.evaluation)))].filter((name) => name !== 'prompts');
  const heads = ['run', 'algorithm', 'model', 'steps', 'checkpoints', 'quarantined', ...modes.map((m) => `held-out, ${m}`)];
  const last = (run) => run.metrics.step?.at(-1) ?? 0;
  section.replaceChildren(h('table', {},
    h('thead', {}, h('tr', {}, heads.map((t) => h('th', {}, t)))),
    h('tbody', {}, summary.runs.map((run) => h('tr', {}, [
      run.name, run.config['algorithm.name'] ?? '', run.config['model.path'] ?? '', `${last(run)} of ${run.config['trainer.max_steps'] ?? '?'}`,
      String(run.checkpoints.length), String(run.quarantined.length), ...modes.map((m) => short(run.evaluation[m]?.accuracy)),
    ].map((cell, i) => h('td', { 'data-name': heads[i] }, cell)))))));
}

// What is wrong with the run, and a link to the completions that show it.
function findingList(section, summary) {
  const found = summary.runs.flatMap((run) => run.findings.map((finding) => ({ run, ...finding })));
  if (!found.length) { section.replaceChildren(); return; }
  section.replaceChildren(h('h2', {}, 'Findings'), h('ul', { class: 'findings' }, found.map(({ run, title, detail, remedy, steps, filter }) => {
    const [first, last] = steps;
    const logged = run.steps.filter((step) => step >= first && step <= last);
    const near = run.steps.filter((step) => step > 0).reduce((a, b) => (a == null || Math.abs(b - last) < Math.abs(a - last) ? b : a), null);
    const wanted = logged.length ? `${logged[0]}-${logged.at(-1)}` : near == null ? '' : String(near);
    return h('li', {}, h('b', {}, title), summary.runs.length > 1 ? ` (${run.name})` : '', h('span', { class: 'steps' }, first === last ? ` step ${first}` : ` steps ${first} to ${last}`),
      h('p', {}, detail), h('p', { class: 'remedy' }, remedy),
      wanted ? h('a', { href: addressOf({ ...NO_FILTERS, ...filter, step: wanted }) }, 'show the completions') : null);
  })));
}

function faultTable(section, summary) {
  const kinds = [...new Set(summary.runs.flatMap((run) => Object.keys(run.faults)))].sort();
  if (!kinds.length) { section.replaceChildren(); return; }
  section.replaceChildren(h('h2', {}, 'Faults met'), h('p', { class: 'hint' }, 'how often each kind happened; the run went on'),
    h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'fault'), summary.runs.map((run) => h('th', {}, run.name)))),
      h('tbody', {}, kinds.map((kind) => h('tr', {}, h('td', {}, h('code', {}, kind)), summary.runs.map((run) => h('td', {}, short(run.faults[kind]))))))));
}

function quarantineTable(section, summary) {
  const rows = summary.runs.flatMap((run) => run.quarantined.map((row) => [run.name, row.row, row.reason]));
  if (!rows.length) { section.append(h('p', { class: 'hint' }, 'none: every row of the data was used')); return; }
  const body = h('tbody');
  let shown = 0;
  const more = h('button', { onclick: () => extend() }, 'show more');
  const extend = () => {
    body.append(...rows.slice(shown, shown + 50).map((row) => h('tr', {}, row.map((cell) => h('td', {}, String(cell))))));
    shown += 50;
    more.hidden = shown >= rows.length;
  };
  extend();
  section.append(h('table', {}, h('thead', {}, h('tr', {}, ['run', 'row', 'reason'].map((t) => h('th', {}, t)))), body), more);
}

function configTable(section, summary) {
  const keys = [...new Set(summary.runs.flatMap((run) => Object.keys(run.config)))];
  const cells = (key) => summary.runs.map((run) => (key in run.config ? describe(run.config[key]) : '–'));
  const differs = (key) => new Set(cells(key)).size > 1;
  const rows = keys.sort((a, b) => differs(b) - differs(a)).map((key) =>
    h('tr', { class: differs(key) ? 'differs' : null }, h('td', {}, h('code', {}, key)), cells(key).map((cell) => h('td', {}, h('code', {}, cell)))));
  section.append(h('details', { open: summary.runs.length > 1 }, h('summary', {}, summary.runs.length > 1 ? 'what differs comes first' : 'as the run resolved it'),
    h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'key'), summary.runs.map((run) => h('th', {}, run.name)))), h('tbody', {}, rows))));
}

async function readRollouts(state, redraw) {
  const wanted = state.summary.runs.flatMap((run, number) => run.steps.map((step) => ({ number, step })))
    .filter(({ number, step }) => !state.read.has(`${number} ${step}`)).sort((a, b) => a.step - b.step);
  let painted = performance.now();
  for (const [index, { number, step }] of wanted.entries()) {
    const groups = await state.source.rollouts(number, step);
    state.read.add(`${number} ${step}`);
    for (const group of groups) state.groups.push({ ...group, run: number, step });
    state.reading = wanted.length - index - 1;
    if (!index || !state.reading || performance.now() - painted > 1000) {
      redraw();
      await new Promise((done) => { setTimeout(done); });
      painted = performance.now();
    }
  }
}

async function follow(state, redrawCurves, redrawRollouts) {
  for (;;) {
    await new Promise((done) => { setTimeout(done, POLL_MS); });
    try {
      const summary = await state.source.summary();
      const fresh = JSON.stringify(summary) !== JSON.stringify(state.summary);
      state.summary = summary;
      if (fresh) {
        runTable(document.getElementById('runs'), summary);
        findingList(document.getElementById('findings'), summary);
        faultTable(document.getElementById('faults'), summary);
        redrawCurves();
      }
      await readRollouts(state, redrawRollouts);
      document.body.classList.remove('lost');
    } catch { document.body.classList.add('lost'); }  // the server may come back
  }
}

document.addEventListener('DOMContentLoaded', () => {
  const summary = JSON.parse(text('summary'));
  const source = summary.live ? liveSource() : embeddedSource(summary);
  const state = { summary, source, groups: [], read: new Set(), reading: 0 };
  const section = (id) => document.getElementById(id);
  runTable(section('runs'), summary);
  findingList(section('findings'), summary);
  faultTable(section('faults'), summary);
  const redrawCurves = curves(section('curves'), state);
  const redrawRollouts = rollouts(section('rollouts'), state);
  quarantineTable(section('quarantined'), summary);
  configTable(section('configuration'), summary);
  requestAnimationFrame(() => setTimeout(async () => {  // after the first paint
    await readRollouts(state, redrawRollouts);
    document.body.dataset.ready = 'true';
    if (summary.live) follow(state, redrawCurves, redrawRollouts);
  }));
});
