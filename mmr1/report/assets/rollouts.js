'use strict';
// The rollout browser: filters, distributions over steps, pages of prompts, the keyboard, the address.

const PAGE = 8;
const BINS = 20;

function rollouts(section, state) {
  const filters = filtersIn(location.hash);
  const bar = h('div', { class: 'tools filters' }), note = h('p', { class: 'hint', 'aria-live': 'polite' }), list = h('div', { class: 'groups' });
  const spreads = h('div', { class: 'charts spreads' }), pager = h('div', { class: 'tools' });
  section.append(bar, note, spreads, list, pager);
  let seen = new Map();  // the steps of each prompt

  // Changes filters. The address follows without a new entry in the history, so that a typed word is none.
  function go(changes, page = '0') {
    Object.assign(filters, { page }, changes);
    history.replaceState(null, '', addressOf(filters));
    drawBar();
    draw();
  }

  function select(name, label, options) {
    const box = h('select', { name, onchange: () => go({ [name]: box.value }) },
      options.map(([value, shown]) => h('option', { value, selected: filters[name] === value }, shown)));
    return h('label', {}, `${label} `, box);
  }

  function input(name, label, type, width, hint) {
    const box = h('input', { name, type, step: 'any', value: filters[name], style: `width: ${width}em`, placeholder: hint, oninput: () => {
      filters[name] = box.value;
      filters.page = '0';
      history.replaceState(null, '', addressOf(filters));
      box.classList.toggle('bad', name === 'where' && conditionsOf(box.value) === null);
      draw();
    } });
    return h('label', {}, `${label} `, box);
  }

  function drawBar() {
    const unique = (values) => [...new Set(values)].filter((value) => value != null);
    const steps = unique(state.groups.map((g) => g.step)).sort((a, b) => a - b).map((s) => [String(s), s]);
    if (filters.step.includes('-')) steps.unshift([filters.step, filters.step]);
    const tasks = unique(state.groups.map((g) => g.task)).sort();
    const statuses = unique(state.groups.flatMap((g) => g.completions.map((c) => c.status))).sort();
    const [first] = unique(state.groups.flatMap((g) => g.completions.flatMap((c) => Object.keys(c.components))));
    bar.replaceChildren(
      select('step', 'step', [['', 'all'], ...steps]),
      select('task', 'task', [['', 'all'], ...tasks.map((t) => [t, t])]),
      select('status', 'status', [['', 'all'], ['!', 'no valid reward'], ['truncated', 'truncated'], ['loops', 'repeats itself'], ...statuses.map((s) => [s, s])]),
      input('low', 'reward from', 'number', 5), input('high', 'to', 'number', 5),
      input('where', 'where', 'search', 16, `${first ?? 'math'} = 1 and tokens > 100`), input('words', 'text', 'search', 12),
      select('order', 'order', ORDERS), h('button', { onclick: () => go({ ...NO_FILTERS }) }, 'clear'));
  }

  function matchingPrompts() {
    const items = new Map(), matching = matcher(filters);
    for (const group of state.groups) {
      const indices = matching(group);
      if (!indices.length) continue;
      const key = filters.beside ? group.id : `${group.step} ${group.id}`;
      if (!items.has(key)) items.set(key, []);
      items.get(key).push({ group, indices });
    }
    return [...items.values()].sort(orderOf(filters.order));
  }

  function draw() {
    const items = matchingPrompts(), pages = Math.max(1, Math.ceil(items.length / PAGE));
    const page = Math.min(+filters.page || 0, pages - 1);
    const shown = items.flat(), completions = shown.reduce((sum, entry) => sum + entry.indices.length, 0);
    seen = new Map();
    for (const group of state.groups) {
      if (!seen.has(group.id)) seen.set(group.id, new Set());
      seen.get(group.id).add(group.step);
    }
    note.replaceChildren(`${items.length} prompt${items.length === 1 ? '' : 's'}, ${completions} completion${completions === 1 ? '' : 's'}`,
      state.reading ? `; ${state.reading} steps are still being read` : '', ...followed(items));
    spreads.replaceChildren(...[['reward', 'rewards of these completions, by step'], ['tokens', 'their lengths in tokens, by step']].map(([key, title]) => spread(shown, key, title)).filter(Boolean));
    const stepsOf = (group) => [...seen.get(group.id)].sort((a, b) => a - b);
    list.replaceChildren(...items.slice(page * PAGE, (page + 1) * PAGE).map((item) =>
      h('div', { class: item.length > 1 ? 'pair' : null }, item.length === 2 ? h('p', { class: 'change' }, change(item.map((entry) => entry.group))) : null,
        item.map((entry) => card(entry, { state, filters, go, stepsOf })))));
    const turn = (by) => () => { go({}, String(page + by)); section.scrollIntoView(); };
    pager.replaceChildren(
      h('button', { onclick: turn(-1), disabled: page === 0 }, '← earlier'), ` page ${page + 1} of ${pages} `,
      h('button', { onclick: turn(1), disabled: page >= pages - 1 }, 'later →'),
      h('span', { class: 'hint keys' }, 'keys: n and p turn pages, j and k go to the next and the previous prompt, / searches'));
  }

  function followed(items) {
    if (!filters.id) return [];
    const rewards = (item) => item.flatMap(({ group, indices }) => indices.map((i) => group.completions[i].reward)).filter((r) => r != null);
    const path = items.map((item) => `${item[0].group.step}: ${short(meanOf(rewards(item)))}`).join('   ');
    return [h('span', {}, ` of prompt ${filters.id}${filters.beside ? ' ' : `; mean reward by step — ${path} `}`),
      h('button', { onclick: () => go({ id: '', step: '', beside: '' }) }, 'all prompts')];
  }

  function move(by) {
    const articles = [...list.querySelectorAll('article')], at = articles.indexOf(document.activeElement?.closest('article'));
    const next = articles[at < 0 ? (by > 0 ? 0 : articles.length - 1) : at + by];
    if (next) { next.focus({ preventScroll: true }); next.scrollIntoView({ block: 'start' }); }
  }

  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches('input, select, textarea')) return;
    const [earlier, later] = pager.querySelectorAll('button');
    const does = { n: () => later.click(), p: () => earlier.click(), j: () => move(1), k: () => move(-1), '/': () => bar.querySelector('[name=words]').focus() }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  addEventListener('hashchange', () => {
    if (!location.hash.startsWith('#rollouts')) return;
    Object.assign(filters, filtersIn(location.hash));
    drawBar();
    draw();
    section.scrollIntoView();
  });

  drawBar();
  draw();
  return () => { drawBar(); draw(); };
}

// A histogram of each step side by side: the darker, the more of the step's completions.
function spread(entries, key, title) {
  const points = entries.flatMap(({ group, indices }) => indices.map((i) => [group.step, group.completions[i][key]])).filter(([, value]) => typeof value === 'number');
  const low = points.reduce((a, [, v]) => Math.min(a, v), Infinity), high = points.reduce((a, [, v]) => Math.max(a, v), -Infinity);
  if (!points.length || low === high) return null;
  const steps = [...new Set(points.map(([step]) => step))].sort((a, b) => a - b);
  const counts = new Map(steps.map((step) => [step, new Array(BINS).fill(0)]));
  for (const [step, value] of points) counts.get(step)[Math.min(BINS - 1, Math.floor(((value - low) / (high - low)) * BINS))] += 1;
  const height = 110, inner = height - BOX.top - BOX.bottom, width = (BOX.width - BOX.left - BOX.right) / steps.length;
  const picture = svg('svg', { viewBox: `0 0 ${BOX.width} ${height}`, role: 'img', 'aria-label': title });
  steps.forEach((step, column) => {
    const bins = counts.get(step), total = bins.reduce((a, b) => a + b, 0);
    bins.forEach((count, bin) => count && picture.append(svg('rect', {
      class: 'bin', x: BOX.left + column * width, width: Math.max(1, width - Math.min(1, width / 8)), y: BOX.top + inner * (1 - (bin + 1) / BINS), height: inner / BINS,
      'fill-opacity': 0.15 + 0.85 * (count / total),
    }, svg('title', {}, `step ${step}: ${count} of ${total} at ${short(low + ((bin + 0.5) / BINS) * (high - low))}`))));
  });
  for (const value of [low, high]) picture.append(svg('text', { x: BOX.left - 5, y: value === low ? BOX.top + inner : BOX.top + 9, 'text-anchor': 'end' }, short(value)));
  for (const at of steps.length > 1 ? [0, steps.length - 1] : [0]) picture.append(svg('text', { x: BOX.left + (at + 0.5) * width, y: height - 6, 'text-anchor': 'middle' }, steps[at]));
  return h('figure', {}, h('figcaption', {}, title), picture);
}
